//! Finding and signalling the processes below one process, whatever group or session they moved to.
//!
//! Owns the reading of `/proc` and the sending of signals. Must not know why a tree ends.
//!
//! The root must be a child subreaper: then a process whose parent died becomes a child of the root and stays findable.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use rustix::process::{Pid, Signal};

/// One process as `/proc/<pid>/stat` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// Its parent's id; 0 for the first process.
    parent: i32,
    /// Its process group.
    group: i32,
    /// Dead and not yet waited for.
    zombie: bool,
}

/// Every process of the machine or container by its parent.
fn by_parent() -> io::Result<BTreeMap<i32, Vec<Process>>> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(parse_pid) else { continue };
        let Some(process) = read_stat(pid) else { continue };
        children.entry(process.parent).or_default().push(process);
    }
    Ok(children)
}

/// The direct children of a process, the dead that were not waited for included.
pub fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let found = by_parent()?.remove(&parent.as_raw_pid()).unwrap_or_default();
    Ok(found.iter().map(|process| process.pid).collect())
}

/// All living processes below `root`.
pub fn descendants(root: Pid) -> io::Result<Vec<Process>> {
    let mut children = by_parent()?;
    let mut found = Vec::new();
    let mut open = vec![root.as_raw_pid()];
    while let Some(parent) = open.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            open.push(process.pid.as_raw_pid());
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
pub fn signal_descendants(root: Pid, signal: Signal) -> io::Result<usize> {
    let found = descendants(root)?;
    let own_group = read_stat(root).map_or(0, |process| process.group);
    let mut groups = BTreeSet::new();
    for process in &found {
        if process.group == own_group {
            ignore_gone(rustix::process::kill_process(process.pid, signal))?;
        } else if groups.insert(process.group)
            && let Some(group) = Pid::from_raw(process.group)
        {
            ignore_gone(rustix::process::kill_process_group(group, signal))?;
        }
    }
    Ok(found.len())
}

/// Stops or continues every process of every command of this server: what is below the supervisors, which are its
/// children. Returns how many processes were found.
pub fn pause_commands(stop: bool) -> io::Result<usize> {
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    let me = rustix::process::getpid();
    let mut found = 0;
    for supervisor in descendants(me)?.iter().filter(|process| process.parent == me.as_raw_pid()) {
        found += signal_descendants(supervisor.pid, signal)?;
    }
    Ok(found)
}

fn ignore_gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processes.
    pub processes: usize,
    /// Private resident memory in bytes: pages that are not shared with a file or another process.
    pub memory_bytes: u64,
}

/// Counts what is below `root`, cheaply: the work grows with the tree, not with the machine, where the kernel lists
/// children (`CONFIG_PROC_CHILDREN`). A process that starts or ends meanwhile may be missed; the next look sees it.
/// Counting stops soon after `enough`.
pub fn usage(root: Pid, with_memory: bool, enough: usize) -> io::Result<Usage> {
    let mut pids = Vec::new();
    let mut open = vec![root];
    while pids.len() <= enough
        && let Some(parent) = open.pop()
    {
        match listed_children(parent) {
            Some(children) => {
                pids.extend(&children);
                open.extend(children);
            }
            None if parent == root => {
                pids = descendants(root)?.iter().map(|process| process.pid).collect();
                break;
            }
            None => {}
        }
    }
    let memory_bytes = if with_memory { pids.iter().map(|pid| private_memory(*pid)).sum() } else { 0 };
    Ok(Usage { processes: pids.len(), memory_bytes })
}

/// The kernel gives at most a page at a time; growing towards it from the default of 32 bytes would be many calls.
const LISTED_AT_ONCE: usize = 4096;

/// Children of every thread of a process; `None` if the kernel does not list them or the process is gone.
fn listed_children(pid: Pid) -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let mut list = Vec::with_capacity(LISTED_AT_ONCE);
        std::fs::File::open(thread.ok()?.path().join("children")).ok()?.read_to_end(&mut list).ok()?;
        children
            .extend(list.split(u8::is_ascii_whitespace).filter_map(|pid| parse_pid(std::str::from_utf8(pid).ok()?)));
    }
    Some(children)
}

/// Whether any process of the machine or container has this among its arguments.
pub fn runs_with_argument(argument: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    entries.flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    })
}

fn private_memory(pid: Pid) -> u64 {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/statm")) else { return 0 };
    let mut pages = text.split_whitespace().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * rustix::param::page_size() as u64
}

fn read_stat(pid: Pid) -> Option<Process> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&bytes))
}

/// The name in parentheses may hold anything, parentheses and blanks included, so the fields are read after the last `)`.
fn parse_stat(pid: Pid, text: &str) -> Option<Process> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, zombie: matches!(state, "Z" | "X") })
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok().filter(|pid| *pid > 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_confuse_the_fields() {
        let pid = Pid::from_raw(42).unwrap();
        let process = parse_stat(pid, "42 (a) Z 1 (b)) S 7 9 9 0 -1").unwrap();
        assert_eq!(process, Process { pid, parent: 7, group: 9, zombie: false });
    }

    #[test]
    fn a_child_of_this_process_is_found_and_counted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = rustix::process::getpid();
        let pid = Pid::from_child(&child);
        assert!(descendants(me).unwrap().iter().any(|process| process.pid == pid));
        assert!(usage(me, true, 10).unwrap().processes >= 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(me).unwrap().iter().any(|process| process.pid == pid));
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
        signal_descendants(Pid::from_child(&supervisor), Signal::KILL).unwrap();
        supervisor.wait().unwrap();
    }
}
