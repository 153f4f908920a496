//! A sandbox whose commands run on this machine: what the modes have in common.
//!
//! Owns the way from a request to a followed command. Must not know which restrictions a mode asks for, or why.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::process::DumpableBehavior;
use tokio::process::Command;
use tokio::sync::mpsc;

use super::environment::CommandEnvironment;
use super::limits::Limits;
use super::protocol::{MAX_COMMAND_BYTES, Orders, SUBCOMMAND};
use super::registry::Registry;
use super::restrictions::Restrictions;
use super::running_command::{Channels, END_TIMEOUT, RunningCommand, SupervisorEnds, describe, event_channel};
use super::standing::StandingSandbox;
use super::strays::{self, Supervisor};
use super::{ExecEvent, ExecRequest, Isolation, Sandbox, SandboxError};

/// The binary that runs now, also after its file was replaced.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// What every mode is made of.
#[derive(Debug, Clone)]
pub struct LocalSettings {
    /// The workspace, a real path.
    pub root: PathBuf,
    /// The server's own binary, which has the hidden subcommands; `THIS_PROGRAM` but in tests.
    pub program: PathBuf,
    /// Files and folders that commands must not see: state, keys, tokens. They need not exist yet.
    pub hidden: Vec<PathBuf>,
    /// Files and folders besides the system that commands of isolated modes may read.
    pub readable: Vec<PathBuf>,
    /// Folders besides the workspace below which commands may write, where files are the machine's own.
    pub writable: Vec<PathBuf>,
    /// Variables of commands.
    pub environment: CommandEnvironment,
    /// Limits of commands.
    pub limits: Limits,
}

/// Where the supervisors of commands run.
pub(super) enum Place {
    /// On the machine, as children of the server.
    Machine {
        /// Program with the subcommand `sandbox-exec`.
        program: PathBuf,
    },
    /// Inside a standing sandbox, where the workspace has another path.
    Standing {
        /// The sandbox.
        sandbox: StandingSandbox,
        /// The workspace inside.
        root: PathBuf,
    },
}

/// Runs commands on this machine.
pub struct LocalSandbox {
    root: Dir,
    place: Place,
    shell: PathBuf,
    restrictions: Restrictions,
    limits: Limits,
    environment: CommandEnvironment,
    pub(super) isolation: Isolation,
    registry: Registry,
}

impl LocalSandbox {
    /// Opens the workspace and finds bash; `isolation` is what holds until it is probed.
    ///
    /// Also makes this process non-dumpable, so that processes of the same user cannot read its memory and environment
    /// even where landlock is missing (the kernel then wants `CAP_SYS_PTRACE`), and a child subreaper, for the processes
    /// of a command whose supervisor is lost.
    pub(super) fn new(
        settings: &LocalSettings,
        place: Place,
        restrictions: Restrictions,
        isolation: Isolation,
    ) -> Result<Self, SandboxError> {
        let unavailable = |what: &str, error: rustix::io::Errno| SandboxError::Unavailable(format!("{what}: {error}"));
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| unavailable("prctl(PR_SET_DUMPABLE)", error))?;
        strays::adopt_orphans().map_err(|error| unavailable("prctl(PR_SET_CHILD_SUBREAPER)", error))?;
        let root = Dir::open_ambient_dir(&settings.root, ambient_authority())
            .map_err(|error| SandboxError::Unavailable(format!("workspace folder: {:?}", error.kind())))?;
        let shell = find_shell(&settings.environment, matches!(place, Place::Standing { .. }))?;
        Ok(Self {
            root,
            place,
            shell,
            restrictions,
            limits: settings.limits,
            environment: settings.environment.clone(),
            isolation,
            registry: Registry::new(settings.limits.workspace),
        })
    }

    fn orders(&self, request: &ExecRequest) -> Result<Orders, SandboxError> {
        if request.command.len() > MAX_COMMAND_BYTES {
            let message =
                format!("the command is longer than {MAX_COMMAND_BYTES} bytes; write it to a file and run that");
            return Err(SandboxError::Spawn(message));
        }
        if request.command.contains('\0') {
            return Err(SandboxError::Spawn("the command holds a NUL byte".into()));
        }
        let environment = self.environment.for_command(&request.environment);
        let environment = environment.map_err(|error| SandboxError::Unavailable(error.to_string()))?;
        let directory = match &self.place {
            Place::Machine { .. } => None,
            Place::Standing { root, .. } => Some(root.join(request.working_directory.as_str())),
        };
        Ok(Orders {
            shell: self.shell.clone(),
            restrictions: self.restrictions.clone(),
            limits: self.limits.command,
            command: request.command.clone(),
            environment,
            directory,
        })
    }

    async fn start(&self, orders: &Orders, directory: &Dir) -> Result<(RunningCommand, Option<String>), SandboxError> {
        let (channels, ends) = Channels::new()?;
        match &self.place {
            Place::Machine { program } => {
                let supervisor = start_here(program, ends, directory)?;
                Ok((RunningCommand::start(channels, Some(supervisor), orders, None).await?, None))
            }
            Place::Standing { sandbox, .. } => {
                let notice = sandbox.start(ends).await?;
                let running = RunningCommand::start(channels, None, orders, Some(sandbox.table())).await?;
                Ok((running, notice))
            }
        }
    }
}

