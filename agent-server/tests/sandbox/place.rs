//! A sandbox over fresh folders, and running one command in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_server::sandbox::environment::CommandEnvironment;
use agent_server::sandbox::limits::{CommandLimits, Limits, WorkspaceLimits};
use agent_server::sandbox::local::{LocalSandbox, LocalSettings};
use agent_server::sandbox::{
    ExecEnd, ExecEvent, ExecOutcome, ExecRequest, Network, OutputStream, Sandbox, bubblewrap, direct, landlock,
};
use agent_server::workspace::WorkspacePath;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// No single wait of a test is longer than this.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The implementations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Direct = 1,
    Landlock,
    Bubblewrap,
}

impl Mode {
    /// A number for `sleep` that no other mode's test uses at the same time.
    pub fn seconds(self, number: u32) -> String {
        seconds(number + self as u32 * 1000)
    }
}

/// A number for `sleep` that no other run of these tests uses at the same time.
pub fn seconds(number: u32) -> String {
    format!("{number}.{}", std::process::id())
}

/// Folders of one test; they are outside `/tmp`, which commands may write as a whole only if nothing hidden is in it.
pub struct Place {
    /// Holds `workspace` and `state`.
    pub folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self::within(Path::new("/var/tmp"))
    }

    pub fn within(folder: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-test-").tempdir_in(folder).unwrap();
        for name in ["workspace", "state", "home"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("state/session.jsonl"), "the secret\n").unwrap();
        std::fs::write(folder.path().join("model-key"), "the key\n").unwrap();
        Self { folder }
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    pub fn hidden(&self) -> Vec<PathBuf> {
        vec![self.folder.path().join("state"), self.folder.path().join("model-key")]
    }

    /// The workspace as commands of a mode see it.
    pub fn shown(&self, mode: Mode) -> String {
        match mode {
            Mode::Bubblewrap => bubblewrap::ROOT.into(),
            Mode::Direct | Mode::Landlock => self.workspace().display().to_string(),
        }
    }

    pub fn settings(&self, mode: Mode) -> LocalSettings {
        LocalSettings {
            root: self.workspace(),
            program: env!("CARGO_BIN_EXE_agent-server").into(),
            hidden: self.hidden(),
            readable: Vec::new(),
            writable: vec!["/tmp".into()],
            environment: CommandEnvironment::new(std::env::vars_os(), Some(&self.shown(mode)), None),
            limits: limits(64, 512),
        }
    }

    pub async fn sandbox(&self, mode: Mode) -> LocalSandbox {
        self.with_network(mode, Network::Inherit).await
    }

    pub async fn with_network(&self, mode: Mode, network: Network) -> LocalSandbox {
        start(mode, self.settings(mode), network).await.unwrap()
    }
}

pub async fn start(
    mode: Mode,
    settings: LocalSettings,
    network: Network,
) -> Result<LocalSandbox, agent_server::sandbox::SandboxError> {
    match mode {
        Mode::Direct => direct::start(settings, true).await,
        Mode::Landlock => landlock::start(settings, network).await,
        Mode::Bubblewrap => bubblewrap::start(settings, network).await,
    }
}

/// Limits with this many processes and MiB of memory for a command, and twice as much for all.
pub fn limits(processes: usize, mebibytes: u64) -> Limits {
    Limits {
        command: CommandLimits {
            processes,
            memory_bytes: Some(mebibytes << 20),
            file_size_bytes: 64 << 20,
            output_bytes: 2 << 30,
        },
        workspace: WorkspaceLimits { processes: 2 * processes, memory_bytes: Some(mebibytes << 21) },
    }
}

pub fn request(command: &str) -> ExecRequest {
    ExecRequest {
        command: command.into(),
        working_directory: WorkspacePath::root(),
        environment: BTreeMap::new(),
        timeout: PATIENCE,
        max_output_bytes: 1 << 20,
        cancel: CancellationToken::new(),
    }
}

/// What a finished command gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub stdout: String,
    pub stderr: String,
    pub outcome: ExecOutcome,
    pub dropped_bytes: u64,
}

pub async fn collect(mut events: mpsc::Receiver<ExecEvent>) -> (Finished, ExecEnd) {
    let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
    let all = async {
        while let Some(event) = events.recv().await {
            assert_eq!(end, None, "`Ended` is the last event");
            match event {
                ExecEvent::Output { stream: OutputStream::Stdout, bytes } => stdout.extend_from_slice(&bytes),
                ExecEvent::Output { stream: OutputStream::Stderr, bytes } => stderr.extend_from_slice(&bytes),
                ExecEvent::Ended(value) => end = Some(value),
            }
        }
    };
    tokio::time::timeout(PATIENCE * 2, all).await.expect("the command ends within the test's patience");
    let end = end.expect("`Ended` comes before the channel closes");
    let finished = Finished {
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        outcome: end.outcome.clone(),
        dropped_bytes: end.dropped_bytes,
    };
    (finished, end)
}

pub async fn run_request(sandbox: &dyn Sandbox, request: ExecRequest) -> (Finished, ExecEnd) {
    collect(sandbox.exec(request).await.unwrap()).await
}

pub async fn run(sandbox: &dyn Sandbox, command: &str) -> Finished {
    run_request(sandbox, request(command)).await.0
}

/// Waits for a condition with a limit.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether any process has this text among its arguments.
pub fn runs(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    })
}
