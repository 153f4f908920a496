//! Changes of files as a numbered log that readers follow and resume.
//!
//! Owns numbers, replay and what a reader is told. Must not know how changes are found: an implementation of
//! `Workspace` hands them in.

mod pending;
mod reader;

use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

pub use pending::{Pending, Seen, settle};
pub use reader::{ChangeReader, Told};

use super::WorkspacePath;
use crate::event_log::EventLog;

/// Changes kept for readers that come back: at 200 bytes each 2 MiB at most.
const KEPT: usize = 8192;
/// Own changes that wait for the watcher at most; more of them count as lost.
const MAX_OWN: usize = 4096;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// A file or link was made or changed.
    Write,
    /// Something is gone, with everything below it.
    Unlink,
    /// Something has another path, with everything below it.
    Rename,
    /// A directory was made.
    Mkdir,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// What happened.
    pub op: Operation,
    /// Path; after a rename the new one.
    pub path: WorkspacePath,
    /// Former path of a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_path: Option<WorkspacePath>,
    /// Modification time when the change was seen, milliseconds since the Unix epoch; absent when nothing is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtime_ms: Option<i64>,
}

/// How changes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// The system tells them as they happen.
    Events,
    /// The tree is looked at again and again.
    Polling,
}

/// Why not everything is found, or not at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The file system gives no events.
    NoEvents,
    /// The system, or this server, watches no more directories.
    WatchLimit,
    /// The tree has more entries than are remembered between two looks; the rest is not watched.
    EntryLimit,
}

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// How.
    pub by: Means,
    /// Directories watched. Ignored ones and `.git` are not.
    pub folders: usize,
    /// What holds it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

/// The log of one process. Its epoch tells it from those of other processes, whose numbers mean nothing here.
pub struct Changes {
    epoch: String,
    log: EventLog<Change>,
    coverage: watch::Sender<Option<Coverage>>,
    own: Mutex<Pending>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Changes {
    /// An empty log. `wake` is called when there is something for the watcher to do: own changes or a new reader.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            epoch: format!("{:016x}", rand::random::<u64>()),
            log: EventLog::new(KEPT, 0),
            coverage: watch::Sender::new(None),
            own: Mutex::new(Pending::new(MAX_OWN)),
            wake: Box::new(wake),
        }
    }

    /// Reads from the place that `last_event_id` names, else from now on.
    pub fn read(self: &std::sync::Arc<Self>, last_event_id: Option<&str>) -> ChangeReader {
        let reader = ChangeReader::new(self.clone(), last_event_id);
        (self.wake)();
        reader
    }

    /// Notes a change that this process made.
    pub fn note(&self, note: impl FnOnce(&mut Pending)) {
        note(&mut self.own.lock().unwrap_or_else(PoisonError::into_inner));
        (self.wake)();
    }

    /// For the watcher: takes the changes that this process made.
    pub fn take_own(&self) -> Result<Vec<Seen>, crate::event_log::Lost> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// For the watcher: appends settled changes.
    pub fn append(&self, changes: Vec<Change>) {
        for change in changes {
            self.log.push(change);
        }
    }

    /// For the watcher: changes were lost; every reader is told to look anew.
    pub fn lose(&self) {
        self.log.forget();
    }

    /// For the watcher: what is watched from now on.
    pub fn set_coverage(&self, coverage: Coverage) {
        self.coverage.send_if_modified(|known| {
            let changed = *known != Some(coverage);
            *known = Some(coverage);
            changed
        });
    }

    /// Whether anybody reads.
    pub fn has_readers(&self) -> bool {
        self.log.followers() > 0
    }
}
