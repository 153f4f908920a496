//! Who calls: bearer tokens, signed or static.
//!
//! Owns token verification and its caches. Must not know HTTP routes; the HTTP layer asks for a [`Principal`] and
//! compares its scopes with the route.

mod browser_sessions;
mod polled_file;
mod signed;
mod static_token;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use secrecy::ExposeSecret as _;

use self::browser_sessions::BrowserSessions;
pub use self::browser_sessions::LIFETIME as BROWSER_SESSION_LIFETIME;
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
    browsers: BrowserSessions,
}

impl Authenticator {
    /// Builds the sources; files are read at the first use and again when they change.
    pub fn new(config: &AuthenticationConfig) -> Self {
        Self {
            signed: config.signed.as_ref().map(SignedTokenVerifier::new),
            fixed: config.static_token_file.as_ref().map(StaticToken::new),
            browsers: BrowserSessions::default(),
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
        self.verify(bearer(value)?)
    }

    /// Begins a browser's session for the value of an `Authorization` header; returns the value of its cookie.
    pub fn begin_browser_session(&self, authorization: Option<&[u8]>) -> Result<String, AuthError> {
        let token = bearer(authorization.ok_or(AuthError::Required)?)?;
        self.verify(token)?;
        let handle = self.browsers.begin(token, Instant::now());
        handle.ok_or_else(|| AuthError::Invalid("the system gives no random bytes".into()))
    }

    /// Verifies the value of a browser's cookie. It is never good for the lifecycle calls: no page makes them.
    pub fn authenticate_browser(&self, cookie: &str) -> Result<Arc<Principal>, AuthError> {
        let token = self.browsers.token(cookie, Instant::now()).ok_or(AuthError::Required)?;
        let principal = self.verify(token.expose_secret())?;
        if principal.lifecycle {
            return Ok(Arc::new(Principal { lifecycle: false, ..(*principal).clone() }));
        }
        Ok(principal)
    }

    fn verify(&self, token: &str) -> Result<Arc<Principal>, AuthError> {
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
