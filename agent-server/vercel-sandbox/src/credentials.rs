//! Who calls: a token with its team and project, or an OIDC token that names both and is read again when it is old.

use std::fmt;
use std::path::PathBuf;

use base64::Engine;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::error::Error;

/// An OIDC token is read again when it is valid for less than this: five minutes, in milliseconds.
const FRESH: u64 = 300_000;
/// Largest token file that is read.
const LARGEST: usize = 64 * 1024;

/// Where the token comes from.
#[derive(Clone)]
pub enum Credentials {
    /// An access token.
    Token {
        /// The token.
        token: SecretString,
        /// Team id.
        team: String,
        /// Project id.
        project: String,
    },
    /// An OIDC token in a file that something else keeps fresh.
    OidcFile(PathBuf),
    /// An OIDC token in a variable of this process's environment.
    OidcVariable(String),
}

impl Credentials {
    /// An access token of a team, for one project.
    pub fn token(token: SecretString, team: impl Into<String>, project: impl Into<String>) -> Self {
        Self::Token { token, team: team.into(), project: project.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { team, project, .. } => {
                formatter.debug_struct("Token").field("team", team).field("project", project).finish_non_exhaustive()
            }
            Self::OidcFile(path) => formatter.debug_tuple("OidcFile").field(path).finish(),
            Self::OidcVariable(name) => formatter.debug_tuple("OidcVariable").field(name).finish(),
        }
    }
}

/// What a request carries.
#[derive(Clone)]
pub struct Identity {
    pub token: SecretString,
    pub team: String,
    pub project: String,
    expires: Option<u64>,
}

#[derive(Deserialize)]
struct Claims {
    owner_id: String,
    project_id: String,
    exp: Option<u64>,
}

/// The credentials with what was read last.
pub struct Source {
    credentials: Credentials,
    last: Mutex<Option<Identity>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.credentials.fmt(formatter)
    }
}

impl Source {
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, last: Mutex::new(None) }
    }

    /// The identity at this time; `anew` reads the token again even if it looks fresh. A token that has expired by this
    /// machine's clock is sent all the same: that clock may be wrong, and the service decides.
    pub async fn identity(&self, now: u64, anew: bool) -> Result<Identity, Error> {
        let mut last = self.last.lock().await;
        let fresh = |identity: &&Identity| identity.expires.is_none_or(|expires| expires >= now + FRESH);
        if let Some(identity) = last.as_ref().filter(|_| !anew).filter(fresh) {
            return Ok(identity.clone());
        }
        let identity = match &self.credentials {
            Credentials::Token { token, team, project } => {
                Identity { token: token.clone(), team: team.clone(), project: project.clone(), expires: None }
            }
            Credentials::OidcFile(path) => {
                let text = tokio::fs::read_to_string(path)
                    .await
                    .map_err(|error| Error::Credentials(format!("{}: {error}", path.display())))?;
                decode(&text)?
            }
            Credentials::OidcVariable(name) => {
                decode(&std::env::var(name).map_err(|_| Error::Credentials(format!("{name} is not set")))?)?
            }
        };
        *last = Some(identity.clone());
        Ok(identity)
    }
}

/// Claims are read for team and project only; their signature is the service's matter.
fn decode(text: &str) -> Result<Identity, Error> {
    let token = text.trim();
    let wrong = || Error::Credentials("the OIDC token has no readable owner_id and project_id".to_owned());
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    if token.len() > LARGEST {
        return Err(wrong());
    }
    let claims =
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).map_err(|_| wrong())?;
    let Claims { owner_id, project_id, exp } = serde_json::from_slice(&claims).map_err(|_| wrong())?;
    if owner_id.is_empty() || project_id.is_empty() {
        return Err(wrong());
    }
    let expires = exp.map(|seconds| seconds.saturating_mul(1000));
    Ok(Identity { token: token.to_owned().into(), team: owner_id, project: project_id, expires })
}

impl Identity {
    /// Text without the token, should a service echo it.
    pub fn without_token(&self, text: &str) -> String {
        match self.token.expose_secret() {
            "" => text.to_owned(),
            token => text.replace(token, "[redacted]"),
        }
    }
}
