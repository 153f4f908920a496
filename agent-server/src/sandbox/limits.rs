//! What one command and one workspace may use, and where the defaults come from.
//!
//! Owns the figures and the rlimits. Must not know how a limit is watched or reported.

use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use super::process_tree::ProcessTable;

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

/// Largest output of one command: 8 GiB. What is kept of it is bounded elsewhere; this ends what writes without end.
pub const DEFAULT_OUTPUT: u64 = 8 << 30;
/// Processes of all commands of a workspace together, as a multiple of what one may have.
const WORKSPACE_PROCESSES: usize = 4;
/// The container's limit by cgroup version 2, then by version 1.
const CONTAINER_MEMORY: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// What one command's tree may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandLimits {
    /// Processes in the tree.
    pub processes: usize,
    /// Private memory of the tree in bytes; `None` when the machine does not tell its size.
    pub memory_bytes: Option<u64>,
    /// Largest file in bytes.
    pub file_size_bytes: u64,
    /// Output in bytes, both streams together.
    pub output_bytes: u64,
}

/// What all commands of a workspace may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceLimits {
    /// Processes.
    pub processes: usize,
    /// Private memory in bytes; `None` when the machine does not tell its size.
    pub memory_bytes: Option<u64>,
}

/// The limits in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Of each command.
    pub command: CommandLimits,
    /// Of all together.
    pub workspace: WorkspaceLimits,
}

/// Limits that were set; what is absent has its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedLimits {
    /// Processes of a command.
    pub processes: Option<usize>,
    /// Memory of a command in bytes.
    pub memory_bytes: Option<u64>,
    /// Largest file in bytes.
    pub file_size_bytes: Option<u64>,
    /// Output of a command in bytes.
    pub output_bytes: Option<u64>,
    /// Processes of all commands.
    pub workspace_processes: Option<usize>,
    /// Memory of all commands in bytes.
    pub workspace_memory_bytes: Option<u64>,
}

impl WantedLimits {
    /// With the defaults of this machine or container. A command never gets more than the workspace.
    pub fn with_defaults(self) -> Limits {
        let container = CONTAINER_MEMORY.iter().find_map(|path| std::fs::read_to_string(path).ok());
        let machine = std::fs::read_to_string("/proc/meminfo").ok();
        self.within(memory_limit(container.as_deref(), machine.as_deref()))
    }

    fn within(self, memory: Option<u64>) -> Limits {
        let workspace_memory = self.workspace_memory_bytes.or(memory);
        let own_memory = self.memory_bytes.or(workspace_memory);
        let processes = self.processes.unwrap_or(DEFAULT_PROCESSES);
        let together = self.workspace_processes.unwrap_or(processes.saturating_mul(WORKSPACE_PROCESSES));
        Limits {
            command: CommandLimits {
                processes: processes.min(together),
                memory_bytes: own_memory.map(|own| workspace_memory.map_or(own, |all| own.min(all))),
                file_size_bytes: self.file_size_bytes.unwrap_or(DEFAULT_FILE_SIZE),
                output_bytes: self.output_bytes.unwrap_or(DEFAULT_OUTPUT),
            },
            workspace: WorkspaceLimits { processes: together, memory_bytes: workspace_memory },
        }
    }
}

impl CommandLimits {
    /// Applies what the kernel can enforce per process to the calling process; children inherit it.
    pub(super) fn apply_to_this_process(&self, table: &ProcessTable) -> rustix::io::Result<()> {
        limit(Resource::Core, 0)?;
        limit(Resource::Fsize, self.file_size_bytes)?;
        let load = table.read("loadavg").unwrap_or_default();
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

/// 75 % of the container's limit, else of the machine's memory. Version 1 writes a number near 2^63 for no limit.
fn memory_limit(container: Option<&str>, meminfo: Option<&str>) -> Option<u64> {
    let machine = meminfo.and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    });
    let container = container.and_then(|text| text.trim().parse::<u64>().ok());
    let total = match (container, machine) {
        (Some(container), Some(machine)) => Some(container.min(machine)),
        (container, machine) => container.or(machine),
    };
    total.map(|total| total / 100 * MEMORY_SHARE_PERCENT)
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
        assert_eq!(memory_limit(Some("9223372036854771712\n"), Some(meminfo)), Some(768_000_000));
        assert_eq!(memory_limit(None, None), None);
    }

    #[test]
    fn a_command_never_gets_more_than_the_workspace() {
        let wanted = WantedLimits { processes: Some(100), workspace_processes: Some(50), ..WantedLimits::default() };
        let limits = WantedLimits { workspace_memory_bytes: Some(10), ..wanted }.within(Some(1000));
        assert_eq!((limits.command.processes, limits.command.memory_bytes), (50, Some(10)));
        let defaults = WantedLimits::default().within(Some(1000));
        assert_eq!(
            defaults,
            Limits {
                command: CommandLimits {
                    processes: DEFAULT_PROCESSES,
                    memory_bytes: Some(1000),
                    file_size_bytes: DEFAULT_FILE_SIZE,
                    output_bytes: DEFAULT_OUTPUT,
                },
                workspace: WorkspaceLimits { processes: 4 * DEFAULT_PROCESSES, memory_bytes: Some(1000) },
            }
        );
    }
}
