//! Sessions of browsers: a cookie stands for a bearer token.
//!
//! Owns the handles. The token itself is kept and verified anew on each request, so that a cookie is never good for
//! longer than its token: when that expires or its key is withdrawn, the cookie ends too.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};

/// Longest life of a cookie: a working week; the page asks for a new one with its token.
pub const LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// Browsers at once: with tokens of 8 KiB at most 8 MiB. The one that ends first makes room.
const MAX_SESSIONS: usize = 1024;

struct Held {
    token: SecretString,
    ends: Instant,
}

/// The sessions of one process; a restart ends them.
#[derive(Default)]
pub struct BrowserSessions {
    /// By the hash of the handle, so that a look-up tells nothing by its time.
    held: Mutex<HashMap<[u8; 32], Held>>,
}

fn key(handle: &str) -> [u8; 32] {
    Sha256::digest(handle.as_bytes()).into()
}

impl BrowserSessions {
    /// Begins a session for a token that was verified; returns its handle, 256 random bits. `None`: the system has no
    /// random bytes.
    pub fn begin(&self, token: &str, now: Instant) -> Option<String> {
        let mut bytes = [0_u8; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let handle = URL_SAFE_NO_PAD.encode(bytes);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MAX_SESSIONS {
            held.retain(|_, session| session.ends > now);
        }
        if held.len() >= MAX_SESSIONS
            && let Some(first) = held.iter().min_by_key(|(_, session)| session.ends).map(|(key, _)| *key)
        {
            held.remove(&first);
        }
        held.insert(key(&handle), Held { token: SecretString::from(token.to_string()), ends: now + LIFETIME });
        Some(handle)
    }

    /// The token that a handle stands for.
    pub fn token(&self, handle: &str, now: Instant) -> Option<SecretString> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&key(handle)).filter(|session| session.ends > now).map(|session| session.token.clone())
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_handle_stands_for_its_token_until_it_ends() {
        let sessions = BrowserSessions::default();
        let now = Instant::now();
        let handle = sessions.begin("token", now).expect("random bytes");
        let token = |at| sessions.token(&handle, at).map(|token| token.expose_secret().to_string());
        assert_eq!(token(now), Some("token".into()));
        assert_eq!(token(now + LIFETIME), None);
        assert!(sessions.token("another", now).is_none());
    }

    #[test]
    fn the_session_that_ends_first_makes_room() {
        let sessions = BrowserSessions::default();
        let now = Instant::now();
        let first = sessions.begin("token", now).expect("random bytes");
        let later = now + Duration::from_secs(1);
        let handles: Vec<_> = (0..MAX_SESSIONS).filter_map(|_| sessions.begin("token", later)).collect();
        assert!(sessions.token(&first, later).is_none());
        assert!(handles.iter().all(|handle| sessions.token(handle, later).is_some()));
    }
}
