//! The gateway's part of the key pairs, in a Secret of its own: the operator writes it, the gateway reads it.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};

use super::{Calls, ClusterError, KeysError, rbac::GATEWAY_KEYS_SECRET_NAME};
use crate::{
    crd::{LABEL_MANAGED_BY, MANAGED_BY},
    telemetry::{Kind, Verb},
    trust::KeyRing,
};

/// The Secret of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayKeys {
    api: Api<Secret>,
    calls: Calls,
    namespace: String,
}

impl GatewayKeys {
    /// That in the operator's namespace.
    pub fn new(client: Client, calls: Calls, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), calls, namespace: namespace.to_owned() }
    }

    /// Reads the keys.
    pub async fn read(&self) -> Result<KeyRing, KeysError> {
        let Some(secret) = self.get().await? else {
            return Err(KeysError::Missing {
                namespace: self.namespace.clone(),
                name: GATEWAY_KEYS_SECRET_NAME.to_owned(),
            });
        };
        let data = secret.data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.0)).collect();
        KeyRing::read_user_keys(&data).map_err(|source| KeysError::Content {
            namespace: self.namespace.clone(),
            name: GATEWAY_KEYS_SECRET_NAME.to_owned(),
            source,
        })
    }

    /// Writes the user keys of `ring`, if they are not what is there.
    pub async fn write(&self, ring: &KeyRing) -> Result<(), KeysError> {
        let wanted: BTreeMap<String, ByteString> =
            ring.user_keys().into_iter().map(|(name, document)| (name, ByteString(document))).collect();
        let parameters = PostParams::default();
        match self.get().await? {
            Some(secret) if secret.data.as_ref() == Some(&wanted) => Ok(()),
            Some(secret) => {
                let secret = Secret { data: Some(wanted), ..secret };
                let call = self.api.replace(GATEWAY_KEYS_SECRET_NAME, &parameters, &secret);
                self.calls.run(Kind::Secret, Verb::Update, call).await.map(drop).map_err(|source| self.cluster(source))
            }
            None => {
                let secret = new_secret(wanted);
                match self.calls.run(Kind::Secret, Verb::Create, self.api.create(&parameters, &secret)).await {
                    // Another replica was faster, with the same keys.
                    Ok(_) | Err(ClusterError::AlreadyExists { .. }) => Ok(()),
                    Err(source) => Err(self.cluster(source)),
                }
            }
        }
    }

    async fn get(&self) -> Result<Option<Secret>, KeysError> {
        let call = self.api.get_opt(GATEWAY_KEYS_SECRET_NAME);
        self.calls.run(Kind::Secret, Verb::Get, call).await.map_err(|source| self.cluster(source))
    }

    fn cluster(&self, source: ClusterError) -> KeysError {
        KeysError::Cluster { namespace: self.namespace.clone(), name: GATEWAY_KEYS_SECRET_NAME.to_owned(), source }
    }
}

fn new_secret(data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(GATEWAY_KEYS_SECRET_NAME.to_owned()),
            labels: Some(BTreeMap::from([(LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned())])),
            ..ObjectMeta::default()
        },
        type_: Some("agents.boring.dev/operator-keys".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}
