//! The supervisors of this process, and what one that was killed leaves behind.
//!
//! Owns telling supervisors from strays. Must not know what a supervisor does.
//!
//! The server is a child subreaper like its supervisors, and so is the holder of a standing sandbox as its first process:
//! when a supervisor is lost (killed by an administrator, or for lack of memory although its commands go first), the
//! processes of its command become children of this one. It starts no children but supervisors and the holders of
//! sandboxes, so every other child is a stray.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::process_tree::ProcessTable;

static SUPERVISORS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Rounds of killing take milliseconds; what is left after this is stuck in the kernel.
const END_WITHIN: Duration = Duration::from_secs(5);
/// A version or a line of the like.
const MAX_OUTPUT: u64 = 4096;
const ROUND: Duration = Duration::from_millis(10);

fn supervisors() -> MutexGuard<'static, BTreeSet<i32>> {
    // The set is whole after every statement.
    SUPERVISORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the new parent of orphans.
pub fn adopt_orphans() -> rustix::io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Keeps a child from being taken for a stray, as long as this value lives.
pub struct Membership(Option<i32>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            supervisors().remove(&pid);
        }
    }
}

/// Starts a child that is no stray; no look at strays can fall between its start and its entry.
pub fn start_member<C>(
    spawn: impl FnOnce() -> io::Result<C>,
    id: impl FnOnce(&C) -> Option<u32>,
) -> io::Result<(C, Membership)> {
    let mut supervisors = supervisors();
    let child = spawn()?;
    let pid = id(&child).and_then(|pid| i32::try_from(pid).ok());
    supervisors.extend(pid);
    Ok((child, Membership(pid)))
}

/// The supervisor of one command as a child of this process.
pub struct Supervisor {
    /// The process.
    pub child: Child,
    _membership: Membership,
}

impl Supervisor {
    /// What a short program that was started like a supervisor says on its standard output; it is killed if it does not
    /// end in time.
    pub async fn output(mut self, within: Duration) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut stdout = self.child.stdout.take();
        let said = async {
            if let Some(stdout) = &mut stdout {
                stdout.take(MAX_OUTPUT).read_to_end(&mut text).await?;
            }
            self.child.wait().await
        };
        if let Ok(ended) = tokio::time::timeout(within, said).await {
            ended?;
            return Ok(text);
        }
        self.child.kill().await?;
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Starts a supervisor.
pub fn start_supervisor(command: &mut Command) -> io::Result<Supervisor> {
    let (child, membership) = start_member(|| command.spawn(), Child::id)?;
    Ok(Supervisor { child, _membership: membership })
}

/// Kills every stray and what is below it, and waits for them. Blocking; call it after a supervisor was lost.
pub fn end_strays() {
    let begin = Instant::now();
    let Ok(table) = ProcessTable::of_this_machine() else { return };
    while kill_round(&table) {
        if begin.elapsed() > END_WITHIN {
            tracing::error!("processes of a command without supervisor could not be ended");
            return;
        }
        std::thread::sleep(ROUND);
    }
}

/// True while there are strays.
pub fn kill_round(table: &ProcessTable) -> bool {
    let supervisors = supervisors();
    let mut found = false;
    for child in table.own_children().unwrap_or_default() {
        let Some((pid, _)) = table.own_numbers(&child) else { continue };
        if supervisors.contains(&pid.as_raw_pid()) {
            continue;
        }
        found = true;
        end(table, &child, pid);
    }
    found
}

/// Whatever fails here is tried again in the next round, until the time is over.
fn end(table: &ProcessTable, stray: &super::process_tree::Process, pid: Pid) {
    let _ = table.signal_descendants(stray.id, Signal::KILL);
    let _ = table.signal(stray, Signal::KILL);
    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
}
