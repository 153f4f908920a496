//! One user interface that waits for commands: where it stands and what it is told next.
//!
//! Owns resuming. Must not know the wire.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Command, UiBridge};

/// What an interface is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The first thing: every command after the reader's position follows.
    Hello,
    /// A command with its number.
    Command(u64, Command),
    /// Commands were missed.
    Resync,
}

/// A waiting interface. Dropping it is enough to leave.
pub struct CommandReader {
    bridge: Arc<UiBridge>,
    number: u64,
    numbers: watch::Receiver<u64>,
    greeted: bool,
    lost: bool,
}

impl CommandReader {
    /// Begins after the number in `last_event_id`, else after the last command that any interface was given.
    pub fn new(bridge: Arc<UiBridge>, last_event_id: Option<&str>) -> Self {
        let numbers = bridge.follow();
        let (number, lost) = match last_event_id {
            None => (bridge.undelivered(), false),
            Some(id) => match id.parse().ok().filter(|number| bridge.keeps_after(*number)) {
                Some(number) => (number, false),
                None => (bridge.last(), true),
            },
        };
        Self { bridge, number, numbers, greeted: false, lost }
    }

    /// Number of the last command told.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next thing. Waits until there is one; may be dropped while waiting.
    pub async fn next(&mut self) -> Told {
        if !std::mem::replace(&mut self.greeted, true) {
            return Told::Hello;
        }
        if std::mem::take(&mut self.lost) {
            return Told::Resync;
        }
        loop {
            self.numbers.mark_unchanged();
            match self.bridge.next_after(self.number) {
                Err(_) => {
                    self.number = self.bridge.last();
                    return Told::Resync;
                }
                Ok(Some((number, command))) => {
                    self.number = number;
                    return Told::Command(number, command);
                }
                // The sender lives in the bridge, so the wait cannot fail.
                Ok(None) => {
                    let _ = self.numbers.changed().await;
                }
            }
        }
    }
}
