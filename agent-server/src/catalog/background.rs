//! Commands that outlive their call and their turn: started, listed, ended; their output in artifacts.
//!
//! Owns their ids and bounds. Must not know how a command runs or what a turn is. They end when they are told to, by
//! themselves, or with the sandbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::artifacts::{ArtifactError, ArtifactWriter, Artifacts};
use super::truncation::last_bytes;
use crate::sandbox::{ExecEnd, ExecEvent, ExecOutcome, ExecRequest, Sandbox, SandboxError};
use crate::workspace::WorkspacePath;

/// Background commands at once: a few servers and watchers; each has a supervisor of about 2 MiB.
const MAX_RUNNING: usize = 16;
/// Ended ones that are still listed.
const MAX_ENDED: usize = 16;
/// Of a command so much is listed.
const MAX_SHOWN_COMMAND: usize = 200;
/// Output is readable this long after it was written, at the latest.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
/// An ended tree gets TERM, KILL after 2 s, and the kernel some time.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Without a timeout of its own a command runs as long as the workspace: no run lasts a year.
pub const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a background command was not started.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// Too many run.
    #[error("{MAX_RUNNING} background processes run already; end one with the tool `processes` first")]
    TooMany,
    /// The output cannot be kept.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The sandbox refused.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// One background command as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Short name, such as `p1`.
    pub id: String,
    /// The command, cut.
    pub command: String,
    /// Name of the artifact with its output.
    pub artifact: String,
    /// Since its start.
    pub age: Duration,
    /// How its shell ended; `None` while it runs.
    pub end: Option<String>,
}

struct Entry {
    command: String,
    artifact: String,
    started: Instant,
    cancel: CancellationToken,
    end: watch::Receiver<Option<String>>,
}

#[derive(Default)]
struct Entries {
    last: u64,
    by_number: BTreeMap<u64, Entry>,
}

/// All background commands of a workspace; clones share them.
#[derive(Clone)]
pub struct Background {
    artifacts: Artifacts,
    entries: Arc<Mutex<Entries>>,
}

impl Background {
    /// None yet; outputs go to this store.
    pub fn new(artifacts: Artifacts) -> Self {
        Self { artifacts, entries: Arc::default() }
    }

    /// Starts a command that goes on by itself.
    pub async fn start(
        &self,
        sandbox: &dyn Sandbox,
        command: String,
        timeout: Duration,
    ) -> Result<Process, BackgroundError> {
        if self.lock().running() >= MAX_RUNNING {
            return Err(BackgroundError::TooMany);
        }
        let writer = self.artifacts.create().await?;
        let cancel = CancellationToken::new();
        let request = ExecRequest {
            command: command.clone(),
            working_directory: WorkspacePath::root(),
            environment: BTreeMap::new(),
            timeout,
            // The artifact has its own bound; what is over it passes by.
            max_output_bytes: u64::MAX,
            cancel: cancel.clone(),
        };
        let events = sandbox.exec(request).await?;
        let (ended, end) = watch::channel(None);
        let entry =
            Entry { command: shown(&command), artifact: writer.uri().to_owned(), started: Instant::now(), cancel, end };
        tokio::spawn(follow(events, writer, ended));
        let mut entries = self.lock();
        entries.forget_old();
        entries.last += 1;
        let number = entries.last;
        let process = entry.process(number);
        entries.by_number.insert(number, entry);
        Ok(process)
    }

    /// All that run and the newest that have ended, in order of their start.
    pub fn list(&self) -> Vec<Process> {
        self.lock().by_number.iter().map(|(number, entry)| entry.process(*number)).collect()
    }

    /// Waits until a command's shell has ended, at most so long; gives it as it is then.
    pub async fn wait(&self, id: &str, at_most: Duration) -> Option<Process> {
        let mut end = self.with(id, |entry| entry.end.clone())?;
        // The sender goes only after it has told the end. What is borrowed of the channel must not outlast this line.
        drop(tokio::time::timeout(at_most, end.wait_for(Option::is_some)).await);
        self.list().into_iter().find(|process| process.id == id)
    }

