//! Who calls: bearer tokens, signed or static.
//!
//! Owns token verification and its caches. Must not know HTTP routes; the HTTP layer asks for a [`Principal`] and
//! compares its scopes with the route.

mod polled_file;
mod signed;
mod static_token;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use signed::SignedTokenVerifier;
pub use static_token::{StaticToken, ensure_generated};

use crate::config::AuthenticationConfig;

/// A caller that proved who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// User name, `system:operator`, or `static` for the static token.
    pub subject: String,
    /// Good for everything but the lifecycle calls.
    pub user: bool,
    /// Good for the lifecycle calls.
    pub lifecycle: bool,
}

/// Why a caller is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No token.
    #[error("a bearer token is required")]
    Required,
    /// A token that is not good; the message says why without repeating it.
    #[error("{0}")]
    Invalid(String),
}

/// Verifies bearer tokens from every configured source.
pub struct Authenticator {
    signed: Option<SignedTokenVerifier>,
    fixed: Option<StaticToken>,
}

impl Authenticator {
    /// Builds the sources; files are read at the first use and again when they change.
    pub fn new(config: &AuthenticationConfig) -> Self {
        Self {
            signed: config.signed.as_ref().map(SignedTokenVerifier::new),
            fixed: config.static_token_file.as_ref().map(StaticToken::new),
        }
    }

    /// Whether the static token is accepted; then browsers may call, so Host and Origin are checked.
    pub fn accepts_static_token(&self) -> bool {
        self.fixed.is_some()
    }

    /// Verifies the value of the `Authorization` header.
    pub fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Arc<Principal>, AuthError> {
        let Some(value) = authorization else {
            return Err(AuthError::Required);
        };
        let token = bearer(value)?;
        match (&self.signed, &self.fixed) {
            // A compact JWS has exactly two dots; a static token that has them too is still tried.
            (Some(signed), fixed) if token.bytes().filter(|byte| *byte == b'.').count() == 2 => {
                let verified = signed.verify(token, unix_now());
                match fixed {
                    Some(fixed) if verified.is_err() => fixed.verify(token).or(verified),
                    _ => verified,
                }
            }
            (_, Some(fixed)) => fixed.verify(token),
            (Some(_), None) => Err(AuthError::Invalid("the token is not a signed token".into())),
            (None, None) => Err(AuthError::Invalid("no token source is configured".into())),
        }
    }
}

/// The token of `Bearer <token>`; the scheme's case does not matter (RFC 9110).
fn bearer(value: &[u8]) -> Result<&str, AuthError> {
    let invalid = || AuthError::Invalid("the Authorization header is not `Bearer <token>`".into());
    let text = std::str::from_utf8(value).map_err(|_| invalid())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(invalid)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(invalid());
    }
    Ok(token)
}

/// Seconds since the Unix epoch; 0 before it.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
