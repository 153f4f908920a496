//! Command execution: the trait, its request and its events.
//!
//! Owns what running a command means in every runtime mode. Must not know HTTP, tools, files or the model.

pub mod bubblewrap;
mod capabilities;
pub mod conformance;
pub mod direct;
pub mod environment;
pub mod helper;
mod holder;
pub mod landlock;
mod landlock_layer;
pub mod limits;
pub mod local;
mod output;
pub mod probe;
pub mod process_tree;
pub(crate) mod protocol;
mod registry;
mod restrictions;
mod running_command;
mod standing;
mod strays;
mod supervisor;
pub mod system_calls;
mod system_folders;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::workspace::WorkspacePath;

/// One command for the shell.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// Text for `bash -c`.
    pub command: String,
    /// Directory inside the workspace.
    pub working_directory: WorkspacePath,
    /// Variables on top of the sandbox's allow-list; the caller's own choice, filtered by name all the same.
    pub environment: BTreeMap<String, String>,
    /// After this the whole tree gets TERM, then KILL after 2 s.
    pub timeout: Duration,
    /// Bytes of output per stream that are passed on; the rest is counted and dropped.
    pub max_output_bytes: u64,
    /// Cancelling ends the whole tree like the timeout, also the background processes that outlived the shell. Hand in
    /// the turn's token and cancel it when the turn ends.
    pub cancel: CancellationToken,
}

/// Which stream an output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What happens while a command runs. The last event is always `Ended`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Output in order of arrival.
    Output {
        /// Stream.
        stream: OutputStream,
        /// Bytes as written; may end inside a character.
        bytes: Bytes,
    },
    /// The shell is gone. After a timeout, a stop or a passed limit its whole tree is gone too; after an ordinary end
    /// processes that it left in the background may still run (`Sandbox::running`).
    Ended(ExecEnd),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEnd {
    /// The outcome.
    pub outcome: ExecOutcome,
    /// Bytes dropped because of `max_output_bytes`.
    pub dropped_bytes: u64,
    /// Wall-clock time.
    pub duration: Duration,
    /// Processes that the command left in the background still run.
    pub others_run: bool,
    /// What happened to the sandbox since the last command, for the caller of this one.
    pub notice: Option<String>,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutcome {
    /// Exited with a code.
    Exited(i32),
    /// Killed by a signal that we did not send.
    Signaled(i32),
    /// Ran into its timeout.
    TimedOut,
    /// Cancelled by the caller.
    Stopped,
    /// A named limit ended it.
    LimitExceeded(String),
}

/// What really separates commands from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum IsolationKind {
    /// Nothing: secrets of the server's user are readable.
    None,
    /// Direct mode with the landlock layer that hides keys, state and token folders.
    DirectWithLandlockLayer,
    /// Landlock rules that name what may be read and written, and a filter of system calls.
    Landlock,
    /// Namespaces, a root of its own and a filter of system calls.
    Bubblewrap,
}

/// What commands reach of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Everything that the server reaches.
    Inherit,
    /// Nothing; in bubblewrap a loopback device of its own.
    Isolated,
}

/// Report of what the sandbox enforces, as probed at start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Isolation {
    /// Kind.
    pub kind: IsolationKind,
    /// Network.
    pub network: Network,
    /// One sentence per thing probed.
    pub probes: Vec<String>,
}

/// Why a command could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox cannot be had; the message names cause and remedy.
    #[error("sandbox unavailable: {0}")]
    Unavailable(String),
    /// The working directory does not exist inside the workspace.
    #[error("working directory {0} does not exist")]
    WorkingDirectory(WorkspacePath),
    /// The process could not be started.
    #[error("command could not be started: {0}")]
    Spawn(String),
}

/// Runs commands.
#[async_trait::async_trait]
pub trait Sandbox: Send + Sync {
    /// What it enforces.
    fn isolation(&self) -> Isolation;
    /// Starts a command; events arrive on the receiver until `Ended`. Dropping the receiver ends the command's tree.
    async fn exec(&self, request: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError>;
    /// What commands may use; `None` where nothing is limited by this server.
    fn limits(&self) -> Option<limits::Limits> {
        None
    }
    /// Commands of which any process still runs, in the foreground or left in the background.
    fn running(&self) -> usize;
    /// Ends everything that runs; used at shutdown.
    async fn stop_all(&self);
}
