//! The state of the user interface, and the two files that outlive the process.
//!
//! Owns their format. They are replaced as a whole and not synced: after a power cut the interface tells its state
//! again, and a number that went back makes interfaces look anew.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::UiBridgeError;

/// Bytes of a state at most.
pub const MAX_STATE: usize = 1024 * 1024;
const STATE_FILE: &str = "state.json";
const NUMBER_FILE: &str = "last-command";

/// Who changed the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CausedBy {
    /// The user.
    User,
    /// A command of the agent.
    Agent,
    /// A page that was loaded again.
    Restore,
}

/// The state as the interface told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UiState {
    /// The object.
    pub value: Map<String, Value>,
    /// Who changed it last.
    pub caused_by: CausedBy,
    /// Validator, in quotes.
    pub etag: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    state: Map<String, Value>,
    caused_by: CausedBy,
}

impl UiState {
    /// Checks the size and makes the validator.
    pub fn new(value: Map<String, Value>, caused_by: CausedBy) -> Result<Self, UiBridgeError> {
        let text = Value::Object(value);
        let bytes = text.to_string();
        let Value::Object(value) = text else { return Err(UiBridgeError::TooLarge) };
        if bytes.len() > MAX_STATE {
            return Err(UiBridgeError::TooLarge);
        }
        let digest = Sha256::digest(bytes.as_bytes());
        let etag = digest.iter().take(16).fold(String::from("\""), |text, byte| format!("{text}{byte:02x}")) + "\"";
        Ok(Self { value, caused_by, etag })
    }
}

/// The kept state. One that cannot be read as JSON is told in the log and forgotten: the interface tells it again.
pub fn load(folder: &Path) -> Result<Option<UiState>, UiBridgeError> {
    let Some(bytes) = read(&folder.join(STATE_FILE))? else { return Ok(None) };
    match serde_json::from_slice::<Kept>(&bytes) {
        Ok(kept) => UiState::new(kept.state, kept.caused_by).map(Some),
        Err(error) => {
            tracing::warn!(%error, "the kept state of the user interface is damaged and was dropped");
            Ok(None)
        }
    }
}

/// Replaces the kept state.
pub fn save(folder: &Path, state: &UiState) -> io::Result<()> {
    let kept = Kept { state: state.value.clone(), caused_by: state.caused_by };
    replace(&folder.join(STATE_FILE), &serde_json::to_vec(&kept)?)
}

/// Number of the last command; 0 before the first.
pub fn load_number(folder: &Path) -> Result<u64, UiBridgeError> {
    let Some(bytes) = read(&folder.join(NUMBER_FILE))? else { return Ok(0) };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
    if number.is_none() {
        tracing::warn!("the kept number of the last command is damaged; numbers begin again");
    }
    Ok(number.unwrap_or(0))
}

/// Replaces the kept number.
pub fn save_number(folder: &Path, number: u64) -> io::Result<()> {
    replace(&folder.join(NUMBER_FILE), number.to_string().as_bytes())
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = crate::storage::private_file().write(true).create(true).truncate(true).open(&new)?;
    file.write_all(bytes)?;
    drop(file);
    fs::rename(new, path)
}
