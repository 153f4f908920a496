//! The session file in memory: entries, branches, the current position.
//!
//! Owns reading (also what other programs wrote) and the tree. Must not touch a disk or know HTTP.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::entry::{Entry, Kind, TurnData, TurnStatus};
use super::follow_up::FollowUps;
use super::own_line;
use super::tally::{MessageCount, Tally};

/// All entries of one session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    entries: Vec<Entry>,
    by_id: HashMap<String, usize>,
    follow_ups: FollowUps,
    tally: Tally,
    /// Of the active branch; absent while lines come that do not follow each other.
    messages: Option<MessageCount>,
    /// Time of the header.
    pub created_at: String,
}

/// What reading a file found.
#[derive(Debug, PartialEq)]
pub struct Read {
    /// The entries.
    pub transcript: Transcript,
    /// Bytes up to the end of the last whole line; what follows is torn.
    pub sound_bytes: u64,
    /// Lines that are no JSON.
    pub unreadable: usize,
}

impl Transcript {
    /// Of a session that begins now.
    pub fn empty(created_at: &str) -> Self {
        Self { created_at: created_at.to_owned(), messages: Some(MessageCount::default()), ..Self::default() }
    }

    /// Reads a file's bytes. Later headers are skipped, of equal ids the first counts, a torn tail is left out.
    pub fn read(bytes: &[u8]) -> Read {
        Self::read_by(bytes, own_line::parse)
    }

    /// As [`Transcript::read`], with the general reader alone: what every faster way must equal.
    #[cfg(test)]
    pub fn read_generally(bytes: &[u8]) -> Read {
        Self::read_by(bytes, |_| None)
    }

    fn read_by(bytes: &[u8], own: impl Fn(&[u8]) -> Option<Entry>) -> Read {
        let sound = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut transcript = Self::empty("");
        let mut unreadable = 0;
        for line in bytes[..sound].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Some(entry) = own(line) {
                transcript.push(entry);
                continue;
            }
            let Ok(value) = serde_json::from_slice::<Value>(line) else {
                unreadable += 1;
                continue;
            };
            if value["type"] == "session" && transcript.created_at.is_empty() {
                value["timestamp"].as_str().unwrap_or_default().clone_into(&mut transcript.created_at);
            }
            if let Some(entry) = Entry::parse(&value) {
                transcript.push(entry);
            }
        }
        transcript.count_messages();
        Read { transcript, sound_bytes: sound as u64, unreadable }
    }

    /// Adds an entry at the end; one with a known id is ignored.
    pub fn push(&mut self, entry: Entry) {
        if !self.by_id.contains_key(&entry.id) {
            self.follow_ups.apply(&entry.kind);
            self.tally.apply(&self.entries, &entry);
            if entry.parent.as_deref() != self.leaf() {
                self.messages = None;
            } else if let Some(messages) = &mut self.messages {
                messages.apply(&entry.kind);
            }
            self.by_id.insert(entry.id.clone(), self.entries.len());
            self.entries.push(entry);
        }
    }

    /// Adds entries at the end.
    pub fn extend(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            self.push(entry);
        }
        self.count_messages();
    }

    fn count_messages(&mut self) {
        if self.messages.is_none() {
            self.messages = Some(MessageCount::of(&self.branch()));
        }
    }

    /// How many messages the active branch shows.
    pub fn message_count(&self) -> usize {
        self.messages.unwrap_or_else(|| MessageCount::of(&self.branch())).get()
    }

    /// What is counted over all lines.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether an entry id is taken.
    pub fn has(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// An entry.
    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.by_id.get(id).map(|index| &self.entries[*index])
    }

    /// All entries in file order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The last line, which is the current position.
    pub fn leaf(&self) -> Option<&str> {
        self.entries.last().map(|entry| entry.id.as_str())
    }

    /// The active branch from its root to the current position; a missing or cyclic parent ends the chain.
    pub fn branch(&self) -> Vec<&Entry> {
        self.chain(self.leaf())
    }

    /// The entries from the root of a branch to `last`.
    pub fn chain(&self, last: Option<&str>) -> Vec<&Entry> {
        let mut chain = Vec::new();
        let mut seen = vec![false; self.entries.len()];
        let mut next = last;
        while let Some(index) = next.and_then(|id| self.by_id.get(id)) {
            if std::mem::replace(&mut seen[*index], true) {
                break;
            }
            let entry = &self.entries[*index];
            chain.push(entry);
            next = entry.parent.as_deref();
        }
        chain.reverse();
        chain
    }

    /// The turn that began last and has no end, with the id of its line.
    pub fn open_turn(&self) -> Option<(&str, &TurnData)> {
        let entry = &self.entries[*self.tally.open.last()?];
        match &entry.kind {
            Kind::Turn(turn) => Some((&entry.id, turn)),
            _ => None,
        }
    }

    /// The follow-ups, of all branches alike.
    pub fn follow_ups(&self) -> &FollowUps {
        &self.follow_ups
    }

    /// The turn that began next after another one, in file order; the first of all for a turn that is unknown.
    pub fn turn_after(&self, turn_id: &str) -> Option<&str> {
        let begun =
            || self.turns().filter(|(_, turn)| turn.status == TurnStatus::Running).map(|(_, turn)| &*turn.turn_id);
        match begun().position(|begun| begun == turn_id) {
            Some(at) => begun().nth(at + 1),
            None => begun().next(),
        }
    }

    /// All turn lines in file order.
    pub fn turns(&self) -> impl Iterator<Item = (&str, &TurnData)> {
        self.entries.iter().filter_map(|entry| match &entry.kind {
            Kind::Turn(data) => Some((entry.id.as_str(), &**data)),
            _ => None,
        })
    }

    /// Whether the id is that of an assistant message, ours or another program's.
    pub fn has_answer(&self, message_id: &str) -> bool {
        self.has(message_id) || self.turns().any(|(_, turn)| turn.message_id == message_id)
    }

    /// The line and the newest turn of a user message: looked for on the active branch first, then anywhere.
    pub fn find_user_message(&self, message_id: &str) -> Option<FoundUserMessage<'_>> {
        // Most messages are new, and then the branch is not asked for.
        let lines = self.tally.answered.get(message_id).map(Vec::as_slice).unwrap_or_default();
        let on_branch: HashSet<&str> = if lines.is_empty() {
            HashSet::new()
        } else {
            self.branch().into_iter().map(|entry| entry.id.as_str()).collect()
        };
        let mut found: Option<(bool, FoundUserMessage<'_>)> = None;
        for line in lines.iter().map(|line| &self.entries[*line]) {
            let Kind::Turn(turn) = &line.kind else { continue };
            let active = on_branch.contains(&*line.id);
            if found.as_ref().is_none_or(|(best, _)| active >= *best)
                && let Some(entry) = self.get(&turn.user_entry)
            {
                found = Some((active, FoundUserMessage { entry, turn: Some(turn) }));
            }
        }
        found.map(|(_, message)| message).or_else(|| {
            let entry = self.get(message_id)?;
            matches!(entry.kind, Kind::User { .. }).then_some(FoundUserMessage { entry, turn: None })
        })
    }

    /// Ids of all calls, so that a new one cannot repeat them.
    pub fn call_ids(&self) -> HashSet<String> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.kind {
                Kind::Assistant(message) => Some(&message.blocks),
                _ => None,
            })
            .flatten()
            .filter_map(|block| match block {
                crate::llm::AssistantBlock::ToolCall { id, .. } => Some(id.clone()),
                _ => None,
            })
            .collect()
    }
}

