//! The tokens that pods see: one per user and pod, signed by the gateway, used for half a minute.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::http::HeaderValue;
use jiff::Timestamp;

use super::recent::Recent;
use crate::trust::{KeyRing, Scope, TrustError};

/// What a token says it holds for. Pods remember verified ones until then.
const TOKEN_SECONDS: i64 = 60;
/// A token is used for half of that, so that none ends on the way.
const USED: Duration = Duration::from_secs(30);

/// Makes and remembers tokens.
pub struct Tokens {
    keys: RwLock<Arc<KeyRing>>,
    recent: Recent<(String, String), HeaderValue>,
}

impl Tokens {
    /// Signs with `keys`.
    pub fn new(keys: Arc<KeyRing>) -> Self {
        Self { keys: RwLock::new(keys), recent: Recent::new(|_| USED) }
    }

    /// Signs with other keys from now on; tokens of the old ones are used up within half a minute.
    pub fn use_keys(&self, keys: Arc<KeyRing>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The header `authorization` for a user and the pod with this audience, see [`crate::trust::audience`].
    pub async fn authorization(&self, user: &str, audience: String, now: Timestamp) -> Result<HeaderValue, TrustError> {
        let key = (user.to_owned(), audience);
        let sign = || {
            let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
            let token = keys.sign_as_gateway(Scope::User, key.1.clone(), user, now, TOKEN_SECONDS)?;
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).expect("a token is base64url and dots");
            value.set_sensitive(true);
            Ok(value)
        };
        self.recent.get(&key, || Box::pin(std::future::ready(sign()))).await
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;
    use crate::trust::Claims;

    fn ring() -> Arc<KeyRing> {
        Arc::new(KeyRing::read(&KeyRing::generate().unwrap()).unwrap())
    }

    #[tokio::test]
    async fn one_token_per_user_and_pod_is_signed_by_the_gateway_and_used_again() {
        let tokens = Tokens::new(ring());
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let first = tokens.authorization("alice", "a/b/1/2".to_owned(), now).await.unwrap();
        let later = Timestamp::from_second(1_800_000_005).unwrap();
        assert_eq!(tokens.authorization("alice", "a/b/1/2".to_owned(), later).await.unwrap(), first);
        assert_ne!(tokens.authorization("bob", "a/b/1/2".to_owned(), now).await.unwrap(), first);
        assert_ne!(tokens.authorization("alice", "a/b/1/3".to_owned(), now).await.unwrap(), first);
        assert!(first.is_sensitive());
        let claims = first.to_str().unwrap().split('.').nth(1).unwrap();
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let expected = Claims {
            iss: "agents.boring.dev/gateway".to_owned(),
            aud: "a/b/1/2".to_owned(),
            sub: "alice".to_owned(),
            scope: "user".to_owned(),
            iat: 1_800_000_000,
            nbf: 1_800_000_000,
            exp: 1_800_000_060,
        };
        assert_eq!(claims, expected);
    }
}
