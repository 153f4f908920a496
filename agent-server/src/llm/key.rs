//! The model key: where it comes from, when it is read again, and whether the provider rejected it.
//!
//! Owns the key's life. Must not know the wire. The key never appears in `Debug`, logs or errors.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use secrecy::{ExposeSecret, SecretString};

use super::{KeyState, LlmError};

/// After this long a rejected key may be tried again by one chat, in case the account was repaired.
const RETRY_REJECTED_AFTER: Duration = Duration::from_secs(30);
/// A key file larger than this is no key.
const MAX_KEY_BYTES: usize = 4096;

/// Where the key comes from.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// Not configured.
    None,
    /// Not configured, and the provider is one that needs none until it says otherwise.
    NotNeeded,
    /// Given directly.
    Value(SecretString),
    /// First line of a file, read again after a rejection and while it is missing.
    File(PathBuf),
}

/// Told whenever something is learned about the key.
pub type Tell = Box<dyn Fn(KeyState) + Send + Sync>;

/// The key as last read.
pub struct ModelKey {
    source: KeySource,
    state: Mutex<State>,
    tell: Tell,
}

impl std::fmt::Debug for ModelKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ModelKey").field("source", &self.source).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    key: Option<SecretString>,
    rejected_at: Option<Instant>,
}

impl State {
    fn known(&self, source: &KeySource) -> KeyState {
        match (&self.key, self.rejected_at) {
            (None, None) if matches!(source, KeySource::NotNeeded) => KeyState::Present,
            (None, _) => KeyState::Missing,
            (Some(_), Some(_)) => KeyState::Rejected,
            (Some(_), None) => KeyState::Present,
        }
    }
}

impl ModelKey {
    /// Reads the key once and tells whether there is one.
    pub fn new(source: KeySource, tell: Tell) -> Self {
        let key = read(&source);
        let state = State { key, rejected_at: None };
        tell(state.known(&source));
        Self { source, state: Mutex::new(state), tell }
    }

    /// What is known. A missing or rejected key is looked for again in its file.
    pub fn state(&self) -> KeyState {
        let mut state = self.lock();
        if state.key.is_none() || state.rejected_at.is_some() {
            self.reload(&mut state);
        }
        match state.rejected_at {
            Some(at) if self.can_call(&state) && at.elapsed() >= RETRY_REJECTED_AFTER => KeyState::Present,
            _ => state.known(&self.source),
        }
    }

    /// Whether the provider's last word on this key was a rejection; readiness shows it.
    pub fn is_rejected(&self) -> bool {
        self.lock().rejected_at.is_some()
    }

    /// The key to send; `None` where the provider needs none.
    pub fn get(&self) -> Result<Option<SecretString>, LlmError> {
        let mut state = self.lock();
        if state.key.is_none() {
            self.reload(&mut state);
        }
        if self.can_call(&state) { Ok(state.key.clone()) } else { Err(LlmError::KeyMissing) }
    }

    fn can_call(&self, state: &State) -> bool {
        state.key.is_some() || matches!(self.source, KeySource::NotNeeded)
    }

    /// The provider rejected `used`, or a call without a key. Reads the source again; true when there is another key to
    /// try.
    pub fn rejected(&self, used: Option<&SecretString>) -> bool {
        let mut state = self.lock();
        state.rejected_at = Some(Instant::now());
        self.reload(&mut state);
        (self.tell)(state.known(&self.source));
        let text = |key: &SecretString| key.expose_secret().to_owned();
        state.key.is_some() && state.key.as_ref().map(text) != used.map(text)
    }

    /// The provider accepted the key.
    pub fn accepted(&self) {
        let mut state = self.lock();
        if state.rejected_at.take().is_some() {
            (self.tell)(state.known(&self.source));
        }
    }

    fn reload(&self, state: &mut State) {
        let fresh = read(&self.source);
        let changed = match (&fresh, &state.key) {
            (Some(fresh), Some(old)) => fresh.expose_secret() != old.expose_secret(),
            (fresh, old) => fresh.is_some() != old.is_some(),
        };
        if changed {
            state.key = fresh;
            state.rejected_at = None;
            (self.tell)(state.known(&self.source));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read(source: &KeySource) -> Option<SecretString> {
    let text = match source {
        KeySource::None | KeySource::NotNeeded => return None,
        KeySource::Value(value) => return (!value.expose_secret().is_empty()).then(|| value.clone()),
        KeySource::File(path) => match std::fs::read_to_string(path) {
            Ok(text) if text.len() <= MAX_KEY_BYTES => text,
            Ok(_) => {
                tracing::warn!("the model key file is larger than {MAX_KEY_BYTES} bytes and is not used");
                return None;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(kind = ?error.kind(), "the model key file cannot be read");
                return None;
            }
        },
    };
    let key = text.lines().next().unwrap_or_default().trim();
    (!key.is_empty()).then(|| SecretString::from(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_key_is_read_again_and_a_new_one_clears_the_rejection() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        let told = std::sync::Arc::new(Mutex::new(Vec::new()));
        let listener = told.clone();
        let tell = Box::new(move |state| listener.lock().expect("no panic").push(state));
        let key = ModelKey::new(KeySource::File(path.clone()), tell);
        assert_eq!(key.state(), KeyState::Missing);
        std::fs::write(&path, "first\n").expect("write");
        assert_eq!(key.state(), KeyState::Present);
        let used = key.get().expect("can call");
        assert!(!key.rejected(used.as_ref()), "the same key is no other key");
        assert_eq!(key.state(), KeyState::Rejected);
        std::fs::write(&path, "second").expect("write");
        assert_eq!(key.state(), KeyState::Present);
        assert!(!key.is_rejected());
        assert!(!format!("{key:?}").contains("second"));
        let told = told.lock().expect("no panic");
        assert_eq!(*told, [KeyState::Missing, KeyState::Present, KeyState::Rejected, KeyState::Present]);
    }
    #[test]
    fn a_provider_that_needs_no_key_can_be_called_until_it_asks_for_one() {
        let key = ModelKey::new(KeySource::NotNeeded, Box::new(|_| {}));
        assert_eq!((key.state(), key.get().expect("can call").is_none()), (KeyState::Present, true));
        assert!(!key.rejected(None), "there is no other key");
        assert_eq!(key.state(), KeyState::Missing);
        key.accepted();
        assert_eq!(key.state(), KeyState::Present);
        let missing = ModelKey::new(KeySource::None, Box::new(|_| {}));
        assert_eq!((missing.state(), missing.get().err()), (KeyState::Missing, Some(LlmError::KeyMissing)));
    }
}
