//! The hidden subcommand `sandbox-hold`: the first process inside a standing sandbox.
//!
//! Owns starting supervisors inside and taking leave of the dead. Must not know commands, limits or the asynchronous
//! runtime.
//!
//! The namespaces and `/tmp` of the sandbox live as long as this process, and it lives as long as the server holds the
//! other end of its standard input. As the first process of its namespace it gets every orphan, and no process inside can
//! kill it: the kernel does not deliver such signals.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, WaitOptions, wait};

use super::process_tree::ProcessTable;
use super::protocol::{self, MAX_DESCRIPTORS, Report};
use super::strays::{self, Membership};

/// First argument that turns the server's binary into the holder.
pub const SUBCOMMAND: &str = "sandbox-hold";
/// Where the binary is inside the sandbox.
pub const PROGRAM: &str = "/run/agent-server/agent-server";

/// Server to holder: the table of processes comes along, and the holder answers with the same byte when it is ready.
pub const READY: u8 = b'R';
/// Server to holder: start a supervisor on the three descriptors that come along.
pub const START: u8 = b'S';

/// How often the dead are waited for while there are supervisors; nobody waits for that.
const REAP_EVERY: Duration = Duration::from_millis(50);
/// While strays are being ended.
const ROUND: Duration = Duration::from_millis(10);
const EXIT_DONE: i32 = 0;
const EXIT_FAILED: i32 = 1;

/// Holds the sandbox until the server lets go; returns the exit code of this process.
pub fn run() -> i32 {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return EXIT_FAILED };
    let control = UnixStream::from(socket);
    match prepare(&control) {
        Ok(table) => Holder { control, table, supervisors: Vec::new(), strays: false }.serve(),
        Err(_) => EXIT_FAILED,
    }
}

/// Takes the table of processes, closes what is not needed and tells the server that the sandbox stands.
fn prepare(control: &UnixStream) -> std::io::Result<ProcessTable> {
    let mut order = [0];
    let (_, descriptors) = protocol::receive(control, &mut order)?;
    let table = descriptors.into_iter().next().ok_or(std::io::ErrorKind::InvalidData)?;
    let table = ProcessTable::new(table)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    protocol::send(control, &[READY], &[])?;
    Ok(table)
}

struct Holder {
    control: UnixStream,
    table: ProcessTable,
    supervisors: Vec<(Child, Membership)>,
    /// A supervisor was lost, so processes of its command may be children of this one.
    strays: bool,
}

impl Holder {
    fn serve(mut self) -> i32 {
        loop {
            if self.server_speaks() {
                let mut order = [0];
                match protocol::receive(&self.control, &mut order) {
                    Ok((1, descriptors)) if order == [START] => self.start(descriptors),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // With the end of this process the kernel ends everything in the sandbox.
                    _ => return EXIT_DONE,
                }
            }
            self.reap();
            if self.strays {
                self.strays = strays::kill_round(&self.table);
            }
        }
    }

    /// Waits for an order, or until it is time to look at the dead.
    fn server_speaks(&self) -> bool {
        let patience = match (self.strays, self.supervisors.is_empty()) {
            (true, _) => Some(ROUND),
            (false, false) => Some(REAP_EVERY),
            (false, true) => None,
        };
        let timeout = patience.map(|time| Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) });
        let mut watched = [PollFd::new(&self.control, PollFlags::IN)];
        poll(&mut watched, timeout.as_ref()).is_ok_and(|woken| woken > 0)
    }

    fn start(&mut self, descriptors: Vec<OwnedFd>) {
        let Ok([socket, stdout, stderr]) = <[OwnedFd; MAX_DESCRIPTORS]>::try_from(descriptors) else { return };
        let Ok(link) = socket.try_clone() else { return };
        let mut command = Command::new(PROGRAM);
        command.arg0("agent-server").arg(protocol::SUBCOMMAND).env_clear().current_dir("/");
        command.stdin(Stdio::from(socket)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        match strays::start_member(|| command.spawn(), |child| Some(child.id())) {
            Ok(supervisor) => self.supervisors.push(supervisor),
            Err(error) => {
                let report = Report::Failed(format!("its supervisor could not be started: {error}"));
                let _server_is_gone = protocol::send(&link, &report.line(), &[]);
            }
        }
    }

    /// Waits for supervisors and for orphans that are dead. The only waiter of this process.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let is_this = |child: &Child| child.id().cast_signed() == pid.as_raw_pid();
            if let Some(index) = self.supervisors.iter().position(|(child, _)| is_this(child)) {
                self.strays |= status.signaled();
                self.supervisors.swap_remove(index);
            }
        }
    }
}
