//! The Secret with the operator's key pairs: read, made when there is none, and changed by the steps of a rotation.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};

use super::{Calls, ClusterError};
use crate::{
    crd::{LABEL_MANAGED_BY, MANAGED_BY},
    telemetry::{Kind, Verb},
    trust::{
        KeyRing, TrustError,
        rotation::{self, Progress, Step},
    },
};

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The API server's answer.
    #[error("cannot read or create the key secret {namespace}/{name}")]
    Cluster {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        source: ClusterError,
    },
    /// There is no such Secret.
    #[error(
        "there is no key secret {namespace}/{name}: the operator makes it at its first start; is it running, and is this its namespace?"
    )]
    Missing {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The Secret's content.
    #[error("key secret {namespace}/{name}")]
    Content {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        source: TrustError,
    },
}

impl KeysError {
    /// Stable word for logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Cluster { source, .. } => source.reason(),
            Self::Missing { .. } => "KeysMissing",
            Self::Content { source, .. } => source.reason(),
        }
    }
}

/// Annotation of the Secret: when the last step of a rotation was written.
const ANNOTATION_STEP: &str = "agents.boring.dev/rotation-step-at";
/// Annotation of the Secret by which a person asks for new keys; its value does not matter, the operator removes it.
const ANNOTATION_REQUESTED: &str = "agents.boring.dev/rotate-keys";

/// The keys and where their rotation stands.
#[derive(Clone)]
pub struct StoredKeys {
    /// The keys.
    pub ring: KeyRing,
    secret: Secret,
}

/// Shows nothing of the Secret.
impl std::fmt::Debug for StoredKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StoredKeys").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl StoredKeys {
    /// Where the rotation stands.
    pub fn progress(&self) -> Progress {
        Progress::of(&plain_data(&self.secret))
    }

    /// When that began: the time of the last step, or of the Secret's creation.
    pub fn since(&self) -> Timestamp {
        let metadata = &self.secret.metadata;
        let step = metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION_STEP)?.parse().ok());
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
        step.or(created).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether a person asked for new keys.
    pub fn requested(&self) -> bool {
        let annotations = self.secret.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(ANNOTATION_REQUESTED))
    }
}

fn plain_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(name, value)| (name.clone(), value.0.clone())).collect()
}

fn secret_data(data: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, ByteString> {
    data.into_iter().map(|(name, document)| (name, ByteString(document))).collect()
}

/// The one Secret.
#[derive(Clone, Debug)]
pub struct Keys {
    api: Api<Secret>,
    calls: Calls,
    namespace: String,
    name: String,
}

impl Keys {
    /// The Secret `name` in the operator's own namespace.
    pub fn new(client: Client, calls: Calls, namespace: &str, name: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), calls, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Reads the keys.
    pub async fn read(&self) -> Result<StoredKeys, KeysError> {
        match self.get().await? {
            Some(secret) => self.stored(secret),
            None => Err(KeysError::Missing { namespace: self.namespace.clone(), name: self.name.clone() }),
        }
    }

    /// Reads the keys; makes them when there is no Secret. Two replicas may do so at once: both create, one wins, and the other
    /// reads what the winner wrote. An existing Secret is changed by a rotation alone: running pods trust its keys.
    pub async fn read_or_create(&self) -> Result<StoredKeys, KeysError> {
        if let Some(secret) = self.get().await? {
            return self.stored(secret);
        }
        let data = KeyRing::generate().map_err(|source| self.content(source))?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(BTreeMap::from([(LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned())])),
                ..ObjectMeta::default()
            },
            type_: Some("agents.boring.dev/operator-keys".to_owned()),
            data: Some(secret_data(data)),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        let call = self.api.create(&parameters, &secret);
        match self.calls.run(Kind::Secret, Verb::Create, call).await {
            Ok(secret) => self.stored(secret),
            Err(ClusterError::AlreadyExists { .. }) => self.read().await,
            Err(source) => Err(self.cluster(source)),
        }
    }

    /// Writes a step of a rotation, on condition that nobody changed the Secret since it was read.
    pub async fn advance(&self, stored: &StoredKeys, step: Step, now: Timestamp) -> Result<StoredKeys, KeysError> {
        let data = rotation::apply(step, &plain_data(&stored.secret)).map_err(|source| self.content(source))?;
        let mut secret = stored.secret.clone();
        secret.data = Some(secret_data(data));
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION_STEP.to_owned(), now.to_string());
        annotations.remove(ANNOTATION_REQUESTED);
        let parameters = PostParams::default();
        let call = self.api.replace(&self.name, &parameters, &secret);
        match self.calls.run(Kind::Secret, Verb::Update, call).await {
            Ok(secret) => self.stored(secret),
            Err(source) => Err(self.cluster(source)),
        }
    }

    async fn get(&self) -> Result<Option<Secret>, KeysError> {
        let call = self.api.get_opt(&self.name);
        self.calls.run(Kind::Secret, Verb::Get, call).await.map_err(|source| self.cluster(source))
    }

    fn stored(&self, secret: Secret) -> Result<StoredKeys, KeysError> {
        let ring = KeyRing::read(&plain_data(&secret)).map_err(|source| self.content(source))?;
        Ok(StoredKeys { ring, secret })
    }

    fn cluster(&self, source: ClusterError) -> KeysError {
        KeysError::Cluster { namespace: self.namespace.clone(), name: self.name.clone(), source }
    }

    fn content(&self, source: TrustError) -> KeysError {
        KeysError::Content { namespace: self.namespace.clone(), name: self.name.clone(), source }
    }
}
