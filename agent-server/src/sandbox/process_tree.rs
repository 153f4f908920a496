//! Finding and signalling the processes below one process, whatever group or session they moved to.
//!
//! Owns the reading of a `/proc` and the sending of signals. Must not know why a tree ends.
//!
//! The root must be a child subreaper: then a process whose parent died becomes a child of the root and stays findable.
//!
//! The table may be the `/proc` of an outer process namespace, handed in as a descriptor: a sandbox in a pod often may not
//! mount one of its own. Its numbers are the outer ones, so `Process` holds both: the table's number for reading, and the
//! number by which this process can signal it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags, open, openat, readlinkat};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

/// A number of the table; not a number to signal.
pub type TableId = i32;

/// One process as `<pid>/stat` tells it, by the table's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: TableId,
    /// Its parent's number; 0 for the first process.
    parent: TableId,
    /// Its process group.
    group: TableId,
    /// Dead and not yet waited for.
    zombie: bool,
}

/// What a tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processes.
    pub processes: usize,
    /// Resident memory in bytes that the tree alone has: what is not of a file, and of shared memory its share.
    pub memory_bytes: u64,
}

/// A `/proc`, and the place of this process in it.
pub struct ProcessTable {
    root: OwnedFd,
    me: TableId,
    /// How many process namespaces this process is below the table's own.
    depth: usize,
}

impl ProcessTable {
    /// The `/proc` of this machine or container.
    pub fn of_this_machine() -> io::Result<Self> {
        Self::new(Self::open_own()?)
    }

