//! What lists show of a session, made from its counts. Owns that record; must not touch a disk.

use super::index::Record;
use super::transcript::Transcript;
use super::user_message;

/// The record of a session; costs the same for a long one as for a short one.
pub(super) fn summarise(id: &str, file: &str, size: u64, transcript: &Transcript) -> Record {
    let tally = transcript.tally();
    let title = tally.name.as_deref().or(tally.first_line.as_deref()).map(user_message::shorten).unwrap_or_default();
    let updated_at = if tally.newest.is_empty() { &transcript.created_at } else { &tally.newest };
    Record {
        id: id.to_owned(),
        file: file.to_owned(),
        size,
        title: if title.is_empty() { "New session".into() } else { title },
        created_at: transcript.created_at.clone(),
        updated_at: updated_at.clone(),
        turn_count: tally.turns,
        message_count: transcript.message_count() as u64,
        running: !tally.open.is_empty(),
        queued: transcript.follow_ups().waiting().len() as u64,
        usage: tally.usage,
        deleted: false,
    }
}
