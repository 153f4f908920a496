//! What happens to sessions, for lists that want to stay current.
//!
//! Owns the form of these events and when there is one: they come from the index, which learns of every change.

use serde::Serialize;

use super::Sessions;
use super::index::Record;
use crate::event_log::{EventLog, Lost};

/// Events kept for readers that come back.
pub(super) const KEPT: usize = 1024;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// The session is new.
    Created,
    /// Title, counts or usage changed.
    Updated,
    /// A turn began or ended.
    Status,
    /// The session is gone.
    Deleted,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionChange {
    /// What happened.
    pub op: Operation,
    /// Session.
    pub id: String,
    /// Title.
    pub title: String,
    /// `running` or `idle`.
    pub status: &'static str,
    /// When it last changed.
    pub updated_at: String,
}

impl SessionChange {
    /// The event of a new record; `None` when nothing that lists show has changed.
    pub(super) fn between(before: Option<&Record>, after: &Record) -> Option<Self> {
        let op = match before {
            _ if after.deleted => Operation::Deleted,
            None => Operation::Created,
            Some(before) if before.running != after.running => Operation::Status,
            Some(before) if before == after => return None,
            Some(_) => Operation::Updated,
        };
        Some(Self {
            op,
            id: after.id.clone(),
            title: after.title.clone(),
            status: if after.running { "running" } else { "idle" },
            updated_at: after.updated_at.clone(),
        })
    }
}

/// Events of sessions; the numbers live as long as the process.
pub type SessionLog = EventLog<SessionChange>;

impl Sessions {
    /// The first event after a number, if there is one yet.
    pub fn change_after(&self, number: u64) -> Result<Option<(u64, SessionChange)>, Lost> {
        self.index.changes().next_after(number)
    }

    /// Number of the newest event.
    pub fn last_change(&self) -> u64 {
        self.index.changes().last()
    }

    /// Changes with each new event. Take it before looking at the events.
    pub fn follow_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.index.changes().follow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(title: &str, running: bool, deleted: bool) -> Record {
        serde_json::from_value(serde_json::json!({
            "id": "s", "file": "f", "size": 1, "title": title, "createdAt": "t", "updatedAt": "t", "turnCount": 0,
            "messageCount": 0, "running": running, "deleted": deleted,
            "usage": crate::harness::chunk::StepUsage::default(),
        }))
        .expect("a record")
    }

    #[test]
    fn each_change_has_one_word() {
        let (idle, running, gone) = (record("a", false, false), record("a", true, false), record("a", false, true));
        let word =
            |before: Option<&Record>, after: &Record| SessionChange::between(before, after).map(|event| event.op);
        assert_eq!(word(None, &idle), Some(Operation::Created));
        assert_eq!(word(Some(&idle), &running), Some(Operation::Status));
        assert_eq!(word(Some(&idle), &record("b", false, false)), Some(Operation::Updated));
        assert_eq!(word(Some(&idle), &idle), None);
        assert_eq!(word(Some(&idle), &gone), Some(Operation::Deleted));
    }
}
