//! Figures of the sandbox modes, each in one run against plain execution: start of a command, build of the standing
//! sandbox, many commands at once, throughput of output, the end of a tree.
//!
//! Uses the product's library, since no route runs a bare command; the supervisor is the release binary.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_server::sandbox::environment::CommandEnvironment;
use agent_server::sandbox::limits::WantedLimits;
use agent_server::sandbox::local::{LocalSandbox, LocalSettings};
use agent_server::sandbox::{
    ExecEvent, ExecOutcome, ExecRequest, Network, Sandbox, SandboxError, bubblewrap, direct, landlock,
};
use agent_server::workspace::WorkspacePath;
use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::{Figure, Goal, milliseconds, resident_mebibytes};

/// Starts of each mode, by turns.
const STARTS: usize = 200;
const BUILDS: usize = 20;
/// Commands at once, as the goal is stated.
const AT_ONCE: usize = 100;
const FLOODS: usize = 3;
/// Enough for a second of output at the goal's rate.
const FLOOD_BYTES: u64 = 1 << 30;
const ENDS: usize = 100;
/// Files of a tree like that of a package manager, as the goal is stated, and how often it is written in each mode.
const FILES: usize = 50_000;
const TREES: usize = 3;
/// No command of this bench runs longer.
const PATIENCE: Duration = Duration::from_secs(120);

struct Place {
    folder: tempfile::TempDir,
    binary: std::path::PathBuf,
}

impl Place {
    fn settings(&self) -> LocalSettings {
        let root = self.folder.path().join("workspace");
        LocalSettings {
            environment: CommandEnvironment::new(std::env::vars_os(), root.to_str(), None),
            root,
            program: self.binary.clone(),
            hidden: vec![self.folder.path().join("state")],
            readable: Vec::new(),
            writable: vec!["/tmp".into()],
            limits: WantedLimits::default().with_defaults(),
        }
    }

