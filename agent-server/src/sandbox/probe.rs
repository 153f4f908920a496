//! What the sandbox really enforces, found out by trying it from inside.
//!
//! Owns the tries and the sentences about them. Must not decide what follows from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::landlock_layer::{Enforcement, LayerError, LayerRules};
use super::{ExecEvent, ExecOutcome, ExecRequest, Isolation, IsolationKind, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// The reason word for commands that can read the server's secrets.
pub const SECRETS_READABLE: &str = "SecretsReadable";
/// The tries are a handful of opens by the shell itself.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Before the first try.
pub fn not_probed() -> Isolation {
    Isolation { kind: IsolationKind::None, probes: vec!["not probed yet".into()] }
}

/// Whether the kernel enforces the rules, tried on a thread that ends right after.
pub async fn enforcement(rules: LayerRules) -> Result<Enforcement, LayerError> {
    let (answer, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // The receiver waits below; if its task is gone nobody asks any more.
        let _ = answer.send(rules.restrict_this_thread());
    });
    receiver.await.unwrap_or(Err(LayerError::NotEnforced("the probing thread ended early")))
}

/// Tries from inside a command: the hidden paths, the server's environment, a signal to the server.
pub async fn isolation(
    sandbox: &dyn Sandbox,
    enforcement: Result<Enforcement, LayerError>,
    hidden: &[PathBuf],
) -> Result<Isolation, SandboxError> {
    let answers = try_from_inside(sandbox, hidden).await?;
    let mut probes = vec![match &enforcement {
        Ok(Enforcement::Full) => "the landlock layer is enforced in full".into(),
        Ok(Enforcement::Partial) => {
            "the kernel is older than Linux 6.12: the landlock layer is enforced in part".into()
        }
        Err(error) => format!("the landlock layer is not in force: {error}"),
    }];
    let readable = answers.iter().any(|(what, answer)| what != SIGNAL && answer == POSSIBLE);
    let kind = if enforcement.is_ok() && !readable {
        IsolationKind::DirectWithLandlockLayer
    } else {
        let sentence = "any file of the server's user is readable by commands, keys and sessions included";
        probes.push(format!("{SECRETS_READABLE}: {sentence}"));
        tracing::warn!(reason = SECRETS_READABLE, "{sentence}");
        IsolationKind::None
    };
    probes.extend(answers.into_iter().map(|(what, answer)| format!("{what}: {answer}")));
    Ok(Isolation { kind, probes })
}

const POSSIBLE: &str = "possible";
const REFUSED: &str = "refused";
const SIGNAL: &str = "sending a signal to the server";

/// Only builtins of the shell, so that a probe costs one start and no more.
async fn try_from_inside(sandbox: &dyn Sandbox, hidden: &[PathBuf]) -> Result<Vec<(String, String)>, SandboxError> {
    let server = std::process::id();
    let mut tries: Vec<(String, String)> = hidden
        .iter()
        .enumerate()
        .filter(|(_, path)| path.exists())
        .map(|(index, path)| (format!("reading hidden path {}", index + 1), format!(": < {}", quote(path))))
        .collect();
    tries.push(("reading the server's environment".into(), format!(": < /proc/{server}/environ")));
    tries.push((SIGNAL.into(), format!("kill -0 {server}")));
    let script: Vec<String> = tries
        .iter()
        .map(|(_, command)| format!("if {{ {command}; }} 2>/dev/null; then echo {POSSIBLE}; else echo {REFUSED}; fi"))
        .collect();
    let output = run(sandbox, script.join("\n")).await?;
    let answers: Vec<&str> = output.lines().collect();
    if answers.len() != tries.len() {
        return Err(SandboxError::Unavailable("the probe of the sandbox gave no clear answer".into()));
    }
    Ok(tries.into_iter().map(|(what, _)| what).zip(answers.into_iter().map(String::from)).collect())
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
