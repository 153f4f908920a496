//! Drives one watch into one cache and reports which workspaces ask for a new decision.

use std::{fmt::Debug, sync::Arc};

use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, NamespaceResourceScope, PartialObjectMeta, error_boundary::InvalidObject},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;

use super::cache::{Cache, Entry, WorkspaceKey};
use crate::telemetry::{Freshness, Kind, Metrics, WATCH_TIMEOUT};

/// How an object becomes a projection and which workspace it belongs to. `None`: it is not of a form that could be ours.
pub type Project<K, V> = fn(K) -> Option<(WorkspaceKey, V)>;

/// What a watch yields: objects that may not decode, or metadata alone, which always does.
pub trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// What is projected.
    type Object: Resource<DynamicType = ()>;

    /// The object, or why there is none.
    fn decoded(self) -> Result<Self::Object, Box<InvalidObject>>;
}

impl<K> Watched for DeserializeGuard<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    type Object = K;

    fn decoded(self) -> Result<K, Box<InvalidObject>> {
        self.0.map_err(Box::new)
    }
}

impl<K> Watched for PartialObjectMeta<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Send + Sync + 'static,
{
    type Object = Self;

    fn decoded(self) -> Result<Self, Box<InvalidObject>> {
        Ok(self)
    }
}

/// A watch of one kind over all namespaces.
#[derive(Debug)]
pub struct Watch<V> {
    /// The kind, for metrics and readiness.
    pub kind: Kind,
    /// Where the projections go.
    pub cache: Arc<Cache<V>>,
    /// Label selector; caches hold only what the operator made, but for workspaces themselves.
    pub labels: Option<String>,
    /// Notes failures and the first list.
    pub freshness: Arc<Freshness>,
    /// Counts objects that do not decode.
    pub metrics: Arc<Metrics>,
}

impl<V: Send + Sync + 'static> Watch<V> {
    /// Follows the watch for ever. Errors are noted, logged once each, and tried again with backoff (0.8 s → 30 s).
    pub async fn run<W: Watched>(
        self,
        client: Client,
        project: Project<W::Object, V>,
        changed: impl Fn(WorkspaceKey) + Send,
    ) {
        let api: Api<W> = Api::all(client);
        let seconds = u32::try_from(WATCH_TIMEOUT.as_secs()).expect("180 fits");
        let mut config = watcher::Config::default().timeout(seconds);
        if let Some(labels) = &self.labels {
            config = config.labels(labels);
        }
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        let mut undecodable = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.handle(event, project, &changed, &mut undecodable),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn handle<W: Watched>(
        &self,
        event: watcher::Event<W>,
        project: Project<W::Object, V>,
        changed: &impl Fn(WorkspaceKey),
        undecodable: &mut usize,
    ) {
        match event {
            watcher::Event::Init => {
                *undecodable = 0;
                self.cache.list_began();
            }
            watcher::Event::InitApply(object) => {
                if let Some((key, entry)) = self.entry(object, project, undecodable) {
                    self.cache.listed(key, entry);
                }
            }
            watcher::Event::InitDone => {
                self.cache.list_ended().into_iter().for_each(changed);
                self.freshness.listed(self.kind);
            }
            watcher::Event::Apply(object) => {
                self.freshness.recovered(self.kind);
                if let Some((key, entry)) = self.entry(object, project, undecodable)
                    && self.cache.applied(&key, entry)
                {
                    changed(key);
                }
            }
            watcher::Event::Delete(object) => {
                self.freshness.recovered(self.kind);
                if let Some((key, entry)) = self.entry(object, project, undecodable)
                    && self.cache.deleted(&key, entry.version)
                {
                    changed(key);
                }
            }
        }
        self.metrics.undecodable(self.kind, *undecodable);
    }

    /// One object that does not decode is skipped with one line; the others go on.
    fn entry<W: Watched>(
        &self,
        object: W,
        project: Project<W::Object, V>,
        undecodable: &mut usize,
    ) -> Option<(WorkspaceKey, Entry<V>)> {
        match object.decoded() {
            Ok(object) => entry(object, project),
            Err(invalid) => {
                *undecodable += 1;
                let (namespace, name) = (invalid.metadata.namespace.as_deref(), invalid.metadata.name.as_deref());
                tracing::warn!(kind = ?self.kind, namespace, name, error = %invalid.error, "an object does not decode and is skipped");
                None
            }
        }
    }

    fn failed(&self, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) => match status.code {
                403 => format!("forbidden, are the operator's roles installed? {}", status.message),
                404 => format!("not found, is the CustomResourceDefinition installed? {}", status.message),
                // The API server forgot our place; the watcher lists anew at once.
                410 => return,
                _ => status.message.clone(),
            },
            other => other.to_string(),
        };
        if self.freshness.failed(self.kind, text.clone()) {
            tracing::error!(kind = ?self.kind, error = %text, "a watch failed and is tried again");
        }
    }
}

/// Reads the parts every entry has, then projects.
pub fn entry<K: Resource<DynamicType = ()>, V>(object: K, project: Project<K, V>) -> Option<(WorkspaceKey, Entry<V>)> {
    let uid = object.uid()?;
    let version = object.resource_version()?;
    let Ok(version) = version.parse() else {
        tracing::error!(kind = %K::kind(&()), name = %object.name_any(), version, "a resourceVersion is not a number");
        return None;
    };
    let (key, value) = project(object)?;
    Some((key, Entry { uid, version, value: Arc::new(value) }))
}
