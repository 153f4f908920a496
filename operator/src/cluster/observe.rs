//! Builds what a decision depends on: from the caches, and live where a decision asks for it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolumeClaim, Pod, Service},
    networking::v1::NetworkPolicy,
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    Api, Resource,
    api::ListParams,
    core::{NamespaceResourceScope, PartialObjectMeta},
};
use serde::de::DeserializeOwned;

use super::{
    Cluster, ClusterError, WorkspaceKey,
    cache::{Cache, Entry},
    views::{self, AGENT_SUFFIX, Child, HOME_SUFFIX, Proof},
    watch::{Project, entry},
};
use crate::{
    crd::AgentWorkspace,
    plan::{
        ChildKind, Config, ModelService, NodeState, Observed, PodEvent, Seen, ServiceView, StorageClassView,
        WorkspaceView, model_service,
    },
    telemetry::{Kind, Verb},
};

/// Events of one pod that are read to explain a start; the newest say it, and the API server aggregates repetitions.
const POD_EVENTS: u32 = 50;
/// Storage classes and model servers hardly ever change; ten seconds keep a burst of new workspaces from asking once each.
const REMEMBERED: Duration = Duration::from_secs(10);

/// A workspace as the cache holds it, with the version that its next write depends on.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Whose it is.
    pub key: WorkspaceKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: u64,
    /// The object without what nobody reads.
    pub object: Arc<AgentWorkspace>,
}

/// Answers of live reads, each remembered for a few seconds.
#[derive(Debug)]
pub struct Remembered<K, V> {
    held: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

/// A storage class by name; `None` when there is none.
pub type StorageClasses = Remembered<String, Option<StorageClassView>>;
/// A model server's Service by namespace and name.
pub type ModelServices = Remembered<(String, String), ModelService>;

impl Cluster {
    /// The workspace, if there still is one.
    pub fn workspace(&self, key: &WorkspaceKey) -> Option<Workspace> {
        let entry = self.caches.workspaces.get(key)?;
        Some(Workspace { key: key.clone(), uid: entry.uid, version: entry.version, object: entry.value })
    }

    /// Asks for a decision as soon as the watch brings another state of the workspace; false when it has done so already.
    pub fn await_newer(&self, workspace: &Workspace) -> bool {
        self.caches.workspaces.await_newer(&workspace.key, workspace.version)
    }

    /// Everything the caches know. What the operator remembers and what was asked live is filled in by the caller.
    ///
    /// # Errors
    /// Only when the claim's StorageClass or the model's Service cannot be read.
    pub async fn observe(
        &self,
        config: &Config,
        workspace: &Workspace,
        token_keys: String,
    ) -> Result<Observed, ClusterError> {
        let caches = &self.caches;
        let claim = cached(&caches.claims, workspace, Proof::Labels);
        let storage_class = match &claim {
            Seen::Ours(claim) => match &claim.storage_class_name {
                Some(name) => self.storage_class(name).await?,
                None => None,
            },
            Seen::Unconfirmed | Seen::Missing | Seen::Foreign(_) => None,
        };
        let model_service = match model_service(config, &workspace.key.namespace, &workspace.object.spec) {
            Some((namespace, name)) => Some(self.model_service(&namespace, &name).await?),
            None => None,
        };
        Ok(Observed {
            own_write_pending: caches.own_write_pending(&workspace.key),
            claim,
            service: cached(&caches.services, workspace, Proof::Controller),
            policy: cached(&caches.policies, workspace, Proof::Controller),
            pod: cached(&caches.pods, workspace, Proof::Controller),
            storage_class,
            model_service,
            wake: caches.wakes.get(&workspace.key).and_then(|entry| entry.value.seen(&workspace.uid)),
            ..Observed::alone(view(workspace), token_keys)
        })
    }

    /// Reads one child live and fills it in: nothing is `Unconfirmed` afterwards.
    pub async fn observe_live(
        &self,
        workspace: &Workspace,
        child: ChildKind,
        observed: &mut Observed,
    ) -> Result<(), ClusterError> {
        let caches = &self.caches;
        match child {
            ChildKind::Claim => {
                let read = self.read::<PersistentVolumeClaim, _>(&workspace.key, child, views::claim).await?;
                observed.claim = seen(&caches.claims, workspace, Proof::Labels, read);
            }
            ChildKind::Service => {
                let read = self.read::<PartialObjectMeta<Service>, _>(&workspace.key, child, views::service).await?;
                observed.service = seen(&caches.services, workspace, Proof::Controller, read);
            }
            ChildKind::NetworkPolicy => {
                let read =
                    self.read::<PartialObjectMeta<NetworkPolicy>, _>(&workspace.key, child, views::policy).await?;
                observed.policy = seen(&caches.policies, workspace, Proof::Controller, read);
            }
            ChildKind::Pod => {
                let read = self.read::<Pod, _>(&workspace.key, child, views::pod).await?;
                observed.pod = seen(&caches.pods, workspace, Proof::Controller, read);
            }
        }
        Ok(())
    }

    async fn read<K, V>(
        &self,
        key: &WorkspaceKey,
        child: ChildKind,
        project: Project<K, V>,
    ) -> Result<Option<Entry<V>>, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let name = child_name(key, child);
        let object = self.calls.run(kind_of(child), Verb::Get, api.get_opt(&name)).await?;
        Ok(object.and_then(|object| entry(object, project)).map(|(_, entry)| entry))
    }

