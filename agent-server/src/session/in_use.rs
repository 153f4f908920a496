//! One session in use: its file, its entries, and the turn that runs.
//!
//! Owns exclusion: one writer of the file, one turn at a time. Must not know HTTP or how turns run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::entry::{Entry, Kind};
use super::error::SessionError;
use super::file::{self, SessionFile};
use super::fold::Fold;
use super::recover;
use super::transcript::Transcript;
use super::turn_log::TurnLog;
use super::{ids, line};
use crate::harness::StopSignal;

/// A turn that is reserved or runs.
#[derive(Debug)]
pub struct ActiveTurn {
    /// Turn.
    pub turn_id: String,
    /// Its assistant message.
    pub message_id: String,
    /// Its chunks.
    pub log: Arc<TurnLog>,
    /// Stops it.
    pub stop: StopSignal,
    pub(super) fold: Mutex<Fold>,
    /// What comes after it is decided.
    pub(super) decided: AtomicBool,
}

impl ActiveTurn {
    /// A turn with new ids.
    pub(super) fn new(session: &Session) -> Arc<Self> {
        let turn_id = ids::new_id("turn");
        let log = TurnLog::new(&turn_id, session.places.turn_log(&session.id, &turn_id));
        Arc::new(Self {
            turn_id,
            message_id: ids::new_id("msg"),
            log,
            stop: StopSignal::default(),
            fold: Mutex::default(),
            decided: AtomicBool::new(false),
        })
    }

    /// Whether it is about to end and takes up nothing more that is queued.
    pub(super) fn is_ending(&self) -> bool {
        self.stop.reason().is_some() || self.decided.load(Ordering::SeqCst)
    }

    /// The message so far.
    pub fn message(&self) -> Value {
        self.fold.lock().unwrap_or_else(PoisonError::into_inner).message()
    }
}

/// Where a session's files are.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Folder of the session files.
    pub sessions: PathBuf,
    /// Folder of the chunk logs, one folder per session.
    pub turns: PathBuf,
    /// Root that commands see, for the header.
    pub shown_root: String,
}

impl Places {
    /// The chunk log of a turn.
    pub fn turn_log(&self, session_id: &str, turn_id: &str) -> PathBuf {
        self.turns.join(session_id).join(format!("{turn_id}.log"))
    }
}

/// The session's file and entries as this process holds them.
#[derive(Debug, Default)]
pub(super) enum Disk {
    /// Not looked at yet.
    #[default]
    Unloaded,
    /// There is no file.
    Absent,
    /// Open and locked.
    Loaded {
        /// The file.
        file: SessionFile,
        /// Its name.
        name: String,
        /// Its entries.
        transcript: Box<Transcript>,
    },
    /// Deleted; whoever still holds the session gets nothing more.
    Deleted,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// Id.
    pub id: String,
    pub(super) places: Places,
    pub(super) disk: Arc<tokio::sync::Mutex<Disk>>,
    active: watch::Sender<Option<Arc<ActiveTurn>>>,
}

/// Lines under construction: each gets the one before it as parent.
pub(super) struct Writer<'a> {
    /// What is there already.
    pub transcript: &'a Transcript,
    /// Parent of the next line.
    pub parent: Option<String>,
    entries: Vec<Entry>,
}

impl<'a> Writer<'a> {
    /// Starts after the current position.
    pub fn new(transcript: &'a Transcript) -> Self {
        Self { transcript, parent: transcript.leaf().map(str::to_owned), entries: Vec::new() }
    }

    /// The id that the next line will get.
    pub fn add(&mut self, kind: Kind) -> String {
        let id = ids::new_entry_id(|id| self.transcript.has(id) || self.entries.iter().any(|entry| entry.id == id));
        self.entries.push(Entry {
            id: id.clone(),
            parent: self.parent.replace(id.clone()),
            timestamp: ids::now(),
            kind,
        });
        id
    }

    /// The lines from the parent of the next one back to the root; a missing or cyclic parent ends them.
    pub fn back(&self) -> impl Iterator<Item = &Entry> {
        let mut next = self.parent.as_deref();
        let mut left = self.entries.len() + self.transcript.entries().len();
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let id = next?;
            let entry = self.entries.iter().find(|entry| entry.id == id).or_else(|| self.transcript.get(id))?;
            next = entry.parent.as_deref();
            Some(entry)
        })
    }

    /// The lines.
    pub fn finish(self) -> Vec<Entry> {
        self.entries
    }
}

fn text_of(entries: &[Entry]) -> String {
    entries.iter().fold(String::new(), |mut text, entry| {
        text.push_str(&entry.to_line());
        text.push('\n');
        text
    })
}

impl Disk {
    /// Opens the file if there is one, and closes a turn that a crash left open. Blocks.
    pub fn load(&mut self, id: &str, known_name: Option<String>, places: &Places) -> Result<(), SessionError> {
        match self {
            Self::Loaded { file, transcript, .. } => {
                if let Some(fresh) = file.refresh(id)? {
                    **transcript = fresh;
                }
                return Ok(());
            }
            Self::Deleted => return Err(SessionError::NotFound(id.to_owned())),
            Self::Absent | Self::Unloaded => {}
        }
        let name = match known_name.filter(|name| file::is_regular(&places.sessions.join(name))) {
            Some(name) => Some(name),
            None => file::find(&places.sessions, id)?,
        };
        let Some(name) = name else {
            *self = Self::Absent;
            return Ok(());
        };
        let Some((file, transcript)) = SessionFile::open(&places.sessions.join(&name), id)? else {
            *self = Self::Absent;
            return Ok(());
        };
        *self = Self::Loaded { file, name, transcript: Box::new(transcript) };
        self.close_open_turn(id, places)
    }

