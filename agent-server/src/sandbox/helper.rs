//! The hidden subcommands of the server's binary: the supervisor of one command (`sandbox-exec`), and the holder of a
//! standing sandbox (`sandbox-hold`).
//!
//! Owns the set-up between the server's spawn and the shell's start. Must not know the asynchronous runtime: it runs
//! before that exists, so that a command starts within a few milliseconds.
//!
//! The supervisor stays outside the command's landlock domain, because a process inside may signal and trace others
//! inside. Landlock restricts single threads, so one thread restricts itself, starts the shell and ends; the shell
//! inherits the thread's restrictions and the supervisor's main thread has none.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use rustix::process::{DumpableBehavior, Pid};

use super::holder;
use super::process_tree::ProcessTable;
use super::protocol::{Orders, Report, SUBCOMMAND, receive_orders};
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

/// Runs a hidden subcommand and exits if the arguments of this process ask for one; else returns at once.
///
/// Must be the first thing in `main`: no runtime, no threads, no logging before it.
pub fn run_if_requested() {
    let code = match std::env::args_os().nth(1).as_deref().and_then(|first| first.to_str()) {
        Some(SUBCOMMAND) => run(),
        Some(holder::SUBCOMMAND) => holder::run(),
        _ => return,
    };
    std::process::exit(code)
}

fn run() -> i32 {
    // Standard input is the socket to the server. The copy is close-on-exec, and the shell gets the null device.
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return EXIT_USAGE };
    let socket = UnixStream::from(socket);
    let Ok((orders, table)) = receive_orders(&socket) else { return EXIT_USAGE };
    let mut server = ServerLink::new(socket);
    let table = table.map_or_else(ProcessTable::of_this_machine, ProcessTable::new);
    let started = table.map_err(|error| format!("table of processes: {error}")).and_then(|table| {
        let shell = start(&orders, &table)?;
        Ok((table, shell))
    });
    match started {
        Ok((table, shell)) => {
            server.report(&Report::Started);
            supervisor::supervise(server, table, shell, &orders.limits)
        }
        Err(message) => {
            server.report(&Report::Failed(message));
            EXIT_FAILED
        }
    }
}

/// Prepares this process and starts the shell; the error is a sentence for the caller of the command.
fn start(orders: &Orders, table: &ProcessTable) -> Result<Pid, String> {
    close_fds::CloseFdsBuilder::new().cloexecfrom(FIRST_EXTRA_DESCRIPTOR);
    // A session of its own: no terminal, and no process group shared with the server.
    rustix::process::setsid().map_err(|error| format!("session: {error}"))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("subreaper: {error}"))?;
    orders.limits.apply_to_this_process(table).map_err(|error| format!("limits: {error}"))?;
    let own_score = raise_oom_score(table)?;
    let shell = start_shell(orders);
    write_oom_score(table, own_score.trim())?;
    // A second line behind landlock and the filter of system calls: the files of this process in `/proc` are closed now.
    // Not before, because the score is one of them.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("dumpable: {error}"))?;
    // Only the command holds the output now, so that the server sees the end of it.
    let null = std::fs::File::options().write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| format!("output: {error}"))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| format!("output: {error}"))?;
    shell
}

/// Starts the shell from a thread that has given up what the command must not have.
fn start_shell(orders: &Orders) -> Result<Pid, String> {
    std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            rustix::process::setpriority_process(None, COMMAND_NICENESS)
                .map_err(|error| format!("niceness: {error}"))?;
            orders.restrictions.apply_to_this_thread()?;
            let mut command = Command::new(&orders.shell);
            command.arg0("bash").args(["-c", &orders.command]).stdin(Stdio::null()).process_group(0);
            command.env_clear().envs(&orders.environment);
            if let Some(directory) = &orders.directory {
                command.current_dir(directory);
            }
            let child = command.spawn().map_err(|error| format!("{}: {error}", orders.shell.display()))?;
            // The supervisor waits for all of its children by itself, so the handle is let go.
            Ok(Pid::from_child(&child))
        });
        restricted.join().unwrap_or_else(|_| Err("the starting thread panicked".into()))
    })
}

const OOM_SCORE: &str = "self/oom_score_adj";

/// Makes the kernel prefer what is started from here on when memory runs out. Raising needs no privilege.
fn raise_oom_score(table: &ProcessTable) -> Result<String, String> {
    let own = table.read(OOM_SCORE).map_err(|error| format!("{OOM_SCORE}: {error}"))?;
    write_oom_score(table, "1000")?;
    Ok(own)
}

/// Returning to the former score is allowed without privilege, down to the value that a privileged process set.
fn write_oom_score(table: &ProcessTable, score: &str) -> Result<(), String> {
    let opened = table.open(OOM_SCORE, OFlags::WRONLY);
    opened
        .and_then(|file| std::fs::File::from(file).write_all(score.as_bytes()))
        .map_err(|error| format!("{OOM_SCORE}: {error}"))
}