    /// The events about one pod, the newest [`POD_EVENTS`] at most.
    pub async fn pod_events(&self, namespace: &str, pod_uid: &str) -> Result<Vec<PodEvent>, ClusterError> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let parameters = ListParams::default().fields(&format!("involvedObject.uid={pod_uid}")).limit(POD_EVENTS);
        let list = self.calls.run(Kind::Event, Verb::List, api.list(&parameters)).await?;
        if list.metadata.continue_.is_some_and(|token| !token.is_empty()) {
            tracing::info!(namespace, pod_uid, limit = POD_EVENTS, "the pod has more events than are read");
        }
        let mut events: Vec<PodEvent> = list.items.into_iter().map(pod_event).collect();
        events.sort_by_key(|event| event.last_seen);
        Ok(events)
    }

    /// Whether a node is Ready.
    pub async fn node(&self, name: &str) -> Result<NodeState, ClusterError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let Some(node) = self.calls.run(Kind::Node, Verb::Get, api.get_opt(name)).await? else {
            return Ok(NodeState::Gone);
        };
        let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
        let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        Ok(if ready { NodeState::Ready } else { NodeState::NotReady })
    }

    async fn storage_class(&self, name: &str) -> Result<Option<StorageClassView>, ClusterError> {
        let key = name.to_owned();
        if let Some(view) = self.classes.get(&key) {
            return Ok(view);
        }
        let api: Api<StorageClass> = Api::all(self.client.clone());
        let class = self.calls.run(Kind::StorageClass, Verb::Get, api.get_opt(name)).await?;
        let view = class.map(|class| StorageClassView {
            name: name.to_owned(),
            allow_volume_expansion: class.allow_volume_expansion.unwrap_or(false),
            waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        });
        self.classes.put(key, view.clone());
        Ok(view)
    }

    async fn model_service(&self, namespace: &str, name: &str) -> Result<ModelService, ClusterError> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(view) = self.model_services.get(&key) {
            return Ok(view);
        }
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let service = self.calls.run(Kind::Service, Verb::Get, api.get_opt(name)).await?;
        let view = service.map_or(ModelService::Missing, |service| ModelService::Found(service_view(service)));
        self.model_services.put(key, view.clone());
        Ok(view)
    }
}

fn service_view(service: Service) -> ServiceView {
    let spec = service.spec.unwrap_or_default();
    let ports = spec.ports.unwrap_or_default().into_iter();
    ServiceView {
        selector: spec.selector.unwrap_or_default(),
        ports: ports
            .filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
            .map(|port| (port.port, port.target_port.unwrap_or(IntOrString::Int(port.port))))
            .collect(),
    }
}

impl<K: Hash + Eq, V: Clone> Remembered<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(key).filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
        held.insert(key, (Instant::now(), value));
    }
}

/// Name of a child.
pub fn child_name(key: &WorkspaceKey, child: ChildKind) -> String {
    let suffix = match child {
        ChildKind::Claim => HOME_SUFFIX,
        ChildKind::Service | ChildKind::NetworkPolicy | ChildKind::Pod => AGENT_SUFFIX,
    };
    format!("{}{suffix}", key.name)
}

/// The kind in metrics.
pub const fn kind_of(child: ChildKind) -> Kind {
    match child {
        ChildKind::Claim => Kind::PersistentVolumeClaim,
        ChildKind::Service => Kind::Service,
        ChildKind::NetworkPolicy => Kind::NetworkPolicy,
        ChildKind::Pod => Kind::Pod,
    }
}

fn view(workspace: &Workspace) -> WorkspaceView {
    let object = &workspace.object;
    WorkspaceView {
        name: workspace.key.name.clone(),
        namespace: workspace.key.namespace.clone(),
        uid: workspace.uid.clone(),
        generation: object.metadata.generation.unwrap_or_default(),
        created: object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        deleting: object.metadata.deletion_timestamp.is_some(),
        spec: object.spec.clone(),
        status: object.status.clone().unwrap_or_default(),
    }
}

fn cached<V: Clone>(cache: &Cache<Child<V>>, workspace: &Workspace, proof: Proof) -> Seen<V> {
    cache
        .get(&workspace.key)
        .map_or(Seen::Unconfirmed, |entry| entry.value.seen(proof, &workspace.uid, &workspace.key.name))
}

/// Sorts a live answer; what is ours is put into the cache too, since the watch may be behind.
fn seen<V: Clone>(
    cache: &Cache<Child<V>>,
    workspace: &Workspace,
    proof: Proof,
    read: Option<Entry<Child<V>>>,
) -> Seen<V> {
    let Some(entry) = read else { return Seen::Missing };
    let seen = entry.value.seen(proof, &workspace.uid, &workspace.key.name);
    if matches!(seen, Seen::Ours(_)) {
        cache.wrote(&workspace.key, entry);
    }
    seen
}

fn pod_event(event: Event) -> PodEvent {
    let series = event.series.and_then(|series| series.last_observed_time).map(|time| time.0);
    let last_seen = series
        .or_else(|| event.last_timestamp.map(|time| time.0))
        .or_else(|| event.event_time.map(|time| time.0))
        .or_else(|| event.first_timestamp.map(|time| time.0));
    PodEvent { reason: event.reason.unwrap_or_default(), message: event.message.unwrap_or_default(), last_seen }
}
