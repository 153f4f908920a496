//! Sessions of browsers and one-time links: sealed by the gateway, readable by every replica, kept nowhere.
//!
//! Owns what they say and how long they hold. A session is for one workspace; it holds the person as the API server named
//! them when it was made, so a change of groups shows after it ends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Person, WorkspaceKey},
    trust::KeyRing,
};

/// How long a browser stays signed in.
pub const SESSION_SECONDS: i64 = 12 * 3600;
/// How long a link can be opened.
pub const LINK_SECONDS: i64 = 60;
/// Browsers keep cookies up to 4,096 bytes, name and attributes included.
const SEALED_BYTES: usize = 3800;
/// Keeps the two kinds of sealed texts, and other uses of the key, apart.
const PURPOSE: &str = "agents.boring.dev/gateway session";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Use {
    Session,
    Link,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sealed {
    #[serde(rename = "use")]
    use_: Use,
    workspace: String,
    person: Person,
    /// Seconds since the epoch.
    until: i64,
    /// Tells two links of one second apart.
    id: u64,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// More groups than fit into a cookie.
    #[error("the user's groups do not fit into a session; use a bearer token")]
    TooLong,
    /// No key to seal with.
    #[error("the gateway has no key to seal a session with")]
    NoKey,
}

/// Makes and reads sessions and links.
pub struct Sessions {
    keys: RwLock<Arc<KeyRing>>,
    /// Links opened here, until they could no longer be opened anyway.
    opened: Mutex<HashMap<u64, i64>>,
}

impl Sessions {
    /// Seals with keys derived from the gateway's signing keys.
    pub fn new(keys: Arc<KeyRing>) -> Self {
        Self { keys: RwLock::new(keys), opened: Mutex::new(HashMap::new()) }
    }

    /// Takes other keys from now on.
    pub fn use_keys(&self, keys: Arc<KeyRing>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The value of a session cookie.
    pub fn seal_session(&self, key: &WorkspaceKey, person: &Person, now: Timestamp) -> Result<String, SessionError> {
        self.seal(Use::Session, key, person, now.as_second() + SESSION_SECONDS)
    }

    /// The secret part of a link.
    pub fn seal_link(&self, key: &WorkspaceKey, person: &Person, now: Timestamp) -> Result<String, SessionError> {
        self.seal(Use::Link, key, person, now.as_second() + LINK_SECONDS)
    }

    fn seal(&self, use_: Use, key: &WorkspaceKey, person: &Person, until: i64) -> Result<String, SessionError> {
        let sealed = Sealed { use_, workspace: key.to_string(), person: person.clone(), until, id: rand::random() };
        let payload = serde_json::to_vec(&sealed).expect("texts and numbers are JSON");
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let tag = keys.authenticate(PURPOSE, &payload).map_err(|_| SessionError::NoKey)?;
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(tag));
        if text.len() > SEALED_BYTES { Err(SessionError::TooLong) } else { Ok(text) }
    }

    fn open(&self, use_: Use, text: &str, key: &WorkspaceKey, now: Timestamp) -> Option<Sealed> {
        if text.len() > SEALED_BYTES {
            return None;
        }
        let (payload, tag) = text.split_once('.')?;
        let (payload, tag) = (URL_SAFE_NO_PAD.decode(payload).ok()?, URL_SAFE_NO_PAD.decode(tag).ok()?);
        let authentic = self.keys.read().unwrap_or_else(PoisonError::into_inner).is_authentic(PURPOSE, &payload, &tag);
        let sealed: Sealed = serde_json::from_slice(&payload).ok().filter(|_| authentic)?;
        let good = sealed.use_ == use_ && sealed.workspace == key.to_string() && now.as_second() < sealed.until;
        good.then_some(sealed)
    }

    /// Who a session belongs to, and until when. Of another workspace, changed, or over: `None`.
    pub fn open_session(&self, text: &str, key: &WorkspaceKey, now: Timestamp) -> Option<(Person, Timestamp)> {
        let sealed = self.open(Use::Session, text, key, now)?;
        let until = now.checked_add(SignedDuration::from_secs(sealed.until - now.as_second())).ok()?;
        Some((sealed.person, until))
    }

    /// Who a link belongs to. Each replica opens it once.
    pub fn open_link(&self, text: &str, key: &WorkspaceKey, now: Timestamp) -> Option<Person> {
        let sealed = self.open(Use::Link, text, key, now)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, until| now.as_second() < *until);
        opened.insert(sealed.id, sealed.until).is_none().then_some(sealed.person)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(Arc::new(KeyRing::read(&KeyRing::generate().unwrap()).unwrap()))
    }

    fn key(name: &str) -> WorkspaceKey {
        WorkspaceKey { namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    fn alice(groups: usize) -> Person {
        let groups = (0..groups).map(|number| format!("a-group-with-a-long-name-{number}")).collect();
        Person { user: "alice".to_owned(), uid: None, groups, extra: std::collections::BTreeMap::new() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn a_session_is_good_for_its_workspace_and_twelve_hours() {
        let sessions = sessions();
        let text = sessions.seal_session(&key("api"), &alice(3), at(0)).unwrap();
        let person = |key: &WorkspaceKey, now| sessions.open_session(&text, key, now).map(|(person, _)| person);
        assert_eq!(person(&key("api"), at(SESSION_SECONDS - 1)), Some(alice(3)));
        assert_eq!(person(&key("api"), at(SESSION_SECONDS)), None);
        assert_eq!(person(&key("other"), at(0)), None);
        assert_eq!(sessions.open_link(&text, &key("api"), at(0)), None, "a session is no link");
    }

    #[test]
    fn a_changed_session_or_one_of_other_keys_is_none() {
        let sessions = sessions();
        let text = sessions.seal_session(&key("api"), &alice(0), at(0)).unwrap();
        let (payload, tag) = text.split_once('.').unwrap();
        let forged = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap().replace("alice", "admin");
        let forged = format!("{}.{tag}", URL_SAFE_NO_PAD.encode(forged));
        assert!(sessions.open_session(&forged, &key("api"), at(0)).is_none());
        assert!(self::sessions().open_session(&text, &key("api"), at(0)).is_none());
        for rubbish in ["", ".", "a.b", payload] {
            assert!(sessions.open_session(rubbish, &key("api"), at(0)).is_none(), "{rubbish}");
        }
    }

    #[test]
    fn a_link_opens_once_within_a_minute_and_is_no_session() {
        let sessions = sessions();
        let text = sessions.seal_link(&key("api"), &alice(0), at(0)).unwrap();
        assert!(sessions.open_session(&text, &key("api"), at(0)).is_none());
        assert_eq!(sessions.open_link(&text, &key("other"), at(0)), None);
        assert_eq!(sessions.open_link(&text, &key("api"), at(59)), Some(alice(0)));
        assert_eq!(sessions.open_link(&text, &key("api"), at(59)), None);
        let late = sessions.seal_link(&key("api"), &alice(0), at(0)).unwrap();
        assert_eq!(sessions.open_link(&late, &key("api"), at(60)), None);
    }

    #[test]
    fn groups_that_fit_into_no_cookie_are_refused_with_the_way_out() {
        let refused = sessions().seal_session(&key("api"), &alice(200), at(0));
        assert_eq!(refused, Err(SessionError::TooLong));
    }
}
