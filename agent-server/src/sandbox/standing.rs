//! The standing sandbox of bubblewrap mode: one set of namespaces for a whole run of the workspace.
//!
//! Owns building it, handing commands into it, noticing its end and building it anew. Must not know what is mounted where,
//! or what a command is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::CancellationToken;

use super::SandboxError;
use super::holder::{READY, START};
use super::process_tree::ProcessTable;
use super::protocol;
use super::running_command::SupervisorEnds;
use super::strays;

/// Building takes tens of milliseconds; on a machine that swaps it may take seconds.
const BUILD_TIMEOUT: Duration = Duration::from_secs(20);
/// Its end: the kernel ends the processes of a namespace at once.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// What is kept of bubblewrap's own words.
const MAX_WORDS: usize = 2000;
/// What the first command in a sandbox that was built anew is told.
const REBUILT: &str = "the sandbox had ended and was built anew: background processes and files in /tmp are gone, the workspace is as it was";

/// What builds a sandbox: a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Builder {
    /// bubblewrap.
    pub program: PathBuf,
    /// All arguments.
    pub arguments: Vec<std::ffi::OsString>,
}

/// One sandbox at a time, built anew when it is lost.
pub struct StandingSandbox {
    builder: Builder,
    table: OwnedFd,
    current: Mutex<Option<Running>>,
}

struct Running {
    control: UnixStream,
    /// Cancelled when bubblewrap has ended.
    ended: CancellationToken,
}

impl StandingSandbox {
    /// Builds the first one. The error holds bubblewrap's words.
    pub async fn build(builder: Builder) -> Result<Self, String> {
        let table = ProcessTable::open_own().map_err(|error| format!("/proc: {error}"))?;
        let running = Running::build(&builder, table.as_fd()).await?;
        Ok(Self { builder, table, current: Mutex::new(Some(running)) })
    }

    /// The table of processes that supervisors inside look into.
    pub fn table(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Starts a supervisor inside. The answer is a notice if the sandbox had to be built anew for that.
    pub async fn start(&self, ends: SupervisorEnds) -> Result<Option<String>, SandboxError> {
        let mut current = self.current.lock().await;
        let lives = current.as_ref().is_some_and(|running| !running.ended.is_cancelled());
        if lives
            && let Some(running) = current.as_ref()
            && running.start(&ends).await.is_ok()
        {
            return Ok(None);
        }
        tracing::warn!("the standing sandbox has ended and is built anew");
        let running = Running::build(&self.builder, self.table()).await.map_err(SandboxError::Unavailable)?;
        let started = running.start(&ends).await;
        *current = Some(running);
        started.map_err(|error| SandboxError::Spawn(format!("the sandbox does not answer: {:?}", error.kind())))?;
        Ok(Some(REBUILT.into()))
    }

    /// Ends the sandbox with everything in it, and waits for that.
    pub async fn end(&self) {
        let Some(running) = self.current.lock().await.take() else { return };
        let Running { control, ended } = running;
        drop(control);
        if tokio::time::timeout(END_TIMEOUT, ended.cancelled()).await.is_err() {
            tracing::error!("the standing sandbox did not end");
        }
    }
}

impl Running {
    async fn build(builder: &Builder, table: BorrowedFd<'_>) -> Result<Self, String> {
        let io = |error: std::io::Error| format!("sockets: {error}");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(io)?;
        let (words, their_words) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| format!("pipe: {error}"))?;
        let mut command = std::process::Command::new(&builder.program);
        command.args(&builder.arguments).env_clear().current_dir("/");
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::from(their_words));
        let ended = CancellationToken::new();
        let process = hold(command, ended.clone()).await.map_err(|error| {
            format!("{} cannot be started: {}", builder.program.display(), super::running_command::describe(&error))
        })?;
        // The table waits in the socket until the holder reads it. A builder that is gone is noticed below.
        let _ = protocol::send(&ours, &[READY], &[table]);
        ours.set_nonblocking(true).map_err(io)?;
        let control = UnixStream::from_std(ours).map_err(io)?;
        let running = Self { control, ended };
        match tokio::time::timeout(BUILD_TIMEOUT, running.is_ready()).await {
            Ok(true) => Ok(running),
            Ok(false) => Err(last_words(words).await),
            Err(_) => {
                // Nothing else is to be done about a process that does not take this.
                let _ = pidfd_send_signal(&process, Signal::KILL);
                Err(format!("the sandbox was not ready after {BUILD_TIMEOUT:?}"))
            }
        }
    }

    async fn is_ready(&self) -> bool {
        let mut answer = [0];
        let read = self.control.async_io(Interest::READABLE, || Ok(protocol::receive(&self.control, &mut answer)?.0));
        read.await.is_ok_and(|count| count == 1) && answer == [READY]
    }

    async fn start(&self, ends: &SupervisorEnds) -> std::io::Result<()> {
        let descriptors = [ends.socket.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()];
        self.control.async_io(Interest::WRITABLE, || protocol::send(&self.control, &[START], &descriptors)).await?;
        Ok(())
    }
}

/// Starts the command on a thread that lives as long as it: bubblewrap is told to die with its parent, and to the kernel
/// that is the thread.
async fn hold(mut command: std::process::Command, ended: CancellationToken) -> std::io::Result<OwnedFd> {
    let (answer, started) = oneshot::channel();
    std::thread::Builder::new().name("sandbox-holder".into()).spawn(move || {
        let spawned = strays::start_member(|| command.spawn(), |child| Some(child.id()));
        // The descriptors that were meant for the child.
        drop(command);
        match spawned {
            Ok((mut child, _membership)) => {
                let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
                // Who asked may be gone; then the closed socket ends the sandbox.
                let _ = answer.send(process.map_err(std::io::Error::from));
                // An error means that there is nothing to wait for.
                let _ = child.wait();
            }
            Err(error) => drop(answer.send(Err(error))),
        }
        ended.cancel();
    })?;
    started.await.unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()))
}

/// What bubblewrap said before it ended.
async fn last_words(words: OwnedFd) -> String {
    use tokio::io::AsyncReadExt as _;
    let mut text = Vec::new();
    if let Ok(pipe) = tokio::net::unix::pipe::Receiver::from_owned_fd(words) {
        // An error ends the words, and so does a helper that holds the pipe open for too long.
        let _ = tokio::time::timeout(Duration::from_secs(1), pipe.take(MAX_WORDS as u64).read_to_end(&mut text)).await;
    }
    let text = String::from_utf8_lossy(&text).trim().replace('\n', "; ");
    if text.is_empty() { "it ended without a word".into() } else { text }
}
