//! The hidden subcommand `sandbox-exec`: turns this process into the supervisor of one command.
//!
//! Owns the set-up between the server's spawn and the shell's start. Must not know the asynchronous runtime: it runs
//! before that exists, so that a command starts within a few milliseconds.
//!
//! The supervisor stays outside the command's landlock domain, because a process inside may signal and trace others
//! inside. Landlock restricts single threads, so one thread restricts itself, starts the shell and ends; the shell
//! inherits the thread's restrictions and the supervisor's main thread has none.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::capabilities;
use super::protocol::{Orders, Report, SUBCOMMAND};
use super::supervisor::{self, ServerLink};

/// The call does not have the form that the server uses (`EX_USAGE`).
const EXIT_USAGE: i32 = 64;
/// The shell could not be started; the report says why.
const EXIT_FAILED: i32 = 1;
/// Commands give way to the server and to their own supervisor, which has to keep up with them. On Linux the value belongs
/// to a thread and what it starts. A difference of 10 is a factor of 9 in time when both want the processor.
const COMMAND_NICENESS: i32 = 10;
/// First descriptor that is none of the standard ones.
const FIRST_EXTRA_DESCRIPTOR: i32 = 3;

/// Runs the supervisor and exits if the arguments of this process ask for it; else returns at once.
///
/// Must be the first thing in `main`: no runtime, no threads, no logging before it.
pub fn run_if_requested() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != SUBCOMMAND) {
        return;
    }
    let texts: Option<Vec<String>> = arguments.map(|argument| argument.into_string().ok()).collect();
    let code = match texts.as_deref() {
        Some([orders, command]) => run(orders, command),
        _ => EXIT_USAGE,
    };
    std::process::exit(code)
}

fn run(orders: &str, command: &str) -> i32 {
    // Standard input is the socket to the server. The copy is close-on-exec, and the shell gets the null device.
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return EXIT_USAGE };
    let mut server = ServerLink::new(UnixStream::from(socket));
    let Ok(orders) = serde_json::from_str::<Orders>(orders) else { return EXIT_USAGE };
    match start(&orders, command) {
        Ok(shell) => {
            server.report(&Report::Started);
            supervisor::supervise(server, shell, &orders.limits)
        }
        Err(message) => {
            server.report(&Report::Failed(message));
            EXIT_FAILED
        }
    }
}

/// Prepares this process and starts the shell; the error is a sentence for the caller of the command.
fn start(orders: &Orders, command: &str) -> Result<Pid, String> {
    close_fds::CloseFdsBuilder::new().cloexecfrom(FIRST_EXTRA_DESCRIPTOR);
    // A session of its own: no terminal, and no process group shared with the server.
    rustix::process::setsid().map_err(|error| format!("session: {error}"))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("subreaper: {error}"))?;
    orders.limits.apply_to_this_process().map_err(|error| format!("limits: {error}"))?;
    let own_score = raise_oom_score()?;
    let shell = start_shell(orders, command);
    restore_oom_score(&own_score)?;
    // Only the command holds the output now, so that the server sees the end of it.
    let null = std::fs::File::options().write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| format!("output: {error}"))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| format!("output: {error}"))?;
    shell
}

/// Starts the shell from a thread that has given up what the command must not have.
fn start_shell(orders: &Orders, command: &str) -> Result<Pid, String> {
    std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            capabilities::give_up_on_this_thread().map_err(|error| format!("capabilities: {error}"))?;
            match &orders.layer {
                Some(layer) => layer.restrict_this_thread().map(|_| ()).map_err(|error| error.to_string())?,
                None => rustix::thread::set_no_new_privs(true).map_err(|error| format!("no_new_privs: {error}"))?,
            }
            rustix::process::setpriority_process(None, COMMAND_NICENESS)
                .map_err(|error| format!("niceness: {error}"))?;
            let child = Command::new(&orders.shell)
                .arg0("bash")
                .args(["-c", command])
                .stdin(Stdio::null())
                .process_group(0)
                .spawn()
                .map_err(|error| format!("{}: {error}", orders.shell.display()))?;
            // The supervisor waits for all of its children by itself, so the handle is let go.
            Ok(Pid::from_child(&child))
        });
        restricted.join().unwrap_or_else(|_| Err("the starting thread panicked".into()))
    })
}

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Makes the kernel prefer what is started from here on when memory runs out. Raising needs no privilege.
fn raise_oom_score() -> Result<String, String> {
    let own = std::fs::read_to_string(OOM_SCORE).map_err(|error| format!("{OOM_SCORE}: {error}"))?;
    std::fs::write(OOM_SCORE, "1000").map_err(|error| format!("{OOM_SCORE}: {error}"))?;
    Ok(own)
}

/// Returns to the former score: allowed without privilege down to the value that was set by a privileged process.
fn restore_oom_score(own: &str) -> Result<(), String> {
    std::fs::write(OOM_SCORE, own.trim()).map_err(|error| format!("{OOM_SCORE}: {error}"))
}
