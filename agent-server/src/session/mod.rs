//! Sessions: their files, their list, the turns that run in them.
//!
//! Owns durability, numbering and exclusion. Must not know HTTP; turns run behind the `Harness` trait.

pub mod attachments;
pub mod changes;
pub mod conversation;
mod editing;
pub mod entry;
pub mod error;
pub mod export;
mod file;
pub mod fold;
mod follow;
pub mod follow_up;
mod fork;
pub mod history;
pub mod ids;
pub mod in_use;
pub mod index;
mod line;
pub mod notice;
mod own_line;
pub mod queue;
mod recording;
mod recover;
mod replay;
mod retention;
pub mod submit;
mod summary;
pub mod tally;
#[cfg(test)]
pub(crate) mod tests;
pub mod transcript;
mod turn;
mod turn_end;
pub mod turn_log;
pub mod user_message;

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use self::attachments::Attachments;
use self::error::SessionError;
use self::history::{Page, Window};
use self::in_use::{ActiveTurn, Disk, Places, Session};
use self::index::{Index, Record};
use self::notice::Notice;
use self::summary::summarise;
use self::transcript::Transcript;
use crate::harness::{AbortReason, Harness};

/// Idle sessions kept in memory and locked; more are let go.
const MAX_IDLE: usize = 16;
/// How long a stop waits for its turn: tools get 3 s, then storage.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// Where sessions live and what they are about.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Folder of this server, outside the workspace.
    pub state_dir: PathBuf,
    /// Root that commands see.
    pub shown_root: String,
    /// Model used when a chat names none.
    pub default_model: String,
}

/// Counts a turn as use of the workspace until the value is dropped; refused while the workspace drains.
pub type BeginTurn = Box<dyn Fn() -> Result<Box<dyn Any + Send>, SessionError> + Send + Sync>;

/// All sessions of the workspace.
pub struct Sessions {
    settings: SessionSettings,
    begin_turn: BeginTurn,
    /// Cancelled when the server ends: readers that follow a session over its turns end then.
    ending: CancellationToken,
    notices: broadcast::Sender<Notice>,
    places: Places,
    harness: Arc<dyn Harness>,
    attachments: Attachments,
    index: Index,
    open: Mutex<HashMap<String, Arc<Session>>>,
}

impl Sessions {
    /// Opens the index and compares it with the files. Turns that a crash left open are closed by
    /// [`Sessions::recover`]. Blocks.
    pub fn open(
        settings: SessionSettings,
        harness: Arc<dyn Harness>,
        begin_turn: BeginTurn,
    ) -> Result<Arc<Self>, SessionError> {
        let places = Places {
            sessions: settings.state_dir.join("sessions"),
            turns: settings.state_dir.join("turns"),
            shown_root: settings.shown_root.clone(),
        };
        crate::storage::make_private_dir(&places.sessions)?;
        let sessions = Self {
            index: Index::open(settings.state_dir.join("session-index"))?,
            attachments: Attachments::new(settings.state_dir.join("attachments")),
            settings,
            begin_turn,
            ending: CancellationToken::new(),
            notices: broadcast::Sender::new(notice::MAX_UNREAD),
            places,
            harness,
            open: Mutex::default(),
        };
        sessions.compare_files()?;
        Ok(Arc::new(sessions))
    }