    /// A descriptor of the own `/proc`, to be handed to a process that has none.
    pub fn open_own() -> io::Result<OwnedFd> {
        Ok(open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// A `/proc` that shows this process, of its own namespace or of one around it.
    pub fn new(root: OwnedFd) -> io::Result<Self> {
        let link = readlinkat(&root, "self", Vec::new())?;
        let me = link.to_str().ok().and_then(|text| text.parse().ok());
        let me = me.ok_or_else(|| io::Error::other("this process is not in the table"))?;
        let mut table = Self { root, me, depth: 0 };
        table.depth = table.own_depth()?;
        Ok(table)
    }

    /// The number of this process.
    pub fn me(&self) -> TableId {
        self.me
    }

    /// Reads a file of the table.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::with_capacity(READ_AT_ONCE);
        std::fs::File::from(self.open(path, OFlags::RDONLY)?).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Opens a file of the table.
    pub fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn own_depth(&self) -> io::Result<usize> {
        let status = self.read(&format!("{}/status", self.me))?;
        Ok(numbers(&status, "NSpid:").count().saturating_sub(1))
    }

    /// Every process by its parent.
    fn by_parent(&self) -> io::Result<BTreeMap<TableId, Vec<Process>>> {
        let mut children: BTreeMap<TableId, Vec<Process>> = BTreeMap::new();
        for entry in Dir::read_from(&self.root)? {
            let Some(id) = entry?.file_name().to_str().ok().and_then(parse_id) else { continue };
            let Some(process) = self.stat(id) else { continue };
            children.entry(process.parent).or_default().push(process);
        }
        Ok(children)
    }

    /// The direct children of this process, the dead that were not waited for included.
    pub fn own_children(&self) -> io::Result<Vec<Process>> {
        Ok(self.by_parent()?.remove(&self.me).unwrap_or_default())
    }

    /// All living processes below `root`.
    pub fn descendants(&self, root: TableId) -> io::Result<Vec<Process>> {
        let mut children = self.by_parent()?;
        let mut found = Vec::new();
        let mut open = vec![root];
        while let Some(parent) = open.pop() {
            for process in children.remove(&parent).unwrap_or_default() {
                open.push(process.id);
                if !process.zombie {
                    found.push(process);
                }
            }
        }
        Ok(found)
    }

    /// Sends a signal to every process below `root`: to each process group as a whole, because the kernel signals a group
    /// atomically and no fork escapes, and one by one to what sits in `root`'s own group.
    ///
    /// Returns how many processes were found. Processes that are gone by the time of the signal are no error.
    pub fn signal_descendants(&self, root: TableId, signal: Signal) -> io::Result<usize> {
        let found = self.descendants(root)?;
        let own_group = self.stat(root).map_or(0, |process| process.group);
        let mut groups = BTreeSet::new();
        for process in &found {
            if process.group == own_group {
                self.signal(process, signal)?;
            } else if groups.insert(process.group)
                && let Some((_, Some(group))) = self.own_numbers(process)
            {
                ignore_gone(rustix::process::kill_process_group(group, signal))?;
            }
        }
        Ok(found.len())
    }

    /// Signals one process.
    pub fn signal(&self, process: &Process, signal: Signal) -> io::Result<()> {
        let Some((pid, _)) = self.own_numbers(process) else { return Ok(()) };
        ignore_gone(rustix::process::kill_process(pid, signal))
    }

    /// Number and group by which this process knows another one; `None` if that is gone or in a namespace not below.
    /// A group that was founded outside of this namespace has no number here.
    pub fn own_numbers(&self, process: &Process) -> Option<(Pid, Option<Pid>)> {
        if self.depth == 0 {
            return Some((Pid::from_raw(process.id)?, Pid::from_raw(process.group)));
        }
        let status = self.read(&format!("{}/status", process.id)).ok()?;
        let own = |field| numbers(&status, field).nth(self.depth).filter(|number| *number > 0).and_then(Pid::from_raw);
        Some((own("NSpid:")?, own("NSpgid:")))
    }

    /// Counts what is below this process, cheaply: the work grows with the tree, not with the machine, where the kernel
    /// lists children (`CONFIG_PROC_CHILDREN`). A process that starts or ends meanwhile may be missed; the next look sees
    /// it. Counting stops soon after `enough`.
    pub fn usage(&self, with_memory: bool, enough: usize) -> io::Result<Usage> {
        let mut ids = Vec::new();
        let mut open = vec![self.me];
        while ids.len() <= enough
            && let Some(parent) = open.pop()
        {
            match self.listed_children(parent) {
                Some(children) => {
                    ids.extend(&children);
                    open.extend(children);
                }
                None if parent == self.me => {
                    ids = self.descendants(self.me)?.iter().map(|process| process.id).collect();
                    break;
                }
                None => {}
            }
        }
        let memory_bytes = if with_memory { ids.iter().map(|id| self.private_memory(*id)).sum() } else { 0 };
        Ok(Usage { processes: ids.len(), memory_bytes })
    }

    /// Children of every thread of a process; `None` if the kernel does not list them or the process is gone.
    fn listed_children(&self, id: TableId) -> Option<Vec<TableId>> {
        let threads = self.open(&format!("{id}/task"), OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        let mut children = Vec::new();
        for thread in Dir::read_from(&threads).ok()? {
            let thread = thread.ok()?;
            let Some(thread) = thread.file_name().to_str().ok().and_then(parse_id) else { continue };
            let list = self.read(&format!("{id}/task/{thread}/children")).ok()?;
            children.extend(list.split_ascii_whitespace().filter_map(parse_id));
        }
        Some(children)
    }

    /// Shared memory that several processes have mapped is divided among them. The kernel divides it only for those who may
    /// look into the process; one that forbids that, or has little of it, is charged with all that it has mapped.
    fn private_memory(&self, id: TableId) -> u64 {
        let Ok(status) = self.read(&format!("{id}/status")) else { return 0 };
        let (private, shared) = (kibibytes(&status, "RssAnon:"), kibibytes(&status, "RssShmem:"));
        let share = if shared < DIVIDED_FROM_KIBIBYTES {
            None
        } else {
            let rollup = self.read(&format!("{id}/smaps_rollup")).unwrap_or_default();
            rollup.contains("Pss_Shmem:").then(|| kibibytes(&rollup, "Pss_Shmem:"))
        };
        (private + share.unwrap_or(shared)) << 10
    }

    fn stat(&self, id: TableId) -> Option<Process> {
        parse_stat(id, &self.read(&format!("{id}/stat")).ok()?)
    }
}

/// Dividing costs the kernel a walk over all pages of the process. What is below this in each of 512 processes is too
/// little to matter.
const DIVIDED_FROM_KIBIBYTES: u64 = 1024;

/// The kernel gives at most a page at a time; growing towards it from the default of 32 bytes would be many calls.
const READ_AT_ONCE: usize = 4096;

/// Stops or continues every process of every command of this server: what is below the supervisors. Those are children of
/// the server, or of the holder of a standing sandbox, which is bubblewrap's only child. Returns how many processes were
/// found.
pub fn pause_commands(stop: bool) -> io::Result<usize> {
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    let table = ProcessTable::of_this_machine()?;
    let tree = table.by_parent()?;
    let below = |id: TableId| tree.get(&id).into_iter().flatten();
    let mut found = 0;
    for child in below(table.me()) {
        // The server starts no other program of this name, and what its own children are called no command decides.
        if table.read(&format!("{}/comm", child.id)).is_ok_and(|name| name.trim() == "bwrap") {
            for supervisor in below(child.id).flat_map(|holder| below(holder.id)) {
                found += table.signal_descendants(supervisor.id, signal)?;
            }
        } else {
            found += table.signal_descendants(child.id, signal)?;
        }
    }
    Ok(found)
}

fn ignore_gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The numbers of one line of `status`, the table's own first and each nested namespace's after it.
fn numbers<'status>(status: &'status str, field: &'static str) -> impl Iterator<Item = i32> + 'status {
    let line = status.lines().find_map(move |line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().map(|word| word.parse().unwrap_or(0))
}

/// A figure in kB of `status` or `smaps_rollup`; 0 where it is not there, as in the status of a dead process.
fn kibibytes(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// Whether any process of the machine or container has this among its arguments.
pub fn runs_with_argument(argument: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    entries.flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    })
}

/// The name in parentheses may hold anything, parentheses and blanks included, so the fields are read after the last `)`.
fn parse_stat(id: TableId, text: &str) -> Option<Process> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { id, parent, group, zombie: matches!(state, "Z" | "X") })
}

fn parse_id(text: &str) -> Option<TableId> {
    text.parse().ok().filter(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_confuse_the_fields() {
        let process = parse_stat(42, "42 (a) Z 1 (b)) S 7 9 9 0 -1").unwrap();
        assert_eq!(process, Process { id: 42, parent: 7, group: 9, zombie: false });
    }

    #[test]
    fn the_numbers_of_nested_namespaces_are_read_in_order() {
        let status = "Name:\tx\nPid:\t70\nNSpid:\t70\t9\t1\nNSpgid:\t70\t9\t0\n";
        assert_eq!(numbers(status, "NSpid:").collect::<Vec<_>>(), [70, 9, 1]);
        assert_eq!(numbers(status, "NSsid:").count(), 0);
    }

    #[test]
    fn figures_of_memory_are_read_in_kibibytes() {
        let status = "VmRSS:\t    3000 kB\nRssAnon:\t     120 kB\nRssShmem:\t       8 kB\n";
        let read = ["RssAnon:", "RssShmem:", "VmSwap:"].map(|field| kibibytes(status, field));
        assert_eq!(read, [120, 8, 0]);
    }

    #[test]
    fn a_child_of_this_process_is_found_and_counted() {
        let table = ProcessTable::of_this_machine().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let is_child = |process: &Process| table.own_numbers(process).is_some_and(|(own, _)| own == pid);
        assert!(table.descendants(table.me()).unwrap().iter().any(is_child));
        assert!(table.usage(true, 10).unwrap().processes >= 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!table.descendants(table.me()).unwrap().iter().any(is_child));
    }

    #[test]
    fn what_is_below_a_supervisor_is_stopped_and_goes_on_and_the_supervisor_is_not() {
        use std::io::BufRead as _;

        let mut supervisor = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let state = |pid: &str| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
        };
        let until = |wanted: fn(char) -> bool| {
            let begin = std::time::Instant::now();
            while !wanted(state(line.trim())) {
                assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{}", state(line.trim()));
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        assert!(pause_commands(true).unwrap() >= 1);
        until(|state| state == 'T');
        assert_ne!(state(&supervisor.id().to_string()), 'T');
        pause_commands(false).unwrap();
        until(|state| state != 'T');
        let table = ProcessTable::of_this_machine().unwrap();
        table.signal_descendants(Pid::from_child(&supervisor).as_raw_pid(), Signal::KILL).unwrap();
        supervisor.wait().unwrap();
    }
}
