//! The operator's key pairs and the tokens they sign (`docs/contract.md`, "Tokens").
//!
//! Owns: key generation, the layout of the key Secret, the public key set that every pod carries, claims and signing.
//! Must not know: the API server (`cluster::keys` reads and creates the Secret), what a token is used for.

mod key_ring;
pub mod rotation;
mod signer;
mod token;

pub use key_ring::{KeyPair, KeyRing, Stage};
pub use signer::{InUse, Signer};
pub use token::{
    Claims, GATEWAY_ISSUER, ISSUER, LIFECYCLE_SUBJECT, LIFECYCLE_TOKEN_SECONDS, PRINTED_TOKEN_SECONDS,
    PRINTED_TOKEN_SUBJECT, audience,
};

use std::fmt;

/// What a key pair may sign, and so what a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The routes people and programs use: files, chat, sessions.
    User,
    /// The operator's own calls: activity, drain, quiesce. Never good for a user route, and the other way round.
    Lifecycle,
}

impl Scope {
    /// Every scope, in the order of the key set.
    pub const ALL: [Self; 2] = [Self::User, Self::Lifecycle];

    /// The word in the claim `scope`, in the key set and in the Secret's data keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Lifecycle => "lifecycle",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why keys or tokens could not be made or read. No variant carries key material.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The system's random source failed.
    #[error("no randomness to make a key pair")]
    Randomness,
    /// The Secret has no key that may sign for this scope.
    #[error(
        "the key secret has no entry {name}: delete the secret, then restart the operator, which makes new keys; running pods accept them after their next start"
    )]
    MissingKey {
        /// The data key that is missing.
        name: String,
    },
    /// An entry is not an Ed25519 key pair in PKCS#8.
    #[error("entry {name} of the key secret is not an Ed25519 key pair in PKCS#8 ({cause})")]
    UnreadableKey {
        /// The data key.
        name: String,
        /// The reason as the crypto library words it.
        cause: String,
    },
    /// Signing failed.
    #[error("cannot sign a token")]
    Signing(#[source] jsonwebtoken::errors::Error),
}

impl TrustError {
    /// Stable word for metrics, events and conditions.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Randomness => "RandomnessUnavailable",
            Self::MissingKey { .. } => "KeyMissing",
            Self::UnreadableKey { .. } => "KeyUnreadable",
            Self::Signing(_) => "SigningFailed",
        }
    }
}

#[cfg(test)]
mod tests;
