//! What is counted over the lines of a session while they come, so that an append costs the same whatever lies before.
//!
//! Owns these counts. Must not touch a disk.

use std::collections::HashMap;

use super::entry::{Block, Entry, Kind, TurnStatus};
use crate::harness::chunk::StepUsage;

/// Counts over all lines, of all branches.
#[derive(Debug, Clone, PartialEq)]
pub struct Tally {
    /// Turns begun.
    pub turns: u64,
    /// The newest time of a line; empty without one.
    pub newest: String,
    /// Sum over all ended turns; the price is absent when one of them has none.
    pub usage: StepUsage,
    /// The last name given to the session.
    pub name: Option<String>,
    /// The first line of text that a user wrote.
    pub first_line: Option<String>,
    /// Index of the first line of each turn that has no end yet.
    pub open: Vec<usize>,
    /// Indexes of the turn lines of each user message.
    pub answered: HashMap<String, Vec<usize>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            turns: 0,
            newest: String::new(),
            usage: StepUsage { cost_usd: Some(0.0), ..StepUsage::default() },
            name: None,
            first_line: None,
            open: Vec::new(),
            answered: HashMap::new(),
        }
    }
}

impl Tally {
    /// Takes the line that will stand at `index`; `entries` are those before it.
    pub fn apply(&mut self, entries: &[Entry], entry: &Entry) {
        if entry.timestamp > self.newest {
            self.newest.clone_from(&entry.timestamp);
        }
        match &entry.kind {
            Kind::Name(name) => self.name = Some(name.clone()),
            Kind::User { content } if self.first_line.is_none() => {
                self.first_line = content.iter().find_map(|block| match block {
                    Block::Text(text) => text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned),
                    _ => None,
                });
            }
            Kind::Turn(turn) => {
                self.answered.entry(turn.user_message_id.clone()).or_default().push(entries.len());
                if turn.status == TurnStatus::Running {
                    self.turns += 1;
                    self.open.push(entries.len());
                } else {
                    self.open.retain(|open| match &entries[*open].kind {
                        Kind::Turn(begun) => begun.turn_id != turn.turn_id,
                        _ => false,
                    });
                    self.add_usage(turn.metadata.get("usage"));
                }
            }
            _ => {}
        }
    }

    fn add_usage(&mut self, usage: Option<&serde_json::Value>) {
        let Some(usage) = usage else { return };
        let number = |key: &str| usage[key].as_u64().unwrap_or(0);
        self.usage.input_tokens += number("inputTokens");
        self.usage.output_tokens += number("outputTokens");
        self.usage.cache_read_tokens += number("cacheReadTokens");
        self.usage.cache_write_tokens += number("cacheWriteTokens");
        self.usage.cost_usd = self.usage.cost_usd.zip(usage["costUsd"].as_f64()).map(|(sum, cost)| sum + cost);
    }
}

/// How many messages a branch shows, line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageCount {
    whole: usize,
    /// Messages of another program, which no turn line ends.
    foreign: bool,
    /// Within a turn of ours.
    begun: bool,
}

impl MessageCount {
    /// Over a whole branch.
    pub fn of(branch: &[&Entry]) -> Self {
        let mut count = Self::default();
        for entry in branch {
            count.apply(&entry.kind);
        }
        count
    }

    /// Takes the next line of the branch.
    pub fn apply(&mut self, kind: &Kind) {
        match kind {
            Kind::User { .. } => {
                self.whole += 1 + usize::from(self.foreign);
                (self.foreign, self.begun) = (false, false);
            }
            Kind::Assistant(_) | Kind::ToolResult(_) => self.foreign = !self.begun,
            Kind::Turn(turn) if turn.status == TurnStatus::Running => {
                self.whole += usize::from(self.foreign);
                (self.foreign, self.begun) = (false, true);
            }
            Kind::Turn(_) => {
                self.whole += 1;
                (self.foreign, self.begun) = (false, false);
            }
            _ => {}
        }
    }

    /// The count.
    pub fn get(self) -> usize {
        self.whole + usize::from(self.foreign)
    }
}
