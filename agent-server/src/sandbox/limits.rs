//! What one command may use, and where the defaults come from.
//!
//! Owns the figures and the rlimits. Must not know how a limit is watched or reported.

use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

/// Processes of one command's tree. A parallel build on a large machine uses about two per core and rarely more than 200;
/// a fork bomb passes this within milliseconds.
pub const DEFAULT_PROCESSES: usize = 512;
/// Largest file a command may write: 16 GiB. Above any build artefact, below what fills a large volume in one command.
pub const DEFAULT_FILE_SIZE: u64 = 16 << 30;
/// Share of the memory in percent that one tree may use; the rest keeps the server alive, because an out-of-memory
/// kill would take the whole container on cgroup v2.
const MEMORY_SHARE_PERCENT: u64 = 75;
/// Between TERM and KILL.
pub const TERMINATION_GRACE: Duration = Duration::from_secs(2);
/// After the first KILL: rounds of scanning and killing take milliseconds each; a tree that is still there after this
/// sits in the kernel (a dead network mount) and is reported.
pub const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// What one command's tree may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLimits {
    /// Processes in the tree.
    pub processes: usize,
    /// Private memory of the tree in bytes; `None` when the machine does not tell its size.
    pub memory_bytes: Option<u64>,
    /// Largest file in bytes.
    pub file_size_bytes: u64,
}

impl CommandLimits {
    /// The defaults for this machine or container.
    pub fn detect() -> Self {
        let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        let machine = std::fs::read_to_string("/proc/meminfo").ok();
        Self {
            processes: DEFAULT_PROCESSES,
            memory_bytes: memory_limit(container.as_deref(), machine.as_deref()),
            file_size_bytes: DEFAULT_FILE_SIZE,
        }
    }

    /// Applies what the kernel can enforce per process to the calling process; children inherit it.
    ///
    /// The number of processes is not among it: `RLIMIT_NPROC` counts every process of the user on the node, those of
    /// other pods included, so it would let one tenant starve another.
    pub(super) fn apply_to_this_process(&self) -> rustix::io::Result<()> {
        let no_core_dumps = Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(Resource::Core, no_core_dumps)?;
        let hard = rustix::process::getrlimit(Resource::Fsize).maximum;
        let size = hard.map_or(self.file_size_bytes, |hard| hard.min(self.file_size_bytes));
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: Some(size), maximum: Some(size) })
    }
}

/// 75 % of the container's limit, else of the machine's memory.
fn memory_limit(cgroup_memory_max: Option<&str>, meminfo: Option<&str>) -> Option<u64> {
    let container = cgroup_memory_max.and_then(|text| text.trim().parse::<u64>().ok());
    let machine = || {
        let line = meminfo?.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    };
    container.or_else(machine).map(|total| total / 100 * MEMORY_SHARE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_limit_wins_over_the_machine() {
        let meminfo = "MemTotal:        1000000 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_limit(Some("1000000000\n"), Some(meminfo)), Some(750_000_000));
        assert_eq!(memory_limit(Some("max\n"), Some(meminfo)), Some(768_000_000));
        assert_eq!(memory_limit(None, None), None);
    }
}