/// A known user message.
#[derive(Debug, Clone, Copy)]
pub struct FoundUserMessage<'a> {
    /// Its line.
    pub entry: &'a Entry,
    /// The newest turn that answers it; none for messages that other programs wrote.
    pub turn: Option<&'a TurnData>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = include_str!("../../tests/fixtures/minimal-session.jsonl");

    #[test]
    fn a_file_cut_at_any_byte_reads_as_its_whole_lines() {
        let whole: Vec<&str> = MINIMAL.split_inclusive('\n').collect();
        for cut in 0..=MINIMAL.len() {
            let read = Transcript::read(&MINIMAL.as_bytes()[..cut]);
            let mut sound = 0;
            let lines = whole.iter().take_while(|line| {
                sound += line.len();
                sound <= cut
            });
            let lines = lines.count();
            assert_eq!(read.unreadable, 0);
            assert_eq!(read.transcript.entries().len(), lines.saturating_sub(1), "cut at {cut}");
            assert_eq!(read.sound_bytes, whole[..lines].iter().map(|line| line.len() as u64).sum::<u64>());
        }
    }

    #[test]
    fn foreign_oddities_do_not_break_the_branch() {
        let text = concat!(
            "{\"type\":\"session\",\"id\":\"x\",\"timestamp\":\"2026-11-30T14:00:00.000Z\"}\n",
            "{\"type\":\"session\",\"id\":\"y\",\"timestamp\":\"later\"}\n",
            "not json\n",
            "{\"type\":\"label\",\"id\":\"a\",\"parentId\":\"gone\"}\n",
            "{\"type\":\"label\",\"id\":\"b\",\"parentId\":\"c\"}\n",
            "{\"type\":\"label\",\"id\":\"a\",\"parentId\":\"b\"}\n",
            "{\"type\":\"label\",\"id\":\"c\",\"parentId\":\"b\"}\n",
        );
        let read = Transcript::read(text.as_bytes());
        assert_eq!(read.unreadable, 1);
        assert_eq!(read.transcript.created_at, "2026-11-30T14:00:00.000Z");
        let ids: Vec<&str> = read.transcript.branch().iter().map(|entry| &*entry.id).collect();
        assert_eq!(ids, ["b", "c"], "the cycle between b and c is cut");
    }
}
