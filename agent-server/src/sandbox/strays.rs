//! The supervisors of this process, and what one that was killed leaves behind.
//!
//! Owns telling supervisors from strays. Must not know what a supervisor does.
//!
//! This process is a child subreaper like its supervisors: when a supervisor is lost (killed by an administrator, or for
//! lack of memory although its commands go first), the processes of its command become children of this one. It starts
//! no children but supervisors, so every other child is a stray.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use tokio::process::{Child, Command};

use super::process_tree;

static SUPERVISORS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Rounds of killing take milliseconds; what is left after this is stuck in the kernel.
const END_WITHIN: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(10);

fn supervisors() -> MutexGuard<'static, BTreeSet<i32>> {
    // The set is whole after every statement.
    SUPERVISORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the new parent of orphans.
pub fn adopt_orphans() -> rustix::io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// A child that is no stray, as long as this value lives.
pub struct Supervisor {
    /// The process.
    pub child: Child,
    pid: Option<i32>,
}

/// Starts a supervisor; no look at strays can fall between its start and its entry.
pub fn start_supervisor(command: &mut Command) -> std::io::Result<Supervisor> {
    let mut supervisors = supervisors();
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    supervisors.extend(pid);
    Ok(Supervisor { child, pid })
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            supervisors().remove(&pid);
        }
    }
}

/// Kills every stray and what is below it, and waits for them. Blocking; call it after a supervisor was lost.
pub fn end_strays() {
    let begin = Instant::now();
    while kill_round() {
        if begin.elapsed() > END_WITHIN {
            tracing::error!("processes of a command without supervisor could not be ended");
            return;
        }
        std::thread::sleep(ROUND);
    }
}

/// True while there are strays.
fn kill_round() -> bool {
    let me = rustix::process::getpid();
    let supervisors = supervisors();
    let strays: Vec<Pid> = process_tree::children(me)
        .unwrap_or_default()
        .into_iter()
        .filter(|pid| !supervisors.contains(&pid.as_raw_pid()))
        .collect();
    for stray in &strays {
        // Whatever fails here is tried again in the next round, until the time is over.
        let _ = process_tree::signal_descendants(*stray, Signal::KILL);
        let _ = rustix::process::kill_process(*stray, Signal::KILL);
        let _ = waitpid(Some(*stray), WaitOptions::NOHANG);
    }
    !strays.is_empty()
}
