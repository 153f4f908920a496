//! The six watches of the controller and their caches.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Service},
    networking::v1::NetworkPolicy,
};
use kube::{
    Client,
    core::{DeserializeGuard, PartialObjectMeta},
};
use tokio::task::JoinSet;

use super::{
    cache::{Cache, WorkspaceKey},
    views::{self, Child, Wake},
    watch::Watch,
};
use crate::{
    crd::{AgentWorkspace, AgentWorkspaceWake, LABEL_MANAGED_BY, MANAGED_BY},
    plan::{ClaimView, PodView, SimpleView},
    telemetry::{Freshness, Kind, Metrics},
};

/// Kinds that are watched; readiness waits for all of them.
pub const WATCHED: [Kind; 6] = [
    Kind::AgentWorkspace,
    Kind::AgentWorkspaceWake,
    Kind::PersistentVolumeClaim,
    Kind::Service,
    Kind::NetworkPolicy,
    Kind::Pod,
];

/// What the watches brought.
#[derive(Debug)]
pub struct Caches {
    /// The workspaces, of all namespaces.
    pub workspaces: Arc<Cache<AgentWorkspace>>,
    /// Wake objects.
    pub wakes: Arc<Cache<Wake>>,
    /// Claims with the operator's label.
    pub claims: Arc<Cache<Child<ClaimView>>>,
    /// Services with the operator's label, metadata only.
    pub services: Arc<Cache<Child<SimpleView>>>,
    /// Network policies with the operator's label, metadata only.
    pub policies: Arc<Cache<Child<SimpleView>>>,
    /// Pods with the operator's label.
    pub pods: Arc<Cache<Child<PodView>>>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            workspaces: Arc::new(Cache::new(views::same_workspace)),
            wakes: Arc::new(Cache::new(|old, new| old == new)),
            claims: Arc::new(Cache::new(|old, new| old == new)),
            services: Arc::new(Cache::new(|old, new| old == new)),
            policies: Arc::new(Cache::new(|old, new| old == new)),
            pods: Arc::new(Cache::new(views::same_pod)),
        }
    }
}

impl Caches {
    /// Starts the watches; they run until the set is dropped. `changed` is called for each workspace that asks for a new decision.
    pub fn watch<F>(
        &self,
        client: &Client,
        freshness: &Arc<Freshness>,
        metrics: &Arc<Metrics>,
        changed: F,
    ) -> JoinSet<()>
    where
        F: Fn(WorkspaceKey) + Clone + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        let labels = Some(format!("{LABEL_MANAGED_BY}={MANAGED_BY}"));
        macro_rules! watch {
            ($kind:ident, $cache:ident, $labels:expr, $watched:ty, $project:expr) => {
                let watch = Watch {
                    kind: Kind::$kind,
                    cache: Arc::clone(&self.$cache),
                    labels: $labels,
                    freshness: Arc::clone(freshness),
                    metrics: Arc::clone(metrics),
                };
                let (changed, workspaces) = (changed.clone(), Arc::clone(&self.workspaces));
                // Children without a workspace (a kept claim, leftovers) ask for nothing; its own arrival does.
                let report = move |key| {
                    if Kind::$kind == Kind::AgentWorkspace || workspaces.get(&key).is_some() {
                        changed(key);
                    }
                };
                tasks.spawn(watch.run::<$watched>(client.clone(), $project, report));
            };
        }
        watch!(AgentWorkspace, workspaces, None, DeserializeGuard<AgentWorkspace>, views::workspace);
        watch!(AgentWorkspaceWake, wakes, None, DeserializeGuard<AgentWorkspaceWake>, views::wake);
        watch!(PersistentVolumeClaim, claims, labels.clone(), DeserializeGuard<PersistentVolumeClaim>, views::claim);
        watch!(Service, services, labels.clone(), PartialObjectMeta<Service>, views::service);
        watch!(NetworkPolicy, policies, labels.clone(), PartialObjectMeta<NetworkPolicy>, views::policy);
        watch!(Pod, pods, labels, DeserializeGuard<Pod>, views::pod);
        tasks
    }

    /// True while a cache is older than the operator's own last write to this workspace or its pod.
    pub fn own_write_pending(&self, key: &WorkspaceKey) -> bool {
        self.workspaces.own_write_pending(key) || self.pods.own_write_pending(key)
    }
}