    async fn sandboxes(&self) -> Result<[(&'static str, LocalSandbox); 3], SandboxError> {
        Ok([
            ("direct", direct::start(self.settings(), true).await?),
            ("landlock", landlock::start(self.settings(), Network::Inherit).await?),
            ("bubblewrap", bubblewrap::start(self.settings(), Network::Inherit).await?),
        ])
    }
}

fn request(command: &str) -> ExecRequest {
    ExecRequest {
        command: command.into(),
        working_directory: WorkspacePath::root(),
        environment: BTreeMap::new(),
        timeout: PATIENCE,
        max_output_bytes: 0,
        cancel: CancellationToken::new(),
    }
}

async fn outcome(sandbox: &LocalSandbox, request: ExecRequest) -> anyhow::Result<ExecOutcome> {
    let mut events = sandbox.exec(request).await?;
    while let Some(event) = events.recv().await {
        if let ExecEvent::Ended(end) = event {
            return Ok(end.outcome);
        }
    }
    bail!("the command was lost")
}

/// Time of a command that must succeed.
async fn timed(sandbox: &LocalSandbox, command: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    match outcome(sandbox, request(command)).await? {
        ExecOutcome::Exited(0) => Ok(begin.elapsed()),
        other => bail!("{command}: {other:?}"),
    }
}

async fn plain(command: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    tokio::process::Command::new("bash").args(["-c", command]).output().await?;
    Ok(begin.elapsed())
}

/// Runs all figures of the sandboxes.
pub async fn run(binary: &Path) -> anyhow::Result<Vec<Figure>> {
    let folder = tempfile::Builder::new().prefix("sandbox-bench-").tempdir_in("/var/tmp")?;
    for name in ["workspace", "state"] {
        std::fs::create_dir(folder.path().join(name))?;
    }
    let binary = std::fs::canonicalize(binary).with_context(|| format!("{}", binary.display()))?;
    let place = Place { folder, binary };
    let sandboxes = place.sandboxes().await?;
    let mut figures = starts(&sandboxes).await?;
    figures.push(builds(&place).await?);
    figures.extend(trees(&sandboxes).await?);
    for (mode, sandbox) in &sandboxes {
        figures.push(at_once(mode, sandbox).await?);
        figures.extend(floods(mode, sandbox).await?);
        figures.push(ends(mode, sandbox).await?);
    }
    for (_, sandbox) in &sandboxes {
        sandbox.stop_all().await;
    }
    Ok(figures)
}

/// By turns, so that a disturbance of the machine meets all of them.
async fn starts(sandboxes: &[(&'static str, LocalSandbox); 3]) -> anyhow::Result<Vec<Figure>> {
    let (mut plains, mut directs, mut over) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..STARTS {
        plains.push(milliseconds(plain(":").await?));
        let direct = milliseconds(timed(&sandboxes[0].1, ":").await?);
        directs.push(direct);
        for (index, (_, sandbox)) in sandboxes[1..].iter().enumerate() {
            over[index].push(milliseconds(timed(sandbox, ":").await?) - direct);
        }
    }
    let [landlock, bubblewrap] = over;
    Ok(vec![
        Figure::new("command `:`, plain bash", "ms", plains, Goal::MedianAtMost(10.0)),
        Figure::new("command `:`, direct", "ms", directs, Goal::MedianAtMost(10.0)),
        Figure::new("command `:`, landlock over direct", "ms", landlock, Goal::MedianAtMost(3.0)),
        Figure::new("command `:`, bubblewrap over direct", "ms", bubblewrap, Goal::MedianAtMost(3.0)),
    ])
}

/// Speed of writing and removing a tree of small files, by that of direct mode; by turns too.
async fn trees(sandboxes: &[(&'static str, LocalSandbox); 3]) -> anyhow::Result<Vec<Figure>> {
    let program = format!(
        "import os, shutil\nfor d in range(500):\n os.makedirs(f'tree/{{d % 50}}/{{d}}')\n \
         for f in range({}):\n  open(f'tree/{{d % 50}}/{{d}}/{{f}}', 'w').write('x' * 500)\nshutil.rmtree('tree')",
        FILES / 500
    );
    let command = format!("python3 -c \"{program}\"");
    let mut speeds = [Vec::new(), Vec::new()];
    for _ in 0..TREES {
        let direct = timed(&sandboxes[0].1, &command).await?.as_secs_f64();
        for (index, (_, sandbox)) in sandboxes[1..].iter().enumerate() {
            speeds[index].push(direct / timed(sandbox, &command).await?.as_secs_f64());
        }
    }
    let [landlock, bubblewrap] = speeds;
    let figure = |mode, speeds| {
        Figure::new(format!("{FILES} files, {mode}: speed by direct's"), "x", speeds, Goal::MedianAtLeast(0.9))
    };
    Ok(vec![figure("landlock", landlock), figure("bubblewrap", bubblewrap)])
}

async fn builds(place: &Place) -> anyhow::Result<Figure> {
    let mut times = Vec::new();
    for _ in 0..BUILDS {
        let begin = Instant::now();
        let sandbox = bubblewrap::start(place.settings(), Network::Inherit).await?;
        times.push(milliseconds(begin.elapsed()));
        sandbox.stop_all().await;
    }
    Ok(Figure::new("bubblewrap: build of the sandbox, probes included", "ms", times, Goal::MedianAtMost(60.0)))
}

/// How much longer the last of many equal commands takes than the median one: 1 is perfectly fair.
async fn at_once(mode: &str, sandbox: &LocalSandbox) -> anyhow::Result<Figure> {
    let command = "i=0; while ((i < 20000)); do ((i += 1)); done";
    let all = futures::future::join_all((0..AT_ONCE).map(|_| timed(sandbox, command))).await;
    let mut times = all.into_iter().map(|time| time.map(milliseconds)).collect::<anyhow::Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let spread = times.iter().map(|time| time / median).collect();
    Ok(Figure::new(
        format!("{AT_ONCE} commands at once, {mode}: time by the median"),
        "x",
        spread,
        Goal::MaxAtMost(2.0),
    ))
}

async fn floods(mode: &str, sandbox: &LocalSandbox) -> anyhow::Result<[Figure; 2]> {
    let command = format!("head -c {FLOOD_BYTES} /dev/zero");
    let (mut rates, mut grown) = (Vec::new(), Vec::new());
    for _ in 0..FLOODS {
        let before = resident_mebibytes(std::process::id())?;
        let taken = timed(sandbox, &command).await?;
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let megabytes = FLOOD_BYTES as f64 / 1e6;
        rates.push(megabytes / taken.as_secs_f64());
        grown.push((resident_mebibytes(std::process::id())? - before).max(0.0));
    }
    Ok([
        Figure::new(format!("output, {mode}"), "MB/s", rates, Goal::MedianAtLeast(500.0)),
        Figure::new(format!("output, {mode}: memory grown by 1 GiB of it"), "MiB", grown, Goal::MaxAtMost(8.0)),
    ])
}

/// From the stop to the moment when nothing of the tree runs.
async fn ends(mode: &str, sandbox: &LocalSandbox) -> anyhow::Result<Figure> {
    let mut times = Vec::new();
    for _ in 0..ENDS {
        let request = request("sleep 1000 & setsid sleep 1000 & echo up; sleep 1000");
        let request = ExecRequest { max_output_bytes: 100, ..request };
        let cancel = request.cancel.clone();
        let mut events = sandbox.exec(request).await?;
        events.recv().await.context("no output")?;
        let begin = Instant::now();
        cancel.cancel();
        while let Some(event) = events.recv().await {
            if let ExecEvent::Ended(end) = event {
                anyhow::ensure!(end.outcome == ExecOutcome::Stopped, "{end:?}");
                times.push(milliseconds(begin.elapsed()));
            }
        }
    }
    Ok(Figure::new(format!("stop to all processes gone, {mode}"), "ms", times, Goal::TailAtMost(200.0)))
}
