//! Attacks on the server from inside a command, each with the outcome that is expected in every kind of isolation.
//!
//! Owns how an attack is made and judged, and the tables in `docs/security.md`. Must not know how a sandbox is built: it
//! runs against the trait, from tests on a machine and in pods.

mod attacks;
mod network;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use attacks::{ATTACKS, CONTROLS, CONTROLS_OF_PROC};
pub use network::{Listeners, NETWORK_ATTACKS, NetworkAttack};

use super::{ExecEvent, ExecOutcome, ExecRequest, IsolationKind, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// What is there to attack.
#[derive(Debug, Clone)]
pub struct Target {
    /// Process id of the server.
    pub server: u32,
    /// What `/proc/self/ns/pid` of the server links to.
    pub process_namespace: String,
    /// A folder that only the server may use, with the file `session.jsonl` in it.
    pub state: PathBuf,
    /// A file that only the server may read.
    pub key: PathBuf,
    /// A file of the server's user outside of system and workspace, such as one of its home.
    pub foreign: PathBuf,
    /// A descriptor number on which the server holds the key open, not marked close-on-exec.
    pub descriptor: i32,
    /// Name of an abstract socket on which the server listens.
    pub abstract_socket: String,
    /// Path of a Unix socket on which another service listens, outside of the workspace.
    pub path_socket: PathBuf,
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
    /// The same, where a machine or a pod's own profile may refuse what the mode does not.
    OfTheKernel(fn(&Target) -> String),
    /// A command that uses up something until the sandbox ends it.
    Exhaust(&'static str),
    /// A command that leaves a process behind with an argument in place of each `@`, which begins with this number and
    /// is used by nobody else; it must be gone when the turn is.
    LeaveBehind(&'static str, u32),
}

/// The outcomes in each kind of isolation.
#[derive(Clone, Copy)]
struct Outcomes {
    bubblewrap: Outcome,
    landlock: Outcome,
    with_layer: Outcome,
    without_layer: Outcome,
}

/// One attack.
pub struct Attack {
    /// What it is, for the table.
    pub name: &'static str,
    outcomes: Outcomes,
    attempt: Attempt,
}

impl Attack {
    /// The outcome that this kind of isolation promises, for a server that runs as an ordinary user.
    pub fn expected(&self, kind: IsolationKind) -> Outcome {
        match kind {
            IsolationKind::Bubblewrap => self.outcomes.bubblewrap,
            IsolationKind::Landlock => self.outcomes.landlock,
            IsolationKind::DirectWithLandlockLayer => self.outcomes.with_layer,
            IsolationKind::None => self.outcomes.without_layer,
        }
    }

    /// Whether an observed outcome is what the kind of isolation promises.
    pub fn is_as_promised(&self, kind: IsolationKind, observed: Outcome) -> bool {
        let machine_refuses = matches!(self.attempt, Attempt::OfTheKernel(_)) && observed == Outcome::Refused;
        observed == self.expected(kind) || machine_refuses
    }
}

/// Runs the controls and gives those that did not succeed.
pub async fn failed_controls(sandbox: &dyn Sandbox) -> Result<Vec<&'static str>, SandboxError> {
    let mut failed = Vec::new();
    let may_lack_proc = sandbox.isolation().kind == IsolationKind::Bubblewrap;
    let has_proc = !may_lack_proc || attempt(sandbox, "[ -e /proc/self ]").await? == Outcome::Possible;
    let of_proc = if has_proc { CONTROLS_OF_PROC } else { &[] };
    for command in CONTROLS.iter().chain(of_proc) {
        if attempt(sandbox, command).await? != Outcome::Possible {
            failed.push(*command);
        }
    }
    Ok(failed)
}

/// Removes what attacks and controls leave in the workspace.
pub async fn tidy(sandbox: &dyn Sandbox) -> Result<(), SandboxError> {
    let command = "rm -rf large small linked by-link by-hard-link race mounted";
    run(sandbox, command, Duration::from_secs(20), &CancellationToken::new()).await.map(drop)
}

/// Makes one attack and tells how it ended.
pub async fn observe(sandbox: &dyn Sandbox, attack: &Attack, target: &Target) -> Result<Outcome, SandboxError> {
    match attack.attempt {
        Attempt::Try(command) | Attempt::OfTheKernel(command) => attempt(sandbox, &command(target)).await,
        Attempt::Exhaust(command) => {
            let outcome = run(sandbox, command, Duration::from_secs(3), &CancellationToken::new()).await?;
            let was_ended = matches!(outcome, Some(ExecOutcome::LimitExceeded(_) | ExecOutcome::TimedOut));
            Ok(if was_ended { Outcome::Ended } else { Outcome::Possible })
        }
        Attempt::LeaveBehind(command, number) => {
            let turn = CancellationToken::new();
            let argument = format!("{number}.{}", std::process::id());
            run(sandbox, &command.replace('@', &argument), Duration::from_secs(20), &turn).await?;
            turn.cancel();
            Ok(if is_gone(sandbox, &argument).await { Outcome::Ended } else { Outcome::Possible })
        }
    }
}

/// Runs a command that succeeds if the attack does.
async fn attempt(sandbox: &dyn Sandbox, command: &str) -> Result<Outcome, SandboxError> {
    let command = format!("{{ {command}; }} >/dev/null 2>&1");
    Ok(match run(sandbox, &command, Duration::from_secs(20), &CancellationToken::new()).await? {
        Some(ExecOutcome::Exited(0)) => Outcome::Possible,
        _ => Outcome::Refused,
    })
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
    let head = ["attack from inside a command", "bubblewrap", "landlock", "direct with landlock", "direct without"];
    let rows = ATTACKS.iter().map(|attack| {
        let Outcomes { bubblewrap, landlock, with_layer, without_layer } = attack.outcomes;
        let outcomes = [bubblewrap, landlock, with_layer, without_layer].map(|outcome| outcome.to_string());
        std::iter::once(attack.name.to_owned()).chain(outcomes).collect()
    });
    markdown(&head, rows)
}

/// The attacks on the network and their outcomes as a table in Markdown.
pub fn network_table() -> String {
    let head = ["attack from inside a command", "Isolated: bubblewrap", "Isolated: landlock", "Inherit"];
    let rows = NETWORK_ATTACKS.iter().map(|attack| {
        let inherited = if attack.leaves_the_machine() { "as far as the network lets it" } else { "**possible**" };
        [attack.name, "refused", "refused", inherited].map(String::from).to_vec()
    });
    markdown(&head, rows)
}

/// What the filter of system calls refuses, as a table in Markdown.
pub fn system_call_table() -> String {
    use super::system_calls::{REFUSED, REFUSED_BY_ARGUMENT};
    let names = REFUSED.iter().map(|(reason, calls)| {
        let calls: Vec<String> = calls.iter().map(|(name, _)| format!("`{name}`")).collect();
        vec![calls.join(", "), (*reason).to_owned()]
    });
    let by_argument = REFUSED_BY_ARGUMENT.iter().map(|(what, why)| vec![(*what).to_owned(), (*why).to_owned()]);
    markdown(&["refused", "because"], names.chain(by_argument))
}

fn markdown(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let first = line(head.iter().map(|cell| (*cell).to_owned()).collect()) + &line(vec!["---".into(); head.len()]);
    rows.fold(first, |table, row| table + &line(row))
}