    /// Ends a command with its whole tree and waits for it; `None` for an unknown id.
    pub async fn end(&self, id: &str) -> Option<Process> {
        self.with(id, |entry| entry.cancel.cancel())?;
        self.wait(id, END_WITHIN).await
    }

    fn with<T>(&self, id: &str, work: impl FnOnce(&Entry) -> T) -> Option<T> {
        let number: u64 = id.strip_prefix('p')?.parse().ok()?;
        self.lock().by_number.get(&number).map(work)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // The map is whole after every statement.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn running(&self) -> usize {
        self.by_number.values().filter(|entry| entry.end.borrow().is_none()).count()
    }

    fn forget_old(&mut self) {
        let ended: Vec<u64> = self
            .by_number
            .iter()
            .filter(|(_, entry)| entry.end.borrow().is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in ended.iter().take((ended.len() + 1).saturating_sub(MAX_ENDED)) {
            // What such a command left behind still belongs to the sandbox, which counts and ends it.
            self.by_number.remove(number);
        }
    }
}

impl Entry {
    fn process(&self, number: u64) -> Process {
        Process {
            id: format!("p{number}"),
            command: self.command.clone(),
            artifact: self.artifact.clone(),
            age: self.started.elapsed(),
            end: self.end.borrow().clone(),
        }
    }
}

/// One line, its beginning.
fn shown(command: &str) -> String {
    let line = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = line.floor_char_boundary(MAX_SHOWN_COMMAND);
    if end < line.len() { format!("{}…", &line[..end]) } else { line }
}

/// Passes output to the artifact until the shell ends, then tells how.
async fn follow(mut events: mpsc::Receiver<ExecEvent>, writer: ArtifactWriter, ended: watch::Sender<Option<String>>) {
    let mut writer = Some(writer);
    let mut end = None;
    let mut due: Option<Instant> = None;
    loop {
        let written = tokio::select! {
            event = events.recv() => match event {
                Some(ExecEvent::Output { bytes, .. }) => {
                    due.get_or_insert_with(|| Instant::now() + FLUSH_AFTER);
                    match &mut writer {
                        Some(writer) => writer.write(&bytes).await,
                        None => Ok(()),
                    }
                }
                Some(ExecEvent::Ended(value)) => {
                    end = Some(value);
                    Ok(())
                }
                None => break,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                match &mut writer {
                    Some(writer) => writer.flush().await,
                    None => Ok(()),
                }
            }
        };
        if let Err(error) = written {
            // The command goes on; its output is still taken, so that it does not stall.
            tracing::warn!(%error, "the output of a background command could not be kept");
            writer = None;
        }
    }
    if let Some(writer) = writer
        && let Err(error) = writer.finish().await
    {
        tracing::warn!(%error, "the end of a background command's output could not be kept");
    }
    ended.send_replace(Some(end.as_ref().map_or_else(|| "lost".to_owned(), describe)));
}

fn describe(end: &ExecEnd) -> String {
    let how = match &end.outcome {
        ExecOutcome::Exited(code) => format!("exited with code {code}"),
        ExecOutcome::Signaled(signal) => format!("ended by signal {signal}"),
        ExecOutcome::TimedOut => "timed out".to_owned(),
        ExecOutcome::Stopped => "ended on request".to_owned(),
        ExecOutcome::LimitExceeded(limit) => format!("ended: {limit}"),
    };
    if end.others_run { format!("{how}, processes that it left still run") } else { how }
}

/// The last bytes of an output, for a glance.
pub async fn glance(artifacts: &Artifacts, uri: &str, bytes: usize) -> String {
    match artifacts.read(uri).await {
        Ok(content) => last_bytes(&String::from_utf8_lossy(&content), bytes).to_owned(),
        Err(error) => format!("({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_listed_by_its_beginning_on_one_line() {
        assert_eq!(shown("a  b\n c"), "a b c");
        assert_eq!(shown(&"ü".repeat(300)), format!("{}…", "ü".repeat(100)));
    }
}
