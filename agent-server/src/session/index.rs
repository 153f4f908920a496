//! The list of sessions without their files: summaries, kept in one append-only file.
//!
//! Owns the index. It is a cache: a session whose file has another size than the index says is read again. All
//! methods that touch the disk block.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::changes::{KEPT, SessionChange, SessionLog};
use crate::harness::chunk::StepUsage;
use crate::storage::private_file;

/// What lists show of a session, and where its file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Session.
    pub id: String,
    /// Name of its file.
    pub file: String,
    /// Size of the file when this was written.
    pub size: u64,
    /// Title.
    pub title: String,
    /// When it was made.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// Turns begun.
    pub turn_count: u64,
    /// Messages shown.
    pub message_count: u64,
    /// A turn ran.
    pub running: bool,
    /// Follow-ups that wait.
    #[serde(default)]
    pub queued: u64,
    /// Sum over all turns.
    pub usage: StepUsage,
    /// Written when the session was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// All records, in memory and on disk.
#[derive(Debug)]
pub struct Index {
    path: PathBuf,
    records: Mutex<HashMap<String, Record>>,
    file: Mutex<Option<std::fs::File>>,
    changes: SessionLog,
}

impl Index {
    /// Reads the index; lines that do not parse are left out (their sessions are read again). Compacts it when more
    /// than half of it is outdated.
    pub fn open(path: PathBuf) -> std::io::Result<Self> {
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut records: HashMap<String, Record> = HashMap::new();
        let mut lines = 0;
        for record in text.lines().filter_map(|line| serde_json::from_str::<Record>(line).ok()) {
            lines += 1;
            if record.deleted {
                records.remove(&record.id);
            } else {
                records.insert(record.id.clone(), record);
            }
        }
        if lines > 100 + 2 * records.len() || (!text.is_empty() && !text.ends_with('\n')) {
            compact(&path, records.values())?;
        }
        Ok(Self { path, records: Mutex::new(records), file: Mutex::new(None), changes: SessionLog::new(KEPT, 0) })
    }

    /// A record.
    pub fn get(&self, id: &str) -> Option<Record> {
        self.lock().get(id).cloned()
    }

    /// The first `most` records that are wanted, newest change first. Only these are copied.
    pub fn newest_first(&self, most: usize, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        let records = self.lock();
        let mut found: Vec<&Record> = records.values().filter(|record| wanted(record)).collect();
        let order = |a: &&Record, b: &&Record| b.updated_at.cmp(&a.updated_at).then_with(|| b.id.cmp(&a.id));
        if most < found.len() {
            found.select_nth_unstable_by(most, order);
            found.truncate(most);
        }
        found.sort_unstable_by(order);
        found.into_iter().cloned().collect()
    }

    /// The sizes of all files as they were read last.
    pub fn sizes(&self) -> HashMap<String, u64> {
        self.lock().values().map(|record| (record.id.clone(), record.size)).collect()
    }

    /// What happens to sessions.
    pub fn changes(&self) -> &SessionLog {
        &self.changes
    }

    /// Keeps a record. A failure to write is logged: the index is a cache and is made again from the files.
    pub fn put(&self, record: Record) {
        let line = serde_json::to_string(&record);
        {
            // The events stand in the order of the records.
            let mut records = self.lock();
            if let Some(change) = SessionChange::between(records.get(&record.id), &record) {
                self.changes.push(change);
            }
            if record.deleted {
                records.remove(&record.id);
            } else {
                records.insert(record.id.clone(), record);
            }
        }
        let written = line.map_err(std::io::Error::from).and_then(|line| self.append(&line));
        if let Err(error) = written {
            tracing::warn!(kind = ?error.kind(), "the session index could not be written");
        }
    }

    fn append(&self, line: &str) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *file {
            Some(file) => file,
            none => none.insert(private_file().create(true).append(true).open(&self.path)?),
        };
        file.write_all(format!("{line}\n").as_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compact<'a>(path: &Path, records: impl Iterator<Item = &'a Record>) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut text = String::new();
    for record in records {
        text.push_str(&serde_json::to_string(record)?);
        text.push('\n');
    }
    private_file().write(true).create(true).truncate(true).open(&temporary)?.write_all(text.as_bytes())?;
    std::fs::rename(&temporary, path)
}
