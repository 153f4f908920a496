//! Attacks on the server from inside a command, each with the outcome that is expected in every kind of isolation.
//!
//! Owns the list of attacks and the table in `docs/security.md` that is made from it. Must not know how a sandbox is
//! built: it runs against the trait, from tests on a machine and in pods.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::probe::quote;
use super::{ExecEvent, ExecOutcome, ExecRequest, IsolationKind, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// What is there to attack.
#[derive(Debug, Clone)]
pub struct Target {
    /// Process id of the server.
    pub server: u32,
    /// A folder that only the server may use, with the file `session.jsonl` in it.
    pub state: PathBuf,
    /// A file that only the server may read.
    pub key: PathBuf,
    /// A descriptor number on which the server holds the key open, not marked close-on-exec.
    pub descriptor: i32,
    /// Name of an abstract socket on which the server listens.
    pub abstract_socket: String,
    /// A text that stands in the server's environment and nowhere else.
    pub planted: String,
}

/// How an attack ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel refuses it.
    Refused,
    /// It succeeds.
    Possible,
    /// It begins, and the sandbox ends it with all its processes.
    Ended,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Refused => "refused",
            Self::Possible => "**possible**",
            Self::Ended => "ended",
        })
    }
}

/// How an attack is made.
#[derive(Clone, Copy)]
enum Attempt {
    /// A command that succeeds if the attack does.
    Try(fn(&Target) -> String),
    /// A command that uses up something until the sandbox ends it.
    Exhaust(&'static str),
    /// A command that leaves a process with this argument behind; it must be gone when the turn is.
    LeaveBehind(&'static str, &'static str),
}

/// One attack.
pub struct Attack {
    /// What it is, for the table.
    pub name: &'static str,
    attempt: Attempt,
    with_layer: Outcome,
    without_layer: Outcome,
}

impl Attack {
    /// Whether it works by a namespace of its own (`can_make_namespaces`).
    pub fn needs_namespace(&self) -> bool {
        self.name.contains("in a namespace")
    }

