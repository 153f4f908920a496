//! The Secret with the operator's key pairs: read, or made when there is none.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};

use super::{Calls, ClusterError};
use crate::{
    crd::{LABEL_MANAGED_BY, MANAGED_BY},
    telemetry::{Kind, Verb},
    trust::{KeyRing, TrustError},
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
    pub async fn read(&self) -> Result<KeyRing, KeysError> {
        match self.get().await? {
            Some(secret) => self.ring(secret),
            None => Err(KeysError::Missing { namespace: self.namespace.clone(), name: self.name.clone() }),
        }
    }

    /// Reads the keys; makes them when there is no Secret. Two replicas may do so at once: both create, one wins, and the other
    /// reads what the winner wrote. An existing Secret is never written, whatever is in it: running pods trust its keys.
    pub async fn read_or_create(&self) -> Result<KeyRing, KeysError> {
        if let Some(secret) = self.get().await? {
            return self.ring(secret);
        }
        let data = KeyRing::generate().map_err(|source| self.content(source))?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(BTreeMap::from([(LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned())])),
                ..ObjectMeta::default()
            },
            type_: Some("agents.boring.dev/operator-keys".to_owned()),
            data: Some(data.into_iter().map(|(name, document)| (name, ByteString(document))).collect()),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        let call = self.api.create(&parameters, &secret);
        match self.calls.run(Kind::Secret, Verb::Create, call).await {
            Ok(secret) => self.ring(secret),
            Err(ClusterError::AlreadyExists { .. }) => self.read().await,
            Err(source) => Err(self.cluster(source)),
        }
    }

    async fn get(&self) -> Result<Option<Secret>, KeysError> {
        let call = self.api.get_opt(&self.name);
        self.calls.run(Kind::Secret, Verb::Get, call).await.map_err(|source| self.cluster(source))
    }

    fn ring(&self, secret: Secret) -> Result<KeyRing, KeysError> {
        let data = secret.data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.0)).collect();
        KeyRing::read(&data).map_err(|source| self.content(source))
    }

    fn cluster(&self, source: ClusterError) -> KeysError {
        KeysError::Cluster { namespace: self.namespace.clone(), name: self.name.clone(), source }
    }

    fn content(&self, source: TrustError) -> KeysError {
        KeysError::Content { namespace: self.namespace.clone(), name: self.name.clone(), source }
    }
}
