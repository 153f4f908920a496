//! What one command may use, and where the defaults come from.
//!
//! Owns the figures and the rlimits. Must not know how a limit is watched or reported.

use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

/// Processes of one command's tree. A parallel build on a large machine uses about two per core and rarely more than 200;
/// a fork bomb passes this within milliseconds.
pub const DEFAULT_PROCESSES: usize = 512;
/// The number of processes is watched, and a fork bomb can outrun that for a moment. `RLIMIT_NPROC` is the second line. It
/// counts all threads of the user on the node, those of other pods with the same user included, so it must not be a
/// tight one, or one tenant could starve another: every thread that runs now, of any user, and this many times the limit.
const NPROC_ROOM: u64 = 4;
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
    pub(super) fn apply_to_this_process(&self) -> rustix::io::Result<()> {
        limit(Resource::Core, 0)?;
        limit(Resource::Fsize, self.file_size_bytes)?;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        match threads_of_the_machine(&load) {
            Some(threads) => limit(Resource::Nproc, threads + NPROC_ROOM * self.processes as u64),
            None => Ok(()),
        }
    }
}

/// Lowers a limit, for good. A lower one that is in force already stays.
fn limit(resource: Resource, value: u64) -> rustix::io::Result<()> {
    let hard = rustix::process::getrlimit(resource).maximum;
    let value = Some(hard.map_or(value, |hard| hard.min(value)));
    rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })
}

/// The fourth field of `/proc/loadavg`: `running/all`.
fn threads_of_the_machine(load: &str) -> Option<u64> {
    load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
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
    fn the_threads_of_the_machine_are_read_from_the_load() {
        assert_eq!(threads_of_the_machine("0.20 0.18 0.12 1/843 11206\n"), Some(843));
        assert_eq!(threads_of_the_machine(""), None);
    }

    #[test]
    fn the_container_limit_wins_over_the_machine() {
        let meminfo = "MemTotal:        1000000 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_limit(Some("1000000000\n"), Some(meminfo)), Some(750_000_000));
        assert_eq!(memory_limit(Some("max\n"), Some(meminfo)), Some(768_000_000));
        assert_eq!(memory_limit(None, None), None);
    }
}
