//! The life of one command's process tree, seen from the process that is its subreaper.
//!
//! Owns waiting, watching limits and ending the tree. Must not know what the command is or who asked for it.
//!
//! Every process that the command leaves behind becomes a child of the supervisor, also one that started a session of
//! its own. "No children left" is therefore the exact truth about the tree.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, wait};

use super::limits::{CommandLimits, KILL_DEADLINE, TERMINATION_GRACE};
use super::process_tree::{ProcessTable, Usage};
use super::protocol::{END_TREE, KILL_TREE, Report, ShellStatus};

/// How often limits are checked and orphans are waited for. A look at an ordinary tree takes about 50 µs, 0.2 % of this.
const WATCH_INTERVAL: Duration = Duration::from_millis(25);
/// The interval once a tree has an eighth of its processes: a fork bomb needs about 100 ms for the rest, and it is easier
/// to catch before hundreds of its processes compete with the supervisor for the processor.
const ALERT_INTERVAL: Duration = Duration::from_millis(3);
/// A look that takes longer than this, ten times what 500 quiet processes take, is being outrun by new processes. The
/// shell's group is then stopped for the time of a second look, and goes on if that is within the limits.
const OUTRUN: Duration = Duration::from_millis(50);
/// While the tree is being ended: short, because the caller waits.
const END_INTERVAL: Duration = Duration::from_millis(5);
/// Dead processes that are waited for in one go. A fork bomb leaves them faster than they can be waited for, and the
/// limits must be looked at all the same.
const REAP_AT_ONCE: usize = 256;
/// Memory costs a read per process, so it is looked at every eighth time: 200 ms.
const MEMORY_EVERY: u32 = 8;
/// Exit codes of the supervisor; the server reads the reports and not these.
const EXIT_DONE: i32 = 0;
const EXIT_STUCK: i32 = 2;

/// The supervisor's end of the socket to the server.
pub struct ServerLink(UnixStream);

impl ServerLink {
    /// Takes the socket.
    pub fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Tells the server. If the server is gone, its end of the stream is closed, and that is what the supervisor acts on.
    pub fn report(&mut self, report: &Report) {
        let _server_is_gone = self.0.write_all(&report.line());
    }

    /// The grace with which the server wants the tree ended; it does so too when it is gone. Call this when the socket is
    /// readable.
    fn wants_end(&mut self) -> Option<Duration> {
        let mut order = [0; 1];
        match self.0.read(&mut order) {
            Ok(1) if order == [KILL_TREE] => Some(Duration::ZERO),
            Ok(1) if order != [END_TREE] => None,
            Err(error) if error.kind() == ErrorKind::Interrupted => None,
            _ => Some(TERMINATION_GRACE),
        }
    }
}

/// Watches the tree until nothing of it runs; returns the exit code of this process.
pub fn supervise(server: ServerLink, table: ProcessTable, shell: Pid, limits: &CommandLimits) -> i32 {
    let mut tree = Tree { server, table, shell, shell_is_gone: false };
    let (mut looks, mut reported) = (0_u32, Usage::default());
    let mut interval = WATCH_INTERVAL;
    loop {
        if let Some(grace) = tree.wait_for_change(interval) {
            return tree.end(grace);
        }
        if !tree.reap() {
            tree.server.report(&Report::TreeEnded);
            return EXIT_DONE;
        }
        looks = looks.wrapping_add(1);
        let with_memory = looks.is_multiple_of(MEMORY_EVERY);
        let usage = tree.usage(with_memory, limits.processes);
        if let Some(limit) = passed_limit(usage, limits) {
            tree.server.report(&Report::LimitExceeded(limit));
            // No grace: what outgrows its limit would go on growing in it.
            return tree.end(Duration::ZERO);
        }
        if with_memory && usage != reported {
            tree.server.report(&Report::Usage(usage));
            reported = usage;
        }
        interval = if usage.processes > limits.processes / 8 { ALERT_INTERVAL } else { WATCH_INTERVAL };
    }
}