    /// The outcome that this kind of isolation promises, for a server that runs as an ordinary user.
    pub fn expected(&self, kind: IsolationKind) -> Outcome {
        match kind {
            IsolationKind::DirectWithLandlockLayer => self.with_layer,
            IsolationKind::None => self.without_layer,
        }
    }
}

use Attempt::{Exhaust, LeaveBehind, Try};
use Outcome::{Ended, Possible, Refused};

/// Every attack.
pub const ATTACKS: &[Attack] = &[
    attack("read the server's environment", Refused, Refused, Try(|at| open(&server(at, "environ")))),
    attack("read the server's memory", Refused, Refused, Try(|at| open(&server(at, "mem")))),
    attack(
        "open the server's open files",
        Refused,
        Refused,
        Try(|at| open(&server(at, &format!("fd/{}", at.descriptor)))),
    ),
    attack("reach files through the server's root", Refused, Refused, Try(|at| open(&server(at, "root/etc/passwd")))),
    attack(
        "read the environment of all processes",
        Refused,
        Refused,
        Try(|at| format!("grep -qs -- {} /proc/[0-9]*/environ", quote(Path::new(&at.planted)))),
    ),
    attack(
        "find a secret in its own environment",
        Refused,
        Refused,
        Try(|at| format!("env | grep -q -- {}", quote(Path::new(&at.planted)))),
    ),
    attack(
        "use a descriptor that the server left open",
        Refused,
        Refused,
        Try(|at| format!("read -r line <&{}", at.descriptor)),
    ),
    attack("read the model key", Refused, Possible, Try(|at| open(&at.key))),
    attack("list the state folder", Refused, Possible, Try(|at| format!("ls {}", quote(&at.state)))),
    attack("read a session", Refused, Possible, Try(|at| open(&session(at)))),
    attack(
        "plant a file in the state folder",
        Refused,
        Possible,
        Try(|at| format!(": > {}", quote(&at.state.join("planted")))),
    ),
    attack(
        "read a session through a symbolic link",
        Refused,
        Possible,
        Try(|at| format!("ln -sf {} by-link && {}", quote(&session(at)), open(Path::new("by-link")))),
    ),
    attack(
        "read the model key through a hard link",
        Refused,
        Possible,
        Try(|at| format!("ln -f {} by-hard-link && {}", quote(&at.key), open(Path::new("by-hard-link")))),
    ),
    attack(
        "read the model key through /proc/self/root",
        Refused,
        Possible,
        Try(|at| open(&PathBuf::from(format!("/proc/self/root{}", at.key.display())))),
    ),
    attack(
        "read the model key in a namespace with a mount of its own",
        Refused,
        Possible,
        Try(|at| {
            let script =
                format!("mkdir -p mounted && mount --bind {} mounted && : < mounted/session.jsonl", quote(&at.state));
            format!("unshare --user --map-root-user --mount bash -c {}", quote(Path::new(&script)))
        }),
    ),
    attack("send a signal to the server", Refused, Possible, Try(|at| format!("kill -0 {}", at.server))),
    attack("send a signal to its own supervisor", Refused, Possible, Try(|_| "kill -0 $PPID".into())),
    attack(
        "connect to an abstract socket of the server",
        Refused,
        Possible,
        Try(|at| {
            let program = "import socket, sys; socket.socket(socket.AF_UNIX).connect(chr(0) + sys.argv[1])";
            format!("python3 -c {} {}", quote(Path::new(program)), quote(Path::new(&at.abstract_socket)))
        }),
    ),
    attack(
        "gain privileges by a setuid program",
        Refused,
        Refused,
        Try(|_| "grep -q 'NoNewPrivs:.0' /proc/self/status".into()),
    ),
    attack("write a file over the size limit", Refused, Refused, Try(|_| "head -c 200M /dev/zero > large".into())),
    attack(
        "start processes without end",
        Ended,
        Ended,
        Exhaust(
            // At most 2^9 processes, so that the test is harmless where the limit does not work.
            "b() { [ $1 = 0 ] || { b $(($1-1)) & b $(($1-1)) & sleep 20; }; }; b 9",
        ),
    ),
    attack(
        "take memory without end",
        Ended,
        Ended,
        Exhaust("python3 -c 'import time; x = b\"x\" * (400 << 20); time.sleep(20)'"),
    ),
    attack("run for ever", Ended, Ended, Exhaust("trap '' TERM; while :; do sleep 1; done")),
    attack("leave a process behind", Ended, Ended, LeaveBehind("sleep 86420 &", "86420")),
    attack(
        "leave a process behind in a session of its own",
        Ended,
        Ended,
        LeaveBehind("setsid -f sleep 86421", "86421"),
    ),
    attack(
        "leave a process behind that ignores the end",
        Ended,
        Ended,
        LeaveBehind("setsid -f bash -c 'trap \"\" TERM HUP; sleep 86422; :' 86422", "86422"),
    ),
];

/// Commands that must succeed: they use the means of the attacks on something that is allowed, so that an attack is not
/// refused for want of a program.
pub const CONTROLS: &[&str] = &[
    ": < /proc/self/environ",
    ": < /proc/self/mem",
    ": < /proc/self/fd/0",
    ": < /proc/self/root/etc/passwd",
    "grep -qs -- PATH= /proc/self/environ",
    "env | grep -q PATH=",
    "kill -0 $$",
    "python3 -c 'import socket'",
    "unshare --version && setsid true && head -c 1M /dev/zero > small && ln -f small linked && ln -sf small by-link",
    "d=$(mktemp -d) && touch $d/a && mkdir $d/b && mv $d/a $d/b/ && rm -r $d",
    "echo x > /dev/null && cat /etc/passwd && ls /usr/bin && ls /proc/self",
];

const fn attack(name: &'static str, with_layer: Outcome, without_layer: Outcome, attempt: Attempt) -> Attack {
    Attack { name, attempt, with_layer, without_layer }
}

fn open(path: &Path) -> String {
    format!(": < {}", quote(path))
}

fn server(at: &Target, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", at.server))
}

fn session(at: &Target) -> PathBuf {
    at.state.join("session.jsonl")
}

/// Whether commands may make namespaces of their own here; where not, every attack by one is refused without a layer too.
pub async fn can_make_namespaces(sandbox: &dyn Sandbox) -> Result<bool, SandboxError> {
    let command = "unshare --user --map-root-user --mount true";
    let outcome = run(sandbox, command, Duration::from_secs(20), &CancellationToken::new()).await?;
    Ok(outcome == Some(ExecOutcome::Exited(0)))
}

/// Runs the controls and gives those that did not succeed.
pub async fn failed_controls(sandbox: &dyn Sandbox) -> Result<Vec<&'static str>, SandboxError> {
    let mut failed = Vec::new();
    for command in CONTROLS {
        let outcome = run(sandbox, command, Duration::from_secs(20), &CancellationToken::new()).await?;
        if outcome != Some(ExecOutcome::Exited(0)) {
            failed.push(*command);
        }
    }
    Ok(failed)
}

