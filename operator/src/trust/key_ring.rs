//! Key pairs, their names in the Secret, and the public key set.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};

use super::{Scope, TrustError};

/// Ends every data key of the Secret: the value is a PKCS#8 document.
const SUFFIX: &str = ".pk8";

/// Where a key stands in a rotation. All of them are published; one of each scope signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Signs.
    Current,
    /// Published ahead of its use, so that every pod knows it before the first token.
    Next,
    /// No longer signs; its last tokens may still be on the way.
    Previous,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Current, Self::Next, Self::Previous];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Next => "next",
            Self::Previous => "previous",
        }
    }
}

/// One Ed25519 key pair with what it may sign. Prints without its private part, and wipes it when dropped.
#[derive(Clone)]
pub struct KeyPair {
    /// What it may sign.
    pub scope: Scope,
    /// Whether it signs now.
    pub stage: Stage,
    /// Key id: the first 16 characters of the base64url SHA-256 of the public key (96 bits).
    pub id: String,
    public: Vec<u8>,
    private: SecretSlice<u8>,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeyPair")
            .field("scope", &self.scope)
            .field("stage", &self.stage)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl KeyPair {
    fn read(scope: Scope, stage: Stage, pkcs8: &[u8]) -> Result<Self, TrustError> {
        // `maybe_unchecked`: documents of other tools carry no public key; what this operator writes does, and then it is checked.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8)
            .map_err(|error| TrustError::UnreadableKey { name: data_key(scope, stage), cause: error.to_string() })?;
        let public = pair.public_key().as_ref().to_vec();
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(&public))[..16].to_owned();
        Ok(Self { scope, stage, id, public, private: pkcs8.to_vec().into() })
    }

    /// A key for a purpose other than tokens, from which this one cannot be found.
    fn derived(&self, purpose: &str) -> hmac::Key {
        let root = hmac::Key::new(hmac::HMAC_SHA256, self.private());
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose.as_bytes()).as_ref())
    }

    /// The PKCS#8 document, for the signer alone.
    pub(super) fn private(&self) -> &[u8] {
        self.private.expose_secret()
    }
}

/// All key pairs of the operator, sorted by scope and id: a key that only changes its stage changes no pod.
#[derive(Clone, Debug)]
pub struct KeyRing {
    pairs: Vec<KeyPair>,
}

impl KeyRing {
    /// Makes one new key pair for each scope; the result is what goes into the Secret.
    pub fn generate() -> Result<BTreeMap<String, Vec<u8>>, TrustError> {
        let random = SystemRandom::new();
        let mut data = BTreeMap::new();
        for scope in Scope::ALL {
            let document = Ed25519KeyPair::generate_pkcs8(&random).map_err(|_| TrustError::Randomness)?;
            data.insert(data_key(scope, Stage::Current), document.as_ref().to_vec());
        }
        Ok(data)
    }

    /// Reads the Secret's data. Entries with other names are left alone, so that people may annotate the Secret as they like.
    ///
    /// # Errors
    /// An unreadable entry, or a scope without a current key.
    pub fn read(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, TrustError> {
        Self::read_scopes(data, &Scope::ALL)
    }

    /// Reads what the gateway is given: keys of scope `user` alone, so that whoever takes them over can drain nothing.
    ///
    /// # Errors
    /// As for [`KeyRing::read`].
    pub fn read_user_keys(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, TrustError> {
        Self::read_scopes(data, &[Scope::User])
    }

    /// What [`KeyRing::read_user_keys`] reads.
    pub fn user_keys(&self) -> BTreeMap<String, Vec<u8>> {
        let pairs = self.pairs.iter().filter(|pair| pair.scope == Scope::User);
        pairs.map(|pair| (data_key(pair.scope, pair.stage), pair.private().to_vec())).collect()
    }

    fn read_scopes(data: &BTreeMap<String, Vec<u8>>, scopes: &[Scope]) -> Result<Self, TrustError> {
        let mut pairs = Vec::new();
        for scope in scopes.iter().copied() {
            for stage in Stage::ALL {
                let name = data_key(scope, stage);
                match data.get(&name) {
                    Some(document) => pairs.push(KeyPair::read(scope, stage, document)?),
                    None if stage == Stage::Current => return Err(TrustError::MissingKey { name }),
                    None => {}
                }
            }
        }
        pairs.sort_by(|one, other| (one.scope, &one.id).cmp(&(other.scope, &other.id)));
        Ok(Self { pairs })
    }

    /// The pair that signs for a scope.
    ///
    /// # Errors
    /// There is none: a gateway's ring has no lifecycle key.
    pub fn signing(&self, scope: Scope) -> Result<&KeyPair, TrustError> {
        self.pairs
            .iter()
            .find(|pair| pair.scope == scope && pair.stage == Stage::Current)
            .ok_or_else(|| TrustError::MissingKey { name: data_key(scope, Stage::Current) })
    }

    /// A tag (HMAC-SHA-256) that proves that whoever holds the user keys wrote this text for this purpose.
    ///
    /// # Errors
    /// There is no user key.
    pub fn authenticate(&self, purpose: &str, text: &[u8]) -> Result<Vec<u8>, TrustError> {
        let key = self.signing(Scope::User)?.derived(purpose);
        Ok(hmac::sign(&key, text).as_ref().to_vec())
    }

    /// Whether a tag proves that, by a user key of any stage: what one replica seals stays readable through a rotation.
    pub fn is_authentic(&self, purpose: &str, text: &[u8], tag: &[u8]) -> bool {
        let pairs = self.pairs.iter().filter(|pair| pair.scope == Scope::User);
        pairs.map(|pair| pair.derived(purpose)).any(|key| hmac::verify(&key, text, tag).is_ok())
    }

    /// Value of the annotation `agents.boring.dev/keys`: the public keys of every stage, nothing private.
    /// Deterministic: the same ring renders the same bytes, so that a restart changes no pod.
    pub fn public_key_set(&self) -> String {
        let keys: Vec<serde_json::Value> = self
            .pairs
            .iter()
            .map(|pair| {
                serde_json::json!({
                    "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA",
                    "kid": pair.id, "x": URL_SAFE_NO_PAD.encode(&pair.public), "boring_scope": pair.scope.as_str(),
                })
            })
            .collect();
        serde_json::json!({ "keys": keys }).to_string()
    }
}

/// Name of a key in the Secret: `<scope>-<stage>.pk8`.
pub(super) fn data_key(scope: Scope, stage: Stage) -> String {
    format!("{}-{}{SUFFIX}", scope.as_str(), stage.as_str())
}
