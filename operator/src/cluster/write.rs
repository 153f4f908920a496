//! Every write. What the API server answers goes into the cache at once.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    Cluster, ClusterError, Workspace, WorkspaceKey,
    cache::Cache,
    observe::{child_name, kind_of},
    ownership::{POLICY_MANAGER, SERVICE_MANAGER},
    status_patch::status_patch,
    views,
    watch::{Project, entry},
};
use crate::{
    crd::{ANNOTATION_KEYS, AgentWorkspace, AgentWorkspaceStatus},
    plan::{Child, ChildKind, EventToPublish, PodDeletion, PodMetadataPatch},
    telemetry::{Kind, Verb},
};

/// One field manager for each call site: one manager that applied two shapes of an object would make them undo each other.
const STATUS_MANAGER: &str = "agent-workspace-operator/status";
const CLAIM_MANAGER: &str = "agent-workspace-operator/claim";
const POD_MANAGER: &str = "agent-workspace-operator/pod";
const POD_METADATA_MANAGER: &str = "agent-workspace-operator/pod-metadata";

impl Cluster {
    /// Patches the status on condition of the version that was observed: `Conflict` when the object has changed since.
    pub async fn patch_status(&self, workspace: &Workspace, status: &AgentWorkspaceStatus) -> Result<(), ClusterError> {
        let version = workspace.object.metadata.resource_version.as_deref().unwrap_or_default();
        let unserializable =
            |error| ClusterError::new(Kind::AgentWorkspace, Verb::Patch, kube::Error::SerdeError(error));
        let patch = status_patch(workspace.object.status.as_ref(), status, version).map_err(unserializable)?;
        let api: Api<AgentWorkspace> = Api::namespaced(self.client.clone(), &workspace.key.namespace);
        let parameters = PatchParams { field_manager: Some(STATUS_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let call = api.patch_status(&workspace.key.name, &parameters, &patch);
        let written = self.calls.run(Kind::AgentWorkspace, Verb::Patch, call).await?;
        remember(&self.caches.workspaces, &workspace.key, written, views::workspace);
        Ok(())
    }

    /// Applies a claim, Service or NetworkPolicy, taking over fields that others set.
    pub async fn apply(&self, key: &WorkspaceKey, child: &Child) -> Result<(), ClusterError> {
        match child {
            Child::Claim(claim) => {
                let written = self.apply_one(key, child.kind(), CLAIM_MANAGER, claim.as_ref()).await?;
                remember(&self.caches.claims, key, written, views::claim);
            }
            Child::Service(service) => {
                let written = self.apply_one(key, child.kind(), SERVICE_MANAGER, service.as_ref()).await?;
                remember(&self.caches.services, key, written, views::service);
            }
            Child::NetworkPolicy(policy) => {
                let written = self.apply_one(key, child.kind(), POLICY_MANAGER, policy.as_ref()).await?;
                remember(&self.caches.policies, key, written, views::policy);
            }
        }
        Ok(())
    }

    async fn apply_one<K>(
        &self,
        key: &WorkspaceKey,
        child: ChildKind,
        manager: &str,
        object: &K,
    ) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let (name, parameters, patch) =
            (child_name(key, child), PatchParams::apply(manager).force(), Patch::Apply(object));
        self.calls.run(kind_of(child), Verb::Patch, api.patch(&name, &parameters, &patch)).await
    }

    /// Creates the pod by POST and returns its UID; `AlreadyExists` asks for one live read.
    pub async fn create_pod(&self, key: &WorkspaceKey, pod: &Pod) -> Result<Option<String>, ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = PostParams { field_manager: Some(POD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.calls.run(Kind::Pod, Verb::Create, api.create(&parameters, pod)).await?;
        let uid = written.metadata.uid.clone();
        remember(&self.caches.pods, key, written, views::pod);
        Ok(uid)
    }

    /// Deletes the pod with this UID and no other. A pod that is gone already is a success.
    pub async fn delete_pod(&self, key: &WorkspaceKey, deletion: &PodDeletion) -> Result<(), ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let preconditions = Preconditions { uid: Some(deletion.uid.clone()), resource_version: None };
        let parameters = DeleteParams { grace_period_seconds: deletion.grace_seconds, ..DeleteParams::default() }
            .preconditions(preconditions);
        match self.calls.run(Kind::Pod, Verb::Delete, api.delete(&deletion.name, &parameters)).await {
            Ok(answer) => {
                // Without a deletionTimestamp the answer is the last state of a pod that is gone (it never had a node).
                match answer.left().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
                    Some(pod) => remember(&self.caches.pods, key, pod, views::pod),
                    None => self.caches.pods.gone(key, &deletion.uid),
                }
                Ok(())
            }
            Err(ClusterError::NotFound { .. }) => {
                self.caches.pods.gone(key, &deletion.uid);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Renews public keys and labels on a living pod; metadata only, and only on the pod with this UID.
    pub async fn patch_pod_metadata(&self, key: &WorkspaceKey, wanted: &PodMetadataPatch) -> Result<(), ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut metadata = json!({ "uid": wanted.uid });
        if let Some(keys) = &wanted.keys {
            metadata["annotations"] = json!({ ANNOTATION_KEYS: keys });
        }
        if !wanted.labels.is_empty() {
            metadata["labels"] = json!(wanted.labels);
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let parameters = PatchParams { field_manager: Some(POD_METADATA_MANAGER.to_owned()), ..PatchParams::default() };
        let call = api.patch(&wanted.name, &parameters, &patch);
        let written = self.calls.run(Kind::Pod, Verb::Patch, call).await?;
        remember(&self.caches.pods, key, written, views::pod);
        Ok(())
    }

    /// Deletes the workspace with this UID and no other. One that is gone already is a success.
    pub async fn delete_workspace(&self, key: &WorkspaceKey, uid: &str) -> Result<(), ClusterError> {
        let api: Api<AgentWorkspace> = Api::namespaced(self.client.clone(), &key.namespace);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let parameters = DeleteParams::default().preconditions(preconditions);
        match self.calls.run(Kind::AgentWorkspace, Verb::Delete, api.delete(&key.name, &parameters)).await {
            Ok(_) | Err(ClusterError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Publishes an event about the workspace; a failure is logged there and goes no further.
    pub async fn publish(&self, workspace: &Workspace, event: &EventToPublish, now: Timestamp) {
        let object = ObjectReference {
            api_version: Some(AgentWorkspace::api_version(&()).into_owned()),
            kind: Some(AgentWorkspace::kind(&()).into_owned()),
            name: Some(workspace.key.name.clone()),
            namespace: Some(workspace.key.namespace.clone()),
            uid: Some(workspace.uid.clone()),
            ..ObjectReference::default()
        };
        self.publisher.publish(&object, event, now).await;
    }
}

fn remember<K: Resource<DynamicType = ()>, V>(
    cache: &Cache<V>,
    key: &WorkspaceKey,
    written: K,
    project: Project<K, V>,
) {
    if let Some((_, entry)) = entry(written, project) {
        cache.wrote(key, entry);
    } else {
        tracing::error!(workspace = %key, kind = %K::kind(&()), "the answer to a write has no identity");
    }
}
