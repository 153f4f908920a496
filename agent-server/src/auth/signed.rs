//! Signed tokens: JWS with Ed25519, keys from a JWKS file, claims and scopes as the contract with the operator says.
//!
//! Owns verification and the cache of verified tokens. The time is passed in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::Value;

use super::polled_file::PolledFile;
use super::{AuthError, Principal};
use crate::config::SignedTokens;

/// Clock difference that is forgiven, seconds.
const LEEWAY: u64 = 30;
/// Verified tokens kept: 1,024 tokens of about 700 bytes are 0.7 MiB.
const MAX_CACHED: usize = 1024;
/// A token with the claims above is about 600 bytes; longer ones are refused unread.
const MAX_TOKEN_BYTES: usize = 8 * 1024;
const ISSUERS: [&str; 2] = ["agents.boring.dev/operator", "agents.boring.dev/gateway"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    User,
    Lifecycle,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    alg: Option<String>,
    kid: Option<String>,
    x: Option<String>,
    boring_scope: Option<Scope>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    scope: Scope,
    iat: u64,
    nbf: u64,
    exp: u64,
}

struct Key {
    decoding: DecodingKey,
    scope: Scope,
}

struct Verified {
    principal: Arc<Principal>,
    expires: u64,
}

#[derive(Default)]
struct State {
    /// By key id; `Err` says why the file is unusable.
    keys: HashMap<String, Key>,
    unusable: Option<String>,
    verified: HashMap<String, Verified>,
}

/// Whether the header has a `crit` member. RFC 7515 section 4.1.11: what it names has to be understood, else the token is
/// not good; the library passes over it.
fn names_extensions(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let members = URL_SAFE_NO_PAD.decode(header).ok().and_then(|json| serde_json::from_slice::<Value>(&json).ok());
    members.is_none_or(|members| members.get("crit").is_some())
}

/// Verifies signed tokens.
pub struct SignedTokenVerifier {
    file: PolledFile,
    audience: String,
    validation: Validation,
    state: Mutex<State>,
}

impl SignedTokenVerifier {
    /// Reads the keys at the first use.
    pub fn new(config: &SignedTokens) -> Self {
        // Signature and algorithm are checked by the library; times and names below, where the answer can say more.
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        Self {
            file: PolledFile::new(&config.keys_file),
            audience: config.audience.clone(),
            validation,
            state: Mutex::new(State::default()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Verifies a compact JWS; `now` is seconds since the Unix epoch.
    pub fn verify(&self, token: &str, now: u64) -> Result<Arc<Principal>, AuthError> {
        self.file.changed(|content| self.replace_keys(content));
        let mut state = self.state();
        if let Some(verified) = state.verified.get(token) {
            if now <= verified.expires.saturating_add(LEEWAY) {
                return Ok(verified.principal.clone());
            }
            state.verified.remove(token);
        }
        let (claims, key_scope) = self.decode(&state, token)?;
        let expires = claims.exp;
        let principal = Arc::new(self.judge(claims, key_scope, now)?);
        if state.verified.len() >= MAX_CACHED {
            state.verified.retain(|_, verified| now <= verified.expires);
            if state.verified.len() >= MAX_CACHED {
                state.verified.clear();
            }
        }
        state.verified.insert(token.to_string(), Verified { principal: principal.clone(), expires });
        Ok(principal)
    }

    fn decode(&self, state: &State, token: &str) -> Result<(Claims, Scope), AuthError> {
        let invalid = |message: &str| AuthError::Invalid(message.into());
        if token.len() > MAX_TOKEN_BYTES {
            return Err(invalid("the token is too long"));
        }
        if let Some(reason) = &state.unusable {
            return Err(AuthError::Invalid(format!("the server's key file is unusable: {reason}")));
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| invalid("the token is not a signed token"))?;
        if header.alg != Algorithm::EdDSA {
            return Err(invalid("the token is not signed with EdDSA"));
        }
        if names_extensions(token) {
            return Err(invalid("the token demands an extension (`crit`), and none is known here"));
        }
        let kid = header.kid.ok_or_else(|| invalid("the token names no key (`kid`)"))?;
        let key =
            state.keys.get(&kid).ok_or_else(|| invalid("the token is signed with a key this server does not know"))?;
        let data =
            jsonwebtoken::decode::<Claims>(token, &key.decoding, &self.validation).map_err(|error| {
                match error.kind() {
                    jsonwebtoken::errors::ErrorKind::Json(_) => {
                        invalid("the token's claims are not iss, aud, sub, scope, iat, nbf and exp as agreed")
                    }
                    _ => invalid("the token's signature is not good"),
                }
            })?;
        Ok((data.claims, key.scope))
    }

    /// Names, scope and times.
    fn judge(&self, claims: Claims, key_scope: Scope, now: u64) -> Result<Principal, AuthError> {
        let invalid = |message: String| Err(AuthError::Invalid(message));
        if !ISSUERS.contains(&claims.iss.as_str()) {
            return invalid("the token's issuer is not trusted".into());
        }
        if claims.aud != self.audience {
            return invalid("the token is for another workspace or an earlier pod".into());
        }
        if claims.scope != key_scope {
            return invalid("the token's scope is not the scope of the key that signed it".into());
        }
        if now > claims.exp.saturating_add(LEEWAY) {
            return invalid(format!("the token expired {} s ago by this server's clock", now - claims.exp));
        }
        let begins = claims.nbf.max(claims.iat);
        if begins > now.saturating_add(LEEWAY) {
            return invalid(format!(
                "the token is not valid yet: this server's clock is {} s behind its issue",
                begins - now
            ));
        }
        Ok(Principal {
            subject: claims.sub,
            user: claims.scope == Scope::User,
            lifecycle: claims.scope == Scope::Lifecycle,
        })
    }

    /// Takes over a changed file. An unusable file leaves no key: a withdrawn key must not live on.
    fn replace_keys(&self, content: Result<Vec<u8>, String>) {
        let parsed = content.and_then(|bytes| parse(&bytes));
        let mut state = self.state();
        state.verified.clear();
        match parsed {
            Ok(keys) => {
                tracing::info!(keys = keys.len(), "token keys read");
                state.keys = keys;
                state.unusable = None;
            }
            Err(reason) => {
                tracing::error!(%reason, "the token key file is unusable; signed tokens are refused");
                state.keys.clear();
                state.unusable = Some(reason);
            }
        }
    }
}

/// Keys of other types or without a scope are passed over: a key set may grow.
fn parse(bytes: &[u8]) -> Result<HashMap<String, Key>, String> {
    let jwks: Jwks = serde_json::from_slice(bytes).map_err(|_| "not a JSON web key set".to_string())?;
    let mut keys = HashMap::new();
    for jwk in jwks.keys {
        let fits = jwk.kty == "OKP"
            && jwk.crv.as_deref() == Some("Ed25519")
            && jwk.alg.as_deref().is_none_or(|alg| alg == "EdDSA");
        let (true, Some(kid), Some(x), Some(scope)) = (fits, jwk.kid, jwk.x, jwk.boring_scope) else {
            tracing::warn!("a key of the token key file is not an Ed25519 key with `kid`, `x` and `boring_scope`");
            continue;
        };
        let decoding = DecodingKey::from_ed_components(&x).map_err(|_| format!("key `{kid}` is not base64url"))?;
        keys.insert(kid, Key { decoding, scope });
    }
    if keys.is_empty() {
        return Err("it holds no usable key".into());
    }
    Ok(keys)
}