fn passed_limit(usage: Usage, limits: &CommandLimits) -> Option<String> {
    if usage.processes > limits.processes {
        return Some(format!("more than {} processes", limits.processes));
    }
    let allowed = limits.memory_bytes?;
    (usage.memory_bytes > allowed).then(|| format!("more than {} MiB of memory", allowed >> 20))
}

struct Tree {
    server: ServerLink,
    table: ProcessTable,
    shell: Pid,
    shell_is_gone: bool,
}

impl Tree {
    /// Sleeps until the shell ends, the server speaks or the time is over; a grace if the tree is to be ended.
    fn wait_for_change(&mut self, at_most: Duration) -> Option<Duration> {
        let socket = self.server.0.as_fd();
        // Without the descriptor the end of the shell is noticed at the next interval instead of at once.
        let shell = if self.shell_is_gone { None } else { pidfd_open(self.shell, PidfdFlags::empty()).ok() };
        let mut watched = vec![PollFd::new(&socket, PollFlags::IN)];
        if let Some(shell) = &shell {
            watched.push(PollFd::new(shell, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let woken = poll(&mut watched, Some(&timeout)).unwrap_or(0);
        let server_speaks = woken > 0 && !watched[0].revents().is_empty();
        if server_speaks { self.server.wants_end() } else { None }
    }

    /// Takes leave of the dead; false when no child is left. Reports the end of the shell.
    fn reap(&mut self) -> bool {
        for _ in 0..REAP_AT_ONCE {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.shell => {
                    self.shell_is_gone = true;
                    let status = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => ShellStatus::Exited(code),
                        (None, signal) => ShellStatus::Signaled(signal.unwrap_or_default()),
                    };
                    let others_run = self.reap();
                    self.server.report(&Report::ShellEnded { status, others_run });
                    return others_run;
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn usage(&self, with_memory: bool, enough: usize) -> Usage {
        let begin = Instant::now();
        // What cannot be counted now is counted at the next look; the time limit holds all the same.
        let look = || self.table.usage(with_memory, enough).unwrap_or_default();
        let usage = look();
        if usage.processes > enough || begin.elapsed() < OUTRUN || self.shell_is_gone {
            return usage;
        }
        let _gone = rustix::process::kill_process_group(self.shell, Signal::STOP);
        let usage = look();
        if usage.processes <= enough {
            let _gone = rustix::process::kill_process_group(self.shell, Signal::CONT);
        }
        usage
    }

    /// TERM, then KILL after the grace, until nothing is left. A stopped process is woken, so that it sees the TERM.
    fn end(&mut self, grace: Duration) -> i32 {
        let begin = Instant::now();
        if !grace.is_zero() {
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
        }
        loop {
            if begin.elapsed() >= grace {
                self.signal(Signal::KILL);
            }
            if !self.reap() {
                self.server.report(&Report::TreeEnded);
                return EXIT_DONE;
            }
            if begin.elapsed() >= grace + KILL_DEADLINE {
                let left = self.table.descendants(self.table.me()).map_or(0, |left| left.len());
                self.server.report(&Report::TreeStuck(left));
                return EXIT_STUCK;
            }
            std::thread::sleep(END_INTERVAL);
        }
    }

    /// The shell's group first: that needs no look at the machine and reaches nearly everything at once. It can be done
    /// only while the shell has not been waited for, because its number may belong to somebody else afterwards. What a
    /// scan or a signal misses is found in the next round.
    fn signal(&self, signal: Signal) {
        if !self.shell_is_gone {
            let _gone = rustix::process::kill_process_group(self.shell, signal);
        }
        let _next_round = self.table.signal_descendants(self.table.me(), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_limit_is_named() {
        let limits = CommandLimits { processes: 2, memory_bytes: Some(64 << 20), file_size_bytes: 1, output_bytes: 1 };
        let usage = |processes, memory_bytes| Usage { processes, memory_bytes };
        assert_eq!(passed_limit(usage(2, 64 << 20), &limits), None);
        assert_eq!(passed_limit(usage(3, 0), &limits), Some("more than 2 processes".into()));
        assert_eq!(passed_limit(usage(1, 65 << 20), &limits), Some("more than 64 MiB of memory".into()));
    }
}
