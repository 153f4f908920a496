//! Who calls: bearer tokens by review, browsers by the gateway's own session.
//!
//! Owns what counts as a credential and how long an answer about it is used. Must not know what anybody may do.

use std::{fmt, sync::Arc, time::Duration};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::{headers::session_cookie, recent::Recent, route::Form, session::Sessions};
use crate::cluster::{ClusterError, Person, Reviews, WorkspaceKey};

/// Audience that tokens for this gateway have: `kubectl create token NAME --audience agents.boring.dev/gateway`.
pub const AUDIENCE: &str = "agents.boring.dev/gateway";
/// A token that was good is good for this long without another look.
const GOOD: Duration = Duration::from_secs(10);
/// One that was not may have been made in the meantime.
const BAD: Duration = Duration::from_secs(2);
/// Longest token that is looked at: service account tokens have 1 KiB, some OIDC tokens 8.
const TOKEN_BYTES: usize = 16 * 1024;

/// What a caller proved itself with. Prints nothing of it.
#[derive(Clone)]
pub struct Credential {
    /// Tells credentials apart, and tells nothing about them.
    pub digest: [u8; 32],
    proof: Proof,
}

#[derive(Clone)]
enum Proof {
    Bearer(Arc<SecretString>),
    /// Checked already; ends at this time.
    Session(Arc<Person>, Timestamp),
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credential").finish_non_exhaustive()
    }
}

impl Credential {
    /// A bearer token; `None` when it cannot be one.
    pub fn bearer(token: &str) -> Option<Self> {
        let plausible =
            !token.is_empty() && token.len() <= TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
        plausible.then(|| Self {
            digest: Sha256::digest(token).into(),
            proof: Proof::Bearer(Arc::new(SecretString::from(token))),
        })
    }

    /// A browser's session.
    fn session(text: &str, person: Person, until: Timestamp) -> Self {
        Self { digest: Sha256::digest(text).into(), proof: Proof::Session(Arc::new(person), until) }
    }

    /// Whether a browser sends it by itself, wherever the request comes from.
    pub const fn is_ambient(&self) -> bool {
        matches!(self.proof, Proof::Session(..))
    }
}

/// Finds the credential of a request. Host form takes bearer tokens and the session of that host, path form bearer tokens only.
pub fn credential(
    headers: &HeaderMap,
    form: Form,
    key: &WorkspaceKey,
    sessions: &Sessions,
    now: Timestamp,
) -> Option<Credential> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| Credential::bearer(token.trim()))?;
    }
    let text = session_cookie(headers).filter(|_| form == Form::Host)?;
    let (person, until) = sessions.open_session(text, key, now)?;
    Some(Credential::session(text, person, until))
}

/// Answers who somebody is.
pub struct Identities {
    reviews: Reviews,
    /// Whether tokens made for the API server itself are taken too.
    accept_cluster_tokens: bool,
    recent: Recent<[u8; 32], Option<Arc<Person>>>,
}

impl Identities {
    /// Asks `reviews`.
    pub fn new(reviews: Reviews, accept_cluster_tokens: bool) -> Self {
        let recent = Recent::new(|person: &Option<Arc<Person>>| if person.is_some() { GOOD } else { BAD });
        Self { reviews, accept_cluster_tokens, recent }
    }

    /// The person behind a credential; `None` when it is nobody's, or no longer good.
    pub async fn person(&self, credential: &Credential, now: Timestamp) -> Result<Option<Arc<Person>>, ClusterError> {
        match &credential.proof {
            Proof::Session(person, until) => Ok((now < *until).then(|| Arc::clone(person))),
            Proof::Bearer(token) => {
                self.recent.get(&credential.digest, || Box::pin(self.review(token.expose_secret()))).await
            }
        }
    }

    async fn review(&self, token: &str) -> Result<Option<Arc<Person>>, ClusterError> {
        let mut person = self.reviews.token(token, Some(AUDIENCE)).await?;
        if person.is_none() && self.accept_cluster_tokens {
            person = self.reviews.token(token, None).await?;
        }
        Ok(person.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_prints_nothing_of_itself() {
        let credential = Credential::bearer("very-secret").unwrap();
        assert_eq!(format!("{credential:?}"), "Credential { .. }");
    }

    #[test]
    fn only_what_can_be_a_token_is_looked_at() {
        assert!(Credential::bearer("").is_none());
        assert!(Credential::bearer("a b").is_none());
        assert!(Credential::bearer(&"a".repeat(TOKEN_BYTES + 1)).is_none());
        assert!(Credential::bearer("eyJ.a-b_c~d+/=").is_some());
    }
}