/// Makes one attack and tells how it ended.
pub async fn observe(sandbox: &dyn Sandbox, attack: &Attack, target: &Target) -> Result<Outcome, SandboxError> {
    match attack.attempt {
        Try(command) => {
            let command = format!("{{ {}; }} >/dev/null 2>&1", command(target));
            Ok(match run(sandbox, &command, Duration::from_secs(20), &CancellationToken::new()).await? {
                Some(ExecOutcome::Exited(0)) => Possible,
                _ => Refused,
            })
        }
        Exhaust(command) => {
            let outcome = run(sandbox, command, Duration::from_secs(3), &CancellationToken::new()).await?;
            let was_ended = matches!(outcome, Some(ExecOutcome::LimitExceeded(_) | ExecOutcome::TimedOut));
            Ok(if was_ended { Ended } else { Possible })
        }
        LeaveBehind(command, argument) => {
            let turn = CancellationToken::new();
            run(sandbox, command, Duration::from_secs(20), &turn).await?;
            turn.cancel();
            Ok(if is_gone(sandbox, argument).await { Ended } else { Possible })
        }
    }
}

async fn run(
    sandbox: &dyn Sandbox,
    command: &str,
    timeout: Duration,
    turn: &CancellationToken,
) -> Result<Option<ExecOutcome>, SandboxError> {
    let request = ExecRequest {
        command: command.into(),
        working_directory: WorkspacePath::root(),
        environment: BTreeMap::new(),
        timeout,
        max_output_bytes: 0,
        cancel: turn.clone(),
    };
    let mut events = sandbox.exec(request).await?;
    while let Some(event) = events.recv().await {
        if let ExecEvent::Ended(end) = event {
            return Ok(Some(end.outcome));
        }
    }
    Ok(None)
}

/// Waits at most 15 s (2 s for TERM, 10 s for KILL, the rest for a slow machine) until no process has the argument.
async fn is_gone(sandbox: &dyn Sandbox, argument: &str) -> bool {
    for _ in 0..150 {
        if sandbox.running() == 0 && !super::process_tree::runs_with_argument(argument) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// The attacks and their outcomes as a table in Markdown.
pub fn table() -> String {
    let head = ["attack from inside a command", "direct with landlock", "direct without"].map(String::from);
    let line = ["---"; 3].map(String::from);
    let rows = ATTACKS
        .iter()
        .map(|attack| [attack.name.to_owned(), attack.with_layer.to_string(), attack.without_layer.to_string()]);
    let rows = [head, line].into_iter().chain(rows).map(|cells| format!("| {} |", cells.join(" | ")));
    rows.collect::<Vec<_>>().join("\n") + "\n"
}
