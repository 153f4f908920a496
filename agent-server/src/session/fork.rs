//! A session that begins with a part of another one.
//!
//! Owns which lines it takes along. Must not know HTTP.

use std::sync::Arc;

use super::entry::{Entry, Kind, TurnStatus};
use super::error::SessionError;
use super::in_use::Disk;
use super::index::Record;
use super::transcript::Transcript;
use super::{Sessions, ids, retention};

impl Sessions {
    /// Makes a session that holds the conversation of another one up to a message, which is its last; without a message,
    /// up to the current position. Follow-ups that wait stay where they are.
    pub async fn fork(self: &Arc<Self>, id: &str, message_id: Option<String>) -> Result<Record, SessionError> {
        let parent = self.summary(id).await?;
        let title = parent.title.clone();
        let entries = self.read(id, move |transcript| kept(transcript, message_id.as_deref(), title)).await??;
        let fork_id = ids::new_id("session");
        let fork = self.load(&fork_id).await?;
        let store = self.attachments.clone();
        fork.with_disk(move |disk, session| {
            if !matches!(disk, Disk::Absent) {
                return Err(SessionError::AlreadyExists { what: format!("session {}", session.id), turn_id: None });
            }
            // Before the file: a crash in between leaves a reference to nothing, not a session without its images.
            store.share(&session.id, retention::kept_hashes(&entries))?;
            disk.create(&session.id, &session.places, Some(&parent.file), Transcript::empty(&ids::now()), entries)
        })
        .await?;
        self.refresh_index(&fork_id).await?;
        self.summary(&fork_id).await
    }
}

/// The lines of the fork: the chain to the message, each with the one before it as parent, and the title.
fn kept(transcript: &Transcript, message_id: Option<&str>, title: String) -> Result<Vec<Entry>, SessionError> {
    let last = match message_id {
        None => last_whole(transcript),
        Some(message_id) => Some(line_of(transcript, message_id)?),
    };
    let chain = transcript.chain(last);
    let mut entries: Vec<Entry> =
        chain.into_iter().filter(|entry| !matches!(entry.kind, Kind::FollowUp(_))).cloned().collect();
    let name = ids::new_entry_id(|id| transcript.has(id));
    entries.push(Entry { id: name, parent: None, timestamp: ids::now(), kind: Kind::Name(title) });
    let mut parent = None;
    for entry in &mut entries {
        entry.parent = parent.replace(entry.id.clone());
    }
    Ok(entries)
}

/// The current position, or the line before a turn that still runs: a fork does not take half a turn.
fn last_whole(transcript: &Transcript) -> Option<&str> {
    match transcript.open_turn() {
        Some((start, _)) => transcript.get(start)?.parent.as_deref(),
        None => transcript.leaf(),
    }
}

/// The line with which a message is whole.
fn line_of<'a>(transcript: &'a Transcript, message_id: &str) -> Result<&'a str, SessionError> {
    if let Some(found) = transcript.find_user_message(message_id) {
        return Ok(&found.entry.id);
    }
    let ours = || transcript.turns().filter(|(_, turn)| turn.message_id == message_id);
    if let Some((line, _)) = ours().find(|(_, turn)| turn.status != TurnStatus::Running) {
        return Ok(line);
    }
    if let Some((_, turn)) = ours().next() {
        return Err(SessionError::TurnInProgress { turn_id: turn.turn_id.clone() });
    }
    // A message of another program has the id of its first line; it ends before the next user message or turn.
    let foreign = transcript.branch().into_iter().skip_while(|entry| entry.id != message_id);
    let lines = foreign.take_while(|entry| matches!(entry.kind, Kind::Assistant(_) | Kind::ToolResult(_)));
    let last = lines.last().map(|entry| entry.id.as_str());
    last.ok_or_else(|| SessionError::Invalid {
        field: "messageId",
        message: format!("this session has no message {message_id}"),
    })
}
