//! Direct mode: a command is a plain process tree of the server's user, behind the landlock layer where the kernel has it.
//!
//! Owns the choice of rules and environment for one command. Must not know tools, HTTP or the workspace's files.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::process::DumpableBehavior;
use tokio::process::Command;
use tokio::sync::mpsc;

use super::environment::CommandEnvironment;
use super::landlock_layer::{LayerError, LayerRules};
use super::limits::CommandLimits;
use super::probe;
use super::protocol::{MAX_COMMAND_BYTES, Orders, SUBCOMMAND};
use super::registry::Registry;
use super::running_command::{END_TIMEOUT, RunningCommand, event_channel};
use super::strays;
use super::{ExecEvent, ExecRequest, Isolation, Sandbox, SandboxError};

/// What a direct sandbox is made of.
#[derive(Debug, Clone)]
pub struct DirectSettings {
    /// The workspace, a real path.
    pub root: PathBuf,
    /// Program with the subcommand `sandbox-exec`; the server's own binary.
    pub supervisor: PathBuf,
    /// Files and folders that commands must not see: state, keys, tokens. They need not exist yet.
    pub hidden: Vec<PathBuf>,
    /// Folders besides the workspace below which commands may write.
    pub writable: Vec<PathBuf>,
    /// Whether to use the landlock layer where the kernel has it. Without it `isolation` says `None`.
    pub use_landlock: bool,
    /// Variables of commands.
    pub environment: CommandEnvironment,
    /// Limits of each command.
    pub limits: CommandLimits,
}

impl DirectSettings {
    /// The binary that runs now, also after its file was replaced.
    pub const THIS_PROGRAM: &str = "/proc/self/exe";
}

/// Runs commands in direct mode.
pub struct DirectSandbox {
    root: Dir,
    orders: Orders,
    supervisor: PathBuf,
    environment: CommandEnvironment,
    isolation: Isolation,
    registry: Registry,
}

impl DirectSandbox {
    /// Opens the workspace, finds bash, and finds out by trying what the layer really keeps from commands.
    ///
    /// Also makes this process non-dumpable, so that processes of the same user cannot read its memory and environment
    /// even where landlock is missing (the kernel then wants `CAP_SYS_PTRACE`), and a child subreaper, for the processes
    /// of a command whose supervisor is lost.
    pub async fn start(settings: DirectSettings) -> Result<Self, SandboxError> {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| SandboxError::Unavailable(format!("prctl(PR_SET_DUMPABLE): {error}")))?;
        strays::adopt_orphans()
            .map_err(|error| SandboxError::Unavailable(format!("prctl(PR_SET_CHILD_SUBREAPER): {error}")))?;
        let root = Dir::open_ambient_dir(&settings.root, ambient_authority())
            .map_err(|error| SandboxError::Unavailable(format!("workspace folder: {:?}", error.kind())))?;
        let variables = settings.environment.for_command(&std::collections::BTreeMap::new());
        let variables = variables.map_err(|error| SandboxError::Unavailable(error.to_string()))?;
        let shell = find_program("bash", variables.get("PATH").map_or("", String::as_str))
            .ok_or_else(|| SandboxError::Unavailable("bash is not in PATH; install it".into()))?;
        let mut writable = settings.writable;
        writable.push(settings.root);
        let rules = LayerRules { hidden: settings.hidden, writable };
        let enforcement = if settings.use_landlock {
            probe::enforcement(rules.clone()).await
        } else {
            Err(LayerError::NotEnforced("switched off by the settings"))
        };
        let layer = enforcement.is_ok().then(|| rules.clone());
        let mut sandbox = Self {
            root,
            orders: Orders { shell, layer, limits: settings.limits },
            supervisor: settings.supervisor,
            environment: settings.environment,
            isolation: probe::not_probed(),
            registry: Registry::new(),
        };
        sandbox.isolation = probe::isolation(&sandbox, enforcement, &rules.hidden).await?;
        if sandbox.orders.layer.is_some() {
            sandbox.isolation.probes.extend(rules.narrowed().map(|folder| {
                format!(
                    "{}: commands cannot add files directly in it, because something hidden lies below",
                    folder.display()
                )
            }));
        }
        Ok(sandbox)
    }

    fn supervisor_command(&self, request: &ExecRequest, directory: &Dir) -> Result<Command, SandboxError> {
        if request.command.len() > MAX_COMMAND_BYTES {
            let message =
                format!("the command is longer than {MAX_COMMAND_BYTES} bytes; write it to a file and run that");
            return Err(SandboxError::Spawn(message));
        }
        if request.command.contains('\0') {
            return Err(SandboxError::Spawn("the command holds a NUL byte".into()));
        }
        let variables = self.environment.for_command(&request.environment);
        let variables = variables.map_err(|error| SandboxError::Unavailable(error.to_string()))?;
        let orders = serde_json::to_string(&self.orders)
            .map_err(|_| SandboxError::Unavailable("a path of the sandbox's settings is not UTF-8".into()))?;
        let mut command = Command::new(&self.supervisor);
        command
            .arg0("agent-server")
            .args([SUBCOMMAND, &orders, &request.command])
            .env_clear()
            .envs(variables)
            // The child resolves this through its own copy of the descriptor, so no path is looked up twice.
            .current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(command)
    }
}

#[async_trait::async_trait]
impl Sandbox for DirectSandbox {
    fn isolation(&self) -> Isolation {
        self.isolation.clone()
    }

    async fn exec(&self, request: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError> {
        let directory = self
            .root
            .open_dir(request.working_directory.as_str())
            .map_err(|_| SandboxError::WorkingDirectory(request.working_directory.clone()))?;
        let command = self.supervisor_command(&request, &directory)?;
        let registration = self.registry.register();
        let running = RunningCommand::start(command).await?;
        let (events, receiver) = event_channel();
        tokio::spawn(running.follow(request, events, registration));
        Ok(receiver)
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
    }
}

/// The first executable file of that name in a `PATH`.
fn find_program(name: &str, path: &str) -> Option<PathBuf> {
    let is_executable = |file: &Path| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file();
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}
