//! A short pause of everything that writes, so that a snapshot of the volumes is consistent.
//!
//! Owns its order and its end: writes of files wait, commands are stopped, volumes are synced; after the agreed time
//! all of it goes on by itself, whoever asked for it and whatever became of them. Must not know how any of these is done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::workspace::{Workspace, WorkspaceError, WriteHold};

/// Longest pause.
pub const MAX_PAUSE: Duration = Duration::from_secs(10);
/// How often commands are stopped again: one that was started meanwhile runs for no longer than this.
const STOP_AGAIN: Duration = Duration::from_millis(100);

/// Why there is no pause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuiesceError {
    /// A write in progress, or the volume, took too long.
    #[error("writes in progress and the volume took longer than the pause; nothing is paused")]
    TooSlow,
    /// The volume could not be synced.
    #[error("the volume could not be synced: {0}")]
    NotSynced(WorkspaceError),
}

/// Stops (`true`) or continues (`false`) the processes of commands.
pub type PauseCommands = Box<dyn Fn(bool) + Send + Sync>;

/// The pause of one server.
pub struct Quiesce {
    workspace: Arc<dyn Workspace>,
    pause_commands: PauseCommands,
    present: Mutex<Option<JoinHandle<()>>>,
}

/// What is held while the pause lasts; its end continues everything.
struct Pause {
    quiesce: Arc<Quiesce>,
    hold: Option<WriteHold>,
}

impl Drop for Pause {
    fn drop(&mut self) {
        (self.quiesce.pause_commands)(false);
        self.hold.take();
        tracing::info!("writes and commands go on");
    }
}

impl Quiesce {
    /// Nothing is paused.
    pub fn new(workspace: Arc<dyn Workspace>, pause_commands: PauseCommands) -> Arc<Self> {
        Arc::new(Self { workspace, pause_commands, present: Mutex::new(None) })
    }

    /// Pauses for at most `at_most`, counted from now. Returns when everything is paused and synced. A pause that
    /// lasts already is ended first.
    pub async fn begin(self: &Arc<Self>, at_most: Duration) -> Result<(), QuiesceError> {
        self.end().await;
        let deadline = Instant::now() + at_most.min(MAX_PAUSE);
        let mut pause = Pause { quiesce: self.clone(), hold: None };
        let held = tokio::time::timeout_at(deadline, async {
            let hold = self.workspace.hold_writes().await;
            (self.pause_commands)(true);
            let synced = self.workspace.sync().await;
            synced.map(|()| hold)
        });
        pause.hold = Some(held.await.map_err(|_| QuiesceError::TooSlow)?.map_err(QuiesceError::NotSynced)?);
        let task = tokio::spawn(async move {
            while Instant::now() < deadline {
                (pause.quiesce.pause_commands)(true);
                tokio::time::sleep_until(deadline.min(Instant::now() + STOP_AGAIN)).await;
            }
            drop(pause);
        });
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    /// Ends the pause; without one nothing happens. Returns when everything goes on.
    pub async fn end(&self) {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = present {
            task.abort();
            // Aborted or at its end: either way the pause was dropped.
            let _ended = task.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::workspace::{LocalWorkspace, WorkspacePath, WriteOptions};

    fn place() -> (tempfile::TempDir, Arc<Quiesce>, Arc<AtomicBool>) {
        let dir = tempfile::tempdir().expect("folder");
        let workspace = Arc::new(LocalWorkspace::open(dir.path(), "/workspace").expect("opened"));
        let stopped = Arc::new(AtomicBool::new(false));
        let told = stopped.clone();
        let quiesce = Quiesce::new(workspace, Box::new(move |stop| told.store(stop, Ordering::SeqCst)));
        (dir, quiesce, stopped)
    }

    fn write(quiesce: &Quiesce) -> JoinHandle<()> {
        let workspace = quiesce.workspace.clone();
        tokio::spawn(async move {
            let path = WorkspacePath::parse("f").expect("a path");
            workspace.write(&path, Bytes::from_static(b"x"), WriteOptions::default()).await.expect("written");
        })
    }

    #[tokio::test]
    async fn writes_wait_and_commands_are_stopped_until_the_pause_is_ended() {
        let (dir, quiesce, stopped) = place();
        quiesce.begin(MAX_PAUSE).await.expect("paused");
        assert!(stopped.load(Ordering::SeqCst));
        let writing = write(&quiesce);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!writing.is_finished() && !dir.path().join("f").exists());
        quiesce.end().await;
        assert!(!stopped.load(Ordering::SeqCst));
        writing.await.expect("written");
        quiesce.end().await;
    }

    #[tokio::test]
    async fn a_pause_ends_by_itself() {
        let (dir, quiesce, stopped) = place();
        quiesce.begin(Duration::from_millis(300)).await.expect("paused");
        tokio::time::timeout(Duration::from_secs(30), write(&quiesce)).await.expect("in time").expect("written");
        assert!(dir.path().join("f").exists() && !stopped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_second_pause_takes_the_place_of_the_first() {
        let (_dir, quiesce, stopped) = place();
        quiesce.begin(MAX_PAUSE).await.expect("paused");
        quiesce.begin(MAX_PAUSE).await.expect("paused again");
        assert!(stopped.load(Ordering::SeqCst));
        quiesce.end().await;
        write(&quiesce).await.expect("written");
    }
}
