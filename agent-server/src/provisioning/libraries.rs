//! Python libraries: an environment of its own for each list of them, and an overlay `.venv` where commands may add more.
//!
//! Owns the script that makes both, and how its end is judged. It runs in the sandbox as any command does, so libraries whose
//! installation runs code of theirs see and write no more than commands. Must not know how commands are run.
//!
//! `.boring-agent/python/<hash>-<python version>` holds the list and is made anew when it lacks its mark of completion; `current`
//! leads to it. `.venv` sees the system's packages and, by a path file, those of `current`; what was installed into it stays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::config::Requirement;
use crate::sandbox::{ExecEvent, ExecOutcome, ExecRequest, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// Longest installation: large libraries over a slow network.
const TIMEOUT: Duration = Duration::from_secs(1_800);
/// Output that is read; pip says little without its progress bar.
const MAX_OUTPUT: u64 = 8 << 20;
/// Longest line that is shown, in characters.
const MAX_LINE: usize = 300;
/// What the script's own lines begin with.
const STEP: &str = "==> ";

/// What to install.
#[derive(Debug, Clone, Default)]
pub struct PythonLibraries {
    /// Sorted, each once.
    pub requirements: Vec<Requirement>,
    /// `PATH` of the server, so that the system's Python is found and not the overlay's.
    pub system_path: String,
}

/// Why the libraries are not there.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The command could not be run.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The script failed; the line that says why, if it may be shown.
    #[error("{0}")]
    Script(String),
    /// Too slow.
    #[error("not installed within {} s", TIMEOUT.as_secs())]
    TimedOut,
    /// A limit of commands, a signal or a stop.
    #[error("the installation was ended: {0}")]
    Ended(String),
}

impl PythonLibraries {
    /// Installs what is missing. `report` hears what is being done.
    pub async fn install(&self, sandbox: &dyn Sandbox, report: &(dyn Fn(&str) + Sync)) -> Result<(), LibraryError> {
        let request = ExecRequest {
            command: self.script(),
            working_directory: WorkspacePath::root(),
            environment: BTreeMap::from([("PATH".into(), self.system_path.clone())]),
            timeout: TIMEOUT,
            max_output_bytes: MAX_OUTPUT,
            cancel: CancellationToken::new(),
        };
        let mut events = sandbox.exec(request).await?;
        let mut lines = Lines::default();
        while let Some(event) = events.recv().await {
            match event {
                ExecEvent::Output { bytes, .. } => lines.take(&bytes, report),
                ExecEvent::Ended(end) => {
                    lines.take(b"\n", report);
                    return match end.outcome {
                        ExecOutcome::Exited(0) => Ok(()),
                        ExecOutcome::Exited(code) => Err(LibraryError::Script(lines.failure(code))),
                        ExecOutcome::TimedOut => Err(LibraryError::TimedOut),
                        ExecOutcome::Signaled(signal) => Err(LibraryError::Ended(format!("signal {signal}"))),
                        ExecOutcome::Stopped => Err(LibraryError::Ended("stopped".into())),
                        ExecOutcome::LimitExceeded(limit) => Err(LibraryError::Ended(limit)),
                    };
                }
            }
        }
        Err(LibraryError::Ended("its end is unknown".into()))
    }

    fn hash(&self) -> String {
        let mut digest = Sha256::new();
        for requirement in &self.requirements {
            digest.update(requirement.as_str());
            digest.update("\n");
        }
        digest.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        })
    }

    /// Requirements hold nothing that a shell takes for more than text within single quotes.
    fn script(&self) -> String {
        let quoted: Vec<_> = self.requirements.iter().map(|one| format!("'{}'", one.as_str())).collect();
        SCRIPT.replace("@HASH@", &self.hash()).replace("@REQUIREMENTS@", &quoted.join(" "))
    }
}

