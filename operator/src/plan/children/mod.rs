//! Renders the children of a workspace. Same input, same bytes: maps are sorted, nothing depends on time.

mod claim;
mod network;
mod pod;
mod volumes;

pub use claim::{Claim, claim};
pub use network::{network_policy, service};
pub use pod::{pod, revision};

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::crd::{
    ANNOTATION_APPLIED, AgentWorkspace, LABEL_MANAGED_BY, LABEL_WORKSPACE, LABEL_WORKSPACE_UID, MANAGED_BY,
};

use super::{Valid, hex};

/// Port of the agent server (docs/contract.md).
pub const HTTP_PORT: i32 = 8787;
/// Port of the agent server's metrics (docs/contract.md).
pub const METRICS_PORT: i32 = 9464;

/// Labels of every child of a workspace.
pub fn labels(workspace: &str, uid: &str) -> BTreeMap<String, String> {
    [(LABEL_MANAGED_BY, MANAGED_BY), (LABEL_WORKSPACE, workspace), (LABEL_WORKSPACE_UID, uid)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Selects the pod. By UID: a pod of a former workspace with the same name, or of somebody who copied the name, is not ours.
fn selector(valid: &Valid) -> BTreeMap<String, String> {
    BTreeMap::from([(LABEL_WORKSPACE_UID.to_owned(), valid.uid.clone())])
}

/// The workspace as controlling owner. `blockOwnerDeletion` with `controller` lets `kubectl drain` treat the pod as managed.
fn owner(valid: &Valid) -> OwnerReference {
    OwnerReference {
        api_version: AgentWorkspace::api_version(&()).into_owned(),
        kind: AgentWorkspace::kind(&()).into_owned(),
        name: valid.name.clone(),
        uid: valid.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Metadata of a child that the workspace owns.
fn metadata(valid: &Valid, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(valid.namespace.clone()),
        labels: Some(labels(&valid.name, &valid.uid)),
        owner_references: Some(vec![owner(valid)]),
        ..ObjectMeta::default()
    }
}

/// Writes the hash of what is applied into the annotation that tells whether it has to be applied again.
fn seal(metadata: &mut ObjectMeta, hash: String) {
    metadata.annotations.get_or_insert_default().insert(ANNOTATION_APPLIED.to_owned(), hash);
}

/// Hash of a rendered value: the first 80 bits of SHA-256, far from collision among the renderings of one object.
fn hash(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("rendered objects are plain data");
    hex(&Sha256::digest(text.as_bytes())[..10])
}