    /// Closes a turn that has no end although it does not run. Only for callers that know that none runs. Blocks.
    pub fn close_open_turn(&mut self, id: &str, places: &Places) -> Result<(), SessionError> {
        if let Self::Loaded { file, transcript, .. } = self {
            let closing = recover::close_open_turn(transcript, id, places)?;
            if !closing.is_empty() {
                file.append(&text_of(&closing))?;
                transcript.extend(closing);
            }
        }
        Ok(())
    }

    /// Appends what `build` adds, durably, or nothing. Makes the file when there is none. Blocks.
    pub fn write<T>(
        &mut self,
        id: &str,
        places: &Places,
        build: impl FnOnce(&mut Writer<'_>) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        match self {
            Self::Unloaded | Self::Deleted => Err(SessionError::NotFound(id.to_owned())),
            Self::Absent => {
                let transcript = Transcript::empty(&ids::now());
                let mut writer = Writer::new(&transcript);
                let value = build(&mut writer)?;
                let entries = writer.finish();
                self.create(id, places, None, transcript, entries)?;
                Ok(value)
            }
            Self::Loaded { file, transcript, .. } => {
                let mut writer = Writer::new(transcript);
                let value = build(&mut writer)?;
                let entries = writer.finish();
                if !entries.is_empty() {
                    file.append(&text_of(&entries))?;
                    transcript.extend(entries);
                }
                Ok(value)
            }
        }
    }

    /// Makes the file of a session that has none, durably. `parent` is the file that it was forked from. Blocks.
    pub fn create(
        &mut self,
        id: &str,
        places: &Places,
        parent: Option<&str>,
        mut transcript: Transcript,
        entries: Vec<Entry>,
    ) -> Result<(), SessionError> {
        let name = file::file_name(&transcript.created_at, id);
        let header = line::header(id, &transcript.created_at, &places.shown_root, parent);
        let file = SessionFile::create(&places.sessions, &name, &format!("{header}\n{}", text_of(&entries)))?;
        transcript.extend(entries);
        *self = Self::Loaded { file, name, transcript: Box::new(transcript) };
        Ok(())
    }

    /// The entries, if the session exists.
    pub fn transcript(&self) -> Option<&Transcript> {
        match self {
            Self::Loaded { transcript, .. } => Some(transcript),
            _ => None,
        }
    }
}

impl Session {
    pub(super) fn new(id: &str, places: Places) -> Arc<Self> {
        Arc::new(Self { id: id.to_owned(), places, disk: Arc::default(), active: watch::Sender::new(None) })
    }

    /// The turn that is reserved or runs.
    pub fn active(&self) -> Option<Arc<ActiveTurn>> {
        self.active.borrow().clone()
    }

    /// Takes the session's one turn; gives the running one back when there is one.
    pub(super) fn reserve(&self, turn: &Arc<ActiveTurn>) -> Result<(), Arc<ActiveTurn>> {
        let mut running = None;
        self.active.send_if_modified(|active| {
            running.clone_from(active);
            active.get_or_insert_with(|| Arc::clone(turn));
            running.is_none()
        });
        running.map_or(Ok(()), Err)
    }

    /// The turn is over; the next may come.
    pub(super) fn release(&self, turn: &ActiveTurn) {
        self.active.send_if_modified(|active| {
            let ours = active.as_ref().is_some_and(|active| active.turn_id == turn.turn_id);
            if ours {
                *active = None;
            }
            ours
        });
    }

    /// The turn is over and another one, which is stored already, has its place.
    pub(super) fn hand_over(&self, turn: &ActiveTurn, next: &Arc<ActiveTurn>) {
        self.active.send_if_modified(|active| {
            let ours = active.as_ref().is_some_and(|active| active.turn_id == turn.turn_id);
            if ours {
                *active = Some(Arc::clone(next));
            }
            ours
        });
    }

    /// Tells of every change of the turn that runs.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Arc<ActiveTurn>>> {
        self.active.subscribe()
    }

    /// Waits until a turn is over.
    pub(super) async fn wait_for_end(&self, turn_id: &str) {
        let mut active = self.active.subscribe();
        // The sender lives as long as the session, so this ends only with the turn.
        let _ended = active.wait_for(|active| active.as_ref().is_none_or(|turn| turn.turn_id != turn_id)).await;
    }

    /// Runs a blocking closure with the disk state, off the asynchronous threads.
    pub(super) async fn with_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Disk, &Session) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let mut disk = Arc::clone(&self.disk).lock_owned().await;
        let session = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&mut disk, &session))
            .await
            .unwrap_or_else(|error| Err(SessionError::Storage(format!("a storage task broke off: {error}"))))
    }
}
