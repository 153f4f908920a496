//! What the sandbox really enforces, found out by trying it from inside.
//!
//! Owns the tries and the sentences about them. Must not decide what follows from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::landlock_layer::{Enforcement, LayerError, LayerRules};
use super::{ExecEvent, ExecOutcome, ExecRequest, Isolation, IsolationKind, Network, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// The reason word for commands that can read the server's secrets.
pub const SECRETS_READABLE: &str = "SecretsReadable";
/// The tries are a handful of opens by the shell itself.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Before the first try.
pub fn not_probed(kind: IsolationKind, network: Network) -> Isolation {
    Isolation { kind, network, probes: vec!["not probed yet".into()] }
}

/// Whether the kernel enforces the rules, tried on a thread that ends right after.
pub(super) async fn enforcement(rules: LayerRules) -> Result<Enforcement, LayerError> {
    let (answer, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // The receiver waits below; if its task is gone nobody asks any more.
        let _ = answer.send(rules.restrict_this_thread());
    });
    receiver.await.unwrap_or(Err(LayerError::NotEnforced("the probing thread ended early")))
}

/// Direct mode: tries from inside a command the hidden paths, the server's environment, a signal to the server. What
/// succeeds is reported.
pub(super) async fn direct(
    sandbox: &dyn Sandbox,
    enforcement: Result<Enforcement, LayerError>,
    hidden: &[PathBuf],
) -> Result<Isolation, SandboxError> {
    let mut tries = hidden_paths(hidden);
    tries.extend(on_the_server());
    let answers = try_from_inside(sandbox, tries).await?;
    let mut probes = vec![match &enforcement {
        Ok(Enforcement::Full) => "the landlock layer is enforced in full".into(),
        Ok(Enforcement::Partial) => {
            "the kernel is older than Linux 6.12: the landlock layer is enforced in part".into()
        }
        Err(error) => format!("the landlock layer is not in force: {error}"),
    }];
    let readable = answers.iter().any(|(what, possible)| *possible && what != SIGNAL);
    let kind = if enforcement.is_ok() && !readable {
        IsolationKind::DirectWithLandlockLayer
    } else {
        let sentence = "any file of the server's user is readable by commands, keys and sessions included";
        probes.push(format!("{SECRETS_READABLE}: {sentence}"));
        tracing::warn!(reason = SECRETS_READABLE, "{sentence}");
        IsolationKind::None
    };
    probes.extend(answers.into_iter().map(sentence));
    Ok(Isolation { kind, network: Network::Inherit, probes })
}

/// Isolated modes: what succeeds that must not is an error, since nothing weaker than promised may serve.
/// `signals_are_scoped` is false where the kernel is known to let signals pass, which is reported.
pub(super) async fn isolated(
    sandbox: &dyn Sandbox,
    mut probes: Vec<String>,
    hidden: &[PathBuf],
    signals_are_scoped: bool,
) -> Result<Isolation, SandboxError> {
    let Isolation { kind, network, .. } = sandbox.isolation();
    let mut tries = hidden_paths(hidden);
    if kind == IsolationKind::Bubblewrap {
        let own = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let same = format!("[ \"$(readlink /proc/self/ns/pid)\" = {} ]", quote(&own));
        tries.push(("sharing the server's processes".into(), same));
    } else {
        tries.extend(on_the_server());
    }
    tries.push(("making a namespace".into(), "unshare --user true".into()));
    tries.push(("writing to the system's folders".into(), ": >> /etc/passwd".into()));
    if network == Network::Isolated {
        // The address is one for documentation; opening sends nothing and needs only a route and a socket.
        tries.push(("reaching the network".into(), ": > /dev/udp/192.0.2.1/9".into()));
    }
    let answers = try_from_inside(sandbox, tries).await.map_err(|error| match error {
        SandboxError::Spawn(words) => {
            SandboxError::Unavailable(format!("{kind:?}: no command can be started here: {words}; use another mode"))
        }
        other => other,
    })?;
    let broken = answers.iter().find(|(what, possible)| *possible && (signals_are_scoped || what != SIGNAL));
    if let Some((what, _)) = broken {
        let message = format!("{kind:?} does not hold here: {what} is possible from inside; use another mode");
        return Err(SandboxError::Unavailable(message));
    }
    probes.extend(answers.into_iter().map(sentence));
    Ok(Isolation { kind, network, probes })
}

const POSSIBLE: &str = "possible";
const REFUSED: &str = "refused";
const SIGNAL: &str = "sending a signal to the server";

fn sentence((what, possible): (String, bool)) -> String {
    format!("{what}: {}", if possible { POSSIBLE } else { REFUSED })
}

/// What is tried, and the command that succeeds if it is possible.
type Try = (String, String);

fn hidden_paths(hidden: &[PathBuf]) -> Vec<Try> {
    let existing = hidden.iter().enumerate().filter(|(_, path)| path.exists());
    existing.map(|(index, path)| (format!("reading hidden path {}", index + 1), open_or_list(path))).collect()
}

fn open_or_list(path: &Path) -> String {
    if path.is_dir() { format!("ls {}", quote(path)) } else { format!(": < {}", quote(path)) }
}

fn on_the_server() -> [Try; 2] {
    let server = std::process::id();
    [
        ("reading the server's environment".into(), format!(": < /proc/{server}/environ")),
        (SIGNAL.into(), format!("kill -0 {server}")),
    ]
}

/// All of it in one command, so that a probe costs one start.
async fn try_from_inside(sandbox: &dyn Sandbox, tries: Vec<Try>) -> Result<Vec<(String, bool)>, SandboxError> {
    let script: Vec<String> = tries
        .iter()
        .map(|(_, command)| {
            format!("if {{ {command}; }} >/dev/null 2>&1; then echo {POSSIBLE}; else echo {REFUSED}; fi")
        })
        .collect();
    let output = run(sandbox, script.join("\n")).await?;
    let answers: Vec<&str> = output.lines().collect();
    if answers.len() != tries.len() || answers.iter().any(|answer| ![POSSIBLE, REFUSED].contains(answer)) {
        return Err(SandboxError::Unavailable("the probe of the sandbox gave no clear answer".into()));
    }
    Ok(tries.into_iter().map(|(what, _)| what).zip(answers.into_iter().map(|answer| answer == POSSIBLE)).collect())
}

async fn run(sandbox: &dyn Sandbox, command: String) -> Result<String, SandboxError> {
    let request = ExecRequest {
        command,
        working_directory: WorkspacePath::root(),
        environment: BTreeMap::new(),
        timeout: PROBE_TIMEOUT,
        max_output_bytes: 64 * 1024,
        cancel: CancellationToken::new(),
    };
    let mut events = sandbox.exec(request).await?;
    let mut output = Vec::new();
    while let Some(event) = events.recv().await {
        match event {
            ExecEvent::Output { bytes, .. } => output.extend_from_slice(&bytes),
            ExecEvent::Ended(end) if end.outcome == ExecOutcome::Exited(0) => break,
            ExecEvent::Ended(end) => {
                return Err(SandboxError::Unavailable(format!("the probe of the sandbox failed: {:?}", end.outcome)));
            }
        }
    }
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// A path as one word of the shell.
pub(super) fn quote(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_path_is_one_word_whatever_it_holds() {
        assert_eq!(quote(Path::new("/a b/$HOME/it's")), r"'/a b/$HOME/it'\''s'");
    }
}
