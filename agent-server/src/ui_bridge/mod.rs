//! The bridge between agent and user interface: the interface tells its state, the agent sends it commands.
//!
//! Owns the state, the numbered commands and what is kept over a restart: the state and the last number. Commands
//! themselves are not: one that nobody took before a restart is for a screen that is gone. Must not know HTTP.

mod command;
mod reader;
mod state;
pub mod tools;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::watch;

pub use command::{Command, CommandError, KNOWN_KINDS};
pub use reader::{CommandReader, Told};
pub use state::{CausedBy, MAX_STATE, UiState};

use crate::event_log::{EventLog, Lost};

/// Commands kept for interfaces that come back.
const MAX_COMMANDS: usize = 1000;

/// Why the bridge did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum UiBridgeError {
    /// The state is larger than [`MAX_STATE`].
    #[error("the state is larger than {MAX_STATE} bytes")]
    TooLarge,
    /// The state is not the expected one any more.
    #[error("the state was changed since it was read")]
    Conflict {
        /// Validator of the present state; `None` when there is none.
        current: Option<String>,
    },
    /// The state folder.
    #[error("the state folder cannot be written: {}", .0.kind())]
    Storage(#[from] io::Error),
}

/// The bridge of one workspace.
pub struct UiBridge {
    folder: PathBuf,
    kinds: Vec<String>,
    commands: EventLog<Command>,
    /// Number of the newest command that any interface was given.
    delivered: AtomicU64,
    state: Mutex<Option<UiState>>,
    /// One file operation at a time, so that the newest state is the one that stays.
    files: Mutex<()>,
}

impl UiBridge {
    /// Reads what was kept in `folder`, which is made when missing. `kinds` are allowed beside the known ones. Blocks.
    pub fn open(folder: PathBuf, mut kinds: Vec<String>) -> Result<Self, UiBridgeError> {
        kinds.retain(|kind| !KNOWN_KINDS.iter().any(|(known, _)| known == kind));
        crate::storage::make_private_dir(&folder)?;
        let (state, last) = (state::load(&folder)?, state::load_number(&folder)?);
        Ok(Self {
            folder,
            kinds,
            commands: EventLog::new(MAX_COMMANDS, last),
            delivered: AtomicU64::new(last),
            state: Mutex::new(state),
            files: Mutex::new(()),
        })
    }

    /// The state that the interface told last; `None` before the first time.
    pub fn state(&self) -> Option<UiState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the state; with `expected` only if the present one has this validator. Blocks.
    pub fn set_state(
        &self,
        value: Map<String, Value>,
        caused_by: CausedBy,
        expected: Option<&str>,
    ) -> Result<UiState, UiBridgeError> {
        let new = UiState::new(value, caused_by)?;
        let _one_at_a_time = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.state().map(|state| state.etag);
        if expected
            .is_some_and(|expected| current.as_deref() != Some(expected) && !(expected == "*" && current.is_some()))
        {
            return Err(UiBridgeError::Conflict { current });
        }
        state::save(&self.folder, &new)?;
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(new.clone());
        Ok(new)
    }

    /// Kinds of commands that are taken, the known ones first.
    pub fn kinds(&self) -> Vec<String> {
        KNOWN_KINDS.iter().map(|(kind, _)| (*kind).to_string()).chain(self.kinds.iter().cloned()).collect()
    }

    /// Checks a command and gives it to every interface; returns its number. Blocks.
    pub fn post(&self, kind: &str, params: Value) -> Result<Result<u64, CommandError>, UiBridgeError> {
        let command = match Command::parse(kind, params, &self.kinds) {
            Ok(command) => command,
            Err(error) => return Ok(Err(error)),
        };
        let _one_at_a_time = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // First the number, so that no number is given twice, whatever happens next.
        state::save_number(&self.folder, self.commands.last() + 1)?;
        Ok(Ok(self.commands.push(command)))
    }

    /// Number of the newest command.
    pub fn last(&self) -> u64 {
        self.commands.last()
    }

    /// Where an interface without a place of its own begins: after the last command that any interface was given.
    pub fn undelivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed).max(self.commands.dropped())
    }

    /// Whether every command after a number is still kept.
    pub fn keeps_after(&self, number: u64) -> bool {
        self.commands.next_after(number).is_ok()
    }

    /// Every command after a number, oldest first. From now on they count as delivered.
    pub fn after(&self, number: u64) -> Result<Vec<(u64, Command)>, Lost> {
        let commands = self.commands.after(number)?;
        if let Some((newest, _)) = commands.last() {
            self.delivered.fetch_max(*newest, Ordering::Relaxed);
        }
        Ok(commands)
    }

    /// The first command after a number, which from now on counts as delivered.
    pub fn next_after(&self, number: u64) -> Result<Option<(u64, Command)>, Lost> {
        let command = self.commands.next_after(number)?;
        if let Some((number, _)) = &command {
            self.delivered.fetch_max(*number, Ordering::Relaxed);
        }
        Ok(command)
    }

    /// Changes with each new command. Take it before looking at the commands.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.commands.follow()
    }
}

#[cfg(test)]
mod tests;