/// Starts a supervisor as a child of this process.
fn start_here(program: &Path, ends: SupervisorEnds, directory: &Dir) -> Result<Supervisor, SandboxError> {
    let mut command = Command::new(program);
    command
        .arg0("agent-server")
        .arg(SUBCOMMAND)
        .env_clear()
        .stdin(Stdio::from(ends.socket))
        .stdout(Stdio::from(ends.stdout))
        .stderr(Stdio::from(ends.stderr))
        // The child resolves this through its own copy of the descriptor, so no path is looked up twice.
        .current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    strays::start_supervisor(&mut command).map_err(|error| SandboxError::Spawn(describe(&error)))
}

#[async_trait::async_trait]
impl Sandbox for LocalSandbox {
    fn isolation(&self) -> Isolation {
        self.isolation.clone()
    }

    async fn exec(&self, request: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError> {
        let directory = self
            .root
            .open_dir(request.working_directory.as_str())
            .map_err(|_| SandboxError::WorkingDirectory(request.working_directory.clone()))?;
        let orders = self.orders(&request)?;
        let registration = self.registry.register();
        let (running, notice) = self.start(&orders, &directory).await?;
        let (events, receiver) = event_channel();
        tokio::spawn(running.follow(request, events, registration, notice));
        Ok(receiver)
    }

    fn limits(&self) -> Option<Limits> {
        Some(self.limits)
    }

    fn running(&self) -> usize {
        self.registry.len()
    }

    async fn stop_all(&self) {
        self.registry.stop_all();
        let limit = END_TIMEOUT + Duration::from_secs(1);
        if tokio::time::timeout(limit, self.registry.empty()).await.is_err() {
            tracing::error!(running = self.running(), "commands still run after stop");
        }
        if let Place::Standing { sandbox, .. } = &self.place {
            sandbox.end().await;
        }
    }
}

/// The first bash in the `PATH` of commands; inside a sandbox only one that is there too.
fn find_shell(environment: &CommandEnvironment, system_only: bool) -> Result<PathBuf, SandboxError> {
    let variables = environment.for_command(&BTreeMap::new());
    let variables = variables.map_err(|error| SandboxError::Unavailable(error.to_string()))?;
    let path = variables.get("PATH").map_or("", String::as_str);
    let is_executable = |file: &Path| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file();
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("bash"))
        .find(|file| is_executable(file) && (!system_only || super::system_folders::contains(file)))
        .ok_or_else(|| SandboxError::Unavailable("bash is not in PATH; install it".into()))
}
