//! Claims and signing.

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};

use super::{KeyRing, Scope, TrustError};

/// Claim `iss` of every token this program signs, the printed user tokens too.
pub const ISSUER: &str = "agents.boring.dev/operator";
/// Claim `iss` of the tokens that the gateway signs for the people it let in.
pub const GATEWAY_ISSUER: &str = "agents.boring.dev/gateway";
/// Claim `sub` of lifecycle calls.
pub const LIFECYCLE_SUBJECT: &str = "system:operator";
/// Claim `sub` of a printed token when neither the caller nor the workspace names a user.
pub const PRINTED_TOKEN_SUBJECT: &str = "operator-token";
/// A lifecycle call happens at once; a minute covers one slow call.
pub const LIFECYCLE_TOKEN_SECONDS: i64 = 60;
/// A printed token serves a person at a terminal: ten minutes.
pub const PRINTED_TOKEN_SECONDS: i64 = 600;

/// What a token says. The field names are the wire names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Who signed.
    pub iss: String,
    /// The one pod it is good for: see [`audience`].
    pub aud: String,
    /// The user it speaks for.
    pub sub: String,
    /// `user` or `lifecycle`; equal to the scope of the signing key.
    pub scope: String,
    /// Seconds since the epoch.
    pub iat: i64,
    /// Seconds since the epoch.
    pub nbf: i64,
    /// Seconds since the epoch.
    pub exp: i64,
}

/// The audience of a pod: `<namespace>/<name>/<workspace uid>/<pod uid>`. A token for one life of a workspace is of no
/// use against the next one, nor against another tenant that got the same address.
pub fn audience(namespace: &str, name: &str, workspace_uid: &str, pod_uid: &str) -> String {
    format!("{namespace}/{name}/{workspace_uid}/{pod_uid}")
}

impl KeyRing {
    /// Signs a token that is good from `now` for `seconds`.
    pub fn sign(
        &self,
        scope: Scope,
        audience: String,
        subject: &str,
        now: Timestamp,
        seconds: i64,
    ) -> Result<String, TrustError> {
        self.sign_as(ISSUER, scope, audience, subject, now, seconds)
    }

    /// As [`KeyRing::sign`], in the gateway's name.
    pub fn sign_as_gateway(
        &self,
        scope: Scope,
        audience: String,
        subject: &str,
        now: Timestamp,
        seconds: i64,
    ) -> Result<String, TrustError> {
        self.sign_as(GATEWAY_ISSUER, scope, audience, subject, now, seconds)
    }

    fn sign_as(
        &self,
        issuer: &str,
        scope: Scope,
        audience: String,
        subject: &str,
        now: Timestamp,
        seconds: i64,
    ) -> Result<String, TrustError> {
        let pair = self.signing(scope)?;
        let begins = now.as_second();
        let claims = Claims {
            iss: issuer.to_owned(),
            aud: audience,
            sub: subject.to_owned(),
            scope: scope.as_str().to_owned(),
            iat: begins,
            nbf: begins,
            exp: begins + seconds,
        };
        let header = Header { kid: Some(pair.id.clone()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ed_der(pair.private())).map_err(TrustError::Signing)
    }
}