/// Lines of output: steps are reported, all are logged, the last error is kept.
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
    error: Option<String>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], report: &(dyn Fn(&str) + Sync)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.pending.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
            let line: String = line.trim().chars().take(MAX_LINE).collect();
            if let Some(step) = line.strip_prefix(STEP) {
                report(step);
                tracing::info!(step, "libraries");
            } else if !line.is_empty() {
                tracing::debug!(line, "libraries");
            }
            if let Some(error) = line.strip_prefix("ERROR: ") {
                tracing::warn!(error, "libraries");
                self.error = Some(error.to_owned());
            }
        }
    }

    /// Readiness is public, so a line with an address or a path stays in the log.
    fn failure(&self, code: i32) -> String {
        match &self.error {
            Some(error) if !error.contains('/') => error.clone(),
            _ => format!("the installation ended with code {code}; the server's log says more"),
        }
    }
}

/// Each step can be cut off: an environment without its mark is made anew, links are replaced in one step.
const SCRIPT: &str = r#"set -eu
fail() { printf 'ERROR: %s\n' "$1"; exit 1; }
command -v python3 > /dev/null || fail 'python3 is not in PATH; install it with its module venv'
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
own=$PWD/.boring-agent
python=$own/python
environment=$python/@HASH@-$version
packages=lib/python$version/site-packages
mkdir -p "$python"
[ -e "$own/.gitignore" ] || printf '*\n' > "$own/.gitignore"
[ ! -f pip.conf ] || export PIP_CONFIG_FILE=$PWD/pip.conf
# The mark names the place, since an environment cannot be moved.
if [ "$(cat "$environment/complete" 2> /dev/null)" != "$environment" ]; then
  rm -rf "$environment"
  echo '==> making the Python environment'
  python3 -m venv "$environment" || fail 'python3 -m venv failed; install its module venv'
  echo '==> installing Python libraries'
  "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir --progress-bar off \
    -- @REQUIREMENTS@ 2>&1
  printf '%s\n' "$environment" > "$environment/complete.new"
  sync -f "$environment"
  mv "$environment/complete.new" "$environment/complete"
fi
if [ ! -d ".venv/$packages" ] || ! .venv/bin/python -c '' 2> /dev/null; then
  echo '==> making the overlay .venv'
  python3 -m venv --system-site-packages .venv || fail 'python3 -m venv failed; install its module venv'
fi
if [ "$(cat ".venv/$packages/boring-agent.pth" 2> /dev/null)" != "$environment/$packages" ]; then
  printf '%s\n' "$environment/$packages" > ".venv/$packages/boring-agent.pth.new"
  mv ".venv/$packages/boring-agent.pth.new" ".venv/$packages/boring-agent.pth"
fi
if [ "$(readlink "$python/current")" != "$environment" ]; then
  ln -sfn "$environment" "$python/current.new"
  mv -T "$python/current.new" "$python/current"
fi
for old in "$python"/*; do
  case $old in "$environment" | "$python/current") ;; *) rm -rf "$old" ;; esac
done
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_requirements;

    fn libraries(text: &str) -> PythonLibraries {
        PythonLibraries { requirements: parse_requirements(text).expect("valid"), system_path: "/usr/bin".into() }
    }

    #[test]
    fn the_order_of_a_list_does_not_matter_and_a_version_does() {
        assert_eq!(libraries("b a").hash(), libraries("a b a").hash());
        assert_ne!(libraries("a b").hash(), libraries("a b==1").hash());
        assert_ne!(libraries("a b").hash(), libraries("ab").hash());
    }

    #[test]
    fn every_requirement_is_quoted() {
        assert!(libraries("numpy>=2,<3 a").script().contains("    -- 'a' 'numpy>=2,<3' 2>&1\n"));
    }

    #[test]
    fn only_errors_without_addresses_or_paths_are_shown() {
        let failure = |output: &str| {
            let mut lines = Lines::default();
            let steps = std::sync::Mutex::new(Vec::new());
            let report = |step: &str| steps.lock().expect("no panic").push(step.to_owned());
            // Cut anywhere, also inside a character.
            for piece in output.as_bytes().chunks(3) {
                lines.take(piece, &report);
            }
            (lines.failure(1), steps.into_inner().expect("no panic"))
        };
        let general = "the installation ended with code 1; the server's log says more";
        let shown = "No matching distribution found for nö";
        let output = format!("==> one\nCollecting\nERROR: first\nERROR: {shown}\n==> two\n");
        assert_eq!(failure(&output), (shown.to_owned(), vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!(failure("ERROR: cannot reach https://user:key@x/simple\n").0, general);
        assert_eq!(failure("nothing\n").0, general);
    }
}