    /// Brings the index up to date with files that another program made, grew or removed. Blocks.
    fn compare_files(&self) -> Result<(), SessionError> {
        let mut gone = self.index.sizes();
        for (path, id, size) in &file::list(&self.places.sessions)? {
            let current = gone.remove(id).is_some_and(|known| known == *size);
            if current || self.active(id).is_some() {
                continue;
            }
            let bytes = match std::fs::read(path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    // One file that cannot be read costs one session, not the server's start. Whoever asks for the
                    // session itself gets the error.
                    tracing::error!(session = id, %error, "a session file cannot be read");
                    continue;
                }
            };
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let read = Transcript::read(&bytes);
            if read.sound_bytes == 0 {
                // Being made, or left by a machine that died; whoever opens it removes it.
                continue;
            }
            self.index.put(summarise(id, &name, *size, &read.transcript));
        }
        for id in gone.into_keys().filter(|id| self.active(id).is_none()) {
            if let Some(record) = self.index.get(&id) {
                self.index.put(Record { deleted: true, ..record });
            }
        }
        Ok(())
    }

    /// Closes the turns that ran when the process died, and goes on with follow-ups that wait.
    pub async fn recover(self: &Arc<Self>) {
        for record in self.index.newest_first(usize::MAX, |record| record.running || record.queued > 0) {
            let recovered = async {
                self.refresh_index(&record.id).await?;
                self.continue_after_start(&record.id).await
            };
            match recovered.await {
                // Another process runs it.
                Ok(()) | Err(SessionError::Locked(_)) => {}
                Err(error) => tracing::error!(session = record.id, %error, "a session could not be recovered"),
            }
        }
        let turns = self.places.turns.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || retention::sweep(&turns)).await {
            tracing::warn!(%error, "old chunk logs were not swept");
        }
    }

    /// The harness.
    pub fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    /// The system prompt as the session's next turn would get it.
    pub async fn system_prompt(self: &Arc<Self>, id: &str) -> Result<String, SessionError> {
        let (provider, model) = (self.harness.provider().to_owned(), self.settings.default_model.clone());
        let touched =
            move |transcript: &Transcript| conversation::conversation(transcript, &provider, &model, &|_| None).touched;
        let touched = self.read(id, touched).await?;
        Ok(self.harness.system_prompt(None, &touched).await)
    }

    /// The attachment store.
    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Model used when a chat names none.
    pub fn default_model(&self) -> &str {
        &self.settings.default_model
    }

    /// The turn that runs in a session.
    pub fn active(&self, id: &str) -> Option<Arc<ActiveTurn>> {
        self.lock().get(id).and_then(|session| session.active())
    }

    /// All turns that run.
    pub fn running(&self) -> Vec<Arc<ActiveTurn>> {
        self.lock().values().filter_map(|session| session.active()).collect()
    }

    /// A session that exists.
    pub(super) async fn existing(self: &Arc<Self>, id: &str) -> Result<Arc<Session>, SessionError> {
        if !ids::is_session_id(id) {
            return Err(SessionError::NotFound(id.to_owned()));
        }
        let session = self.load(id).await?;
        let there = session.with_disk(|disk, _| Ok(disk.transcript().is_some())).await?;
        if there { Ok(session) } else { Err(SessionError::NotFound(id.to_owned())) }
    }

    /// A session, loaded or not.
    fn in_use(&self, id: &str) -> Arc<Session> {
        let (session, idle) = {
            let mut open = self.lock();
            let idle = if open.contains_key(id) { Vec::new() } else { take_idle(&mut open) };
            let session = open.entry(id.to_owned()).or_insert_with(|| Session::new(id, self.places.clone()));
            (Arc::clone(session), idle)
        };
        if !idle.is_empty() {
            // Dropping a large transcript takes its time.
            tokio::task::spawn_blocking(move || drop(idle));
        }
        session
    }

    /// A session, loaded, whether or not it has a file.
    async fn load(self: &Arc<Self>, id: &str) -> Result<Arc<Session>, SessionError> {
        let session = self.in_use(id);
        let name = self.index.get(id).map(|record| record.file);
        let idle = session.active().is_none();
        session
            .with_disk(move |disk, session| {
                // While a turn runs, the process's own view is the newest one.
                if idle || !matches!(disk, Disk::Loaded { .. }) {
                    disk.load(&session.id, name, &session.places)?;
                }
                Ok(())
            })
            .await?;
        Ok(session)
    }

    /// Reads from a session's entries. A session that another process writes, or whose volume takes no writes, is read
    /// without locking it.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        id: &str,
        work: impl FnOnce(&Transcript) -> T + Send + 'static,
    ) -> Result<T, SessionError> {
        if !ids::is_session_id(id) {
            return Err(SessionError::NotFound(id.to_owned()));
        }
        match self.load(id).await {
            Ok(session) => {
                session
                    .with_disk(|disk, session| {
                        let transcript = disk.transcript().ok_or_else(|| SessionError::NotFound(session.id.clone()))?;
                        Ok(work(transcript))
                    })
                    .await
            }
            Err(SessionError::Locked(_) | SessionError::NotWritable) => {
                let (known, id) = (self.index.get(id).map(|record| record.file), id.to_owned());
                let folder = self.places.sessions.clone();
                let reading = tokio::task::spawn_blocking(move || {
                    // The other process may have made it since the index was last compared with the files.
                    let name = known.map_or_else(|| file::find(&folder, &id), |name| Ok(Some(name)))?;
                    let bytes = std::fs::read(folder.join(name.ok_or(SessionError::NotFound(id))?))?;
                    Ok(work(&Transcript::read(&bytes).transcript))
                });
                reading.await.unwrap_or_else(|error| Err(SessionError::Storage(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// The messages as clients assembled them; `partial` adds the message of the running turn.
    pub async fn messages(self: &Arc<Self>, id: &str, partial: bool) -> Result<Vec<Value>, SessionError> {
        let page = self.page(id, partial, Window::default()).await?;
        Ok(page.map(|page| page.messages).unwrap_or_default())
    }

    /// A part of the messages; `None` when the window's message is unknown.
    pub async fn page(self: &Arc<Self>, id: &str, partial: bool, window: Window) -> Result<Option<Page>, SessionError> {
        let (sessions, name) = (Arc::clone(self), id.to_owned());
        let page = move |transcript: &Transcript| {
            let running = sessions.active(&name).filter(|_| partial);
            let running =
                running.map(|turn| history::Shown { message: turn.message(), turn_id: Some(turn.turn_id.clone()) });
            history::page(transcript, &window, running)
        };
        self.read(id, page).await
    }

    /// The session file as it is.
    pub async fn raw(self: &Arc<Self>, id: &str) -> Result<Vec<u8>, SessionError> {
        let record = self.summary(id).await?;
        Ok(tokio::fs::read(self.places.sessions.join(record.file)).await?)
    }

    /// Stops the running turn, if it is the named one, and waits until it has ended.
    pub async fn stop(self: &Arc<Self>, id: &str, turn_id: Option<&str>, reason: AbortReason) {
        let session = self.lock().get(id).cloned();
        let Some(session) = session else { return };
        let Some(turn) = session.active().filter(|turn| turn_id.is_none_or(|id| id == turn.turn_id)) else { return };
        turn.stop.stop(reason);
        if tokio::time::timeout(STOP_WAIT, session.wait_for_end(&turn.turn_id)).await.is_err() {
            tracing::error!(session = id, turn = turn.turn_id, "a stopped turn did not end in time");
        }
    }

    /// Stops all turns and waits for them; the caller bounds the time.
    pub async fn stop_all(self: &Arc<Self>, reason: AbortReason) {
        if reason == AbortReason::Shutdown {
            self.ending.cancel();
        }
        let running: Vec<_> =
            self.lock().values().filter(|session| session.active().is_some()).map(|s| s.id.clone()).collect();
        futures::future::join_all(running.iter().map(|id| self.stop(id, None, reason))).await;
    }

    /// The first `most` summaries that are wanted, newest change first; files that other programs made are looked for.
    pub async fn list(
        self: &Arc<Self>,
        most: usize,
        wanted: impl Fn(&Record) -> bool + Send + 'static,
    ) -> Result<Vec<Record>, SessionError> {
        let sessions = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            sessions.compare_files()?;
            Ok(sessions.index.newest_first(most, wanted))
        })
        .await
        .unwrap_or_else(|error| Err(SessionError::Storage(error.to_string())))
    }

    /// A summary.
    pub async fn summary(self: &Arc<Self>, id: &str) -> Result<Record, SessionError> {
        if self.index.get(id).is_none() {
            self.existing(id).await?;
            self.refresh_index(id).await?;
        }
        self.index.get(id).ok_or_else(|| SessionError::NotFound(id.to_owned()))
    }

    /// Writes the session's summary anew.
    pub(super) async fn refresh_index(self: &Arc<Self>, id: &str) -> Result<(), SessionError> {
        let session = self.load(id).await?;
        let sessions = Arc::clone(self);
        session
            .with_disk(move |disk, session| {
                sessions.index_loaded(disk, &session.id);
                Ok(())
            })
            .await
    }

    /// Writes the summary of a loaded session anew. Blocks.
    fn index_loaded(&self, disk: &Disk, id: &str) {
        if let Disk::Loaded { file, name, transcript } = disk {
            self.index.put(summarise(id, name, file.size(), transcript));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes sessions that nobody uses out of the map when there are too many; dropping them frees their locks.
fn take_idle(open: &mut HashMap<String, Arc<Session>>) -> Vec<Arc<Session>> {
    if open.len() < MAX_IDLE {
        return Vec::new();
    }
    let unused: Vec<String> = open
        .iter()
        .filter(|(_, session)| Arc::strong_count(session) == 1 && session.active().is_none())
        .map(|(id, _)| id.clone())
        .collect();
    unused.iter().filter_map(|id| open.remove(id)).collect()
}
