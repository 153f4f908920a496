//! What the gateway sees of the cluster: workspaces as far as routing goes, and wakes.

use std::{net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client, ResourceExt, api::PostParams, core::DeserializeGuard};
use tokio::task::JoinSet;

use super::{
    Calls, ClusterError,
    cache::{Cache, Entry, WorkspaceKey},
    watch::{Watch, entry},
};
use crate::{
    crd::{
        AgentWorkspace, AgentWorkspaceWake, AgentWorkspaceWakeSpec, ConditionType, Exposure, Intent, Owner, Phase,
        RunPolicy, Visibility, WakeMode,
    },
    plan,
    telemetry::{Freshness, Kind, Metrics, Verb},
};

/// Kinds that the gateway watches; its readiness waits for both.
pub const WATCHED_BY_GATEWAY: [Kind; 2] = [Kind::AgentWorkspace, Kind::AgentWorkspaceWake];

/// A workspace as far as routing goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reachable {
    /// `spec.owner`.
    pub owner: Option<Owner>,
    /// Who may connect besides.
    pub visibility: Visibility,
    /// Whether the gateway is the way in.
    pub exposed: bool,
    /// Whether it is to run.
    pub run_policy: RunPolicy,
    /// Whether requests wake it.
    pub wake_mode: WakeMode,
    /// How long a request waits for it.
    pub wake_timeout: Duration,
    /// Where it is in its life.
    pub phase: Option<Phase>,
    /// Number of the wake that the operator answered last.
    pub settled: Option<i64>,
    /// UID and address of its pod.
    pub pod: Option<(String, IpAddr)>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Reason and message of the condition Stalled, or of Ready when the phase is Failed.
    pub trouble: Option<(String, String)>,
}

impl Default for Reachable {
    fn default() -> Self {
        read(&AgentWorkspace::default())
    }
}

fn read(object: &AgentWorkspace) -> Reachable {
    let (spec, status) = (&object.spec, object.status.clone().unwrap_or_default());
    let access = spec.access.clone().unwrap_or_default();
    let wake = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.wake.clone()).unwrap_or_default();
    let timeout = wake.timeout_seconds.unwrap_or(plan::WAKE_TIMEOUT_SECONDS);
    let condition = |kind: ConditionType| status.conditions.iter().find(|condition| condition.type_ == kind.as_str());
    let stalled = condition(ConditionType::Stalled).filter(|condition| condition.status == "True");
    let failed = condition(ConditionType::Ready).filter(|_| status.phase == Some(Phase::Failed));
    Reachable {
        owner: spec.owner.clone(),
        visibility: access.visibility.unwrap_or(plan::VISIBILITY),
        exposed: access.exposure.is_none_or(|exposure| exposure == Exposure::Gateway),
        run_policy: spec.run_policy.unwrap_or(plan::RUN_POLICY),
        wake_mode: wake.mode.unwrap_or(plan::WAKE_MODE),
        wake_timeout: Duration::from_secs(u64::from(timeout.unsigned_abs())),
        phase: status.phase,
        settled: status.settled_transition,
        pod: status.pod.and_then(|pod| Some((pod.uid, pod.ip?.parse().ok()?))),
        deleting: object.metadata.deletion_timestamp.is_some(),
        trouble: stalled.or(failed).map(|condition| (condition.reason.clone(), condition.message.clone())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "all projections have one form")]
fn reachable(object: AgentWorkspace) -> Option<(WorkspaceKey, Reachable)> {
    let key = WorkspaceKey { namespace: object.namespace()?, name: object.name_any() };
    Some((key, read(&object)))
}

/// A wake object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeView {
    /// What is wanted.
    pub intent: Intent,
    /// Number of the last wake.
    pub counter: i64,
    /// UIDs of the workspaces that it belongs to: one, or none.
    owners: Vec<String>,
}

impl WakeView {
    /// Whether it speaks for the workspace with this UID, and not for a former one of the name.
    pub fn belongs_to(&self, workspace_uid: &str) -> bool {
        self.owners.iter().any(|owner| owner == workspace_uid)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "all projections have one form")]
fn wake(object: AgentWorkspaceWake) -> Option<(WorkspaceKey, WakeView)> {
    let key = WorkspaceKey { namespace: object.namespace()?, name: object.name_any() };
    let uids = object.metadata.owner_references.iter().flatten().map(|owner| owner.uid.clone());
    let owners = uids.filter(|uid| object.belongs_to(uid)).collect();
    Some((key, WakeView { intent: object.spec.intent, counter: object.spec.counter, owners }))
}

/// What the gateway's watches brought.
#[derive(Clone, Debug)]
pub struct GatewayCaches {
    /// The workspaces, of all namespaces.
    pub workspaces: Arc<Cache<Reachable>>,
    /// Their wakes.
    pub wakes: Arc<Cache<WakeView>>,
}

impl Default for GatewayCaches {
    fn default() -> Self {
        Self {
            workspaces: Arc::new(Cache::new(|old, new| old == new)),
            wakes: Arc::new(Cache::new(|old, new| old == new)),
        }
    }
}

impl GatewayCaches {
    /// Starts both watches; they run until the set is dropped. `changed` is called for each workspace that looks different.
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
        let workspaces = Watch {
            kind: Kind::AgentWorkspace,
            cache: Arc::clone(&self.workspaces),
            labels: None,
            freshness: Arc::clone(freshness),
            metrics: Arc::clone(metrics),
        };
        let wakes = Watch {
            kind: Kind::AgentWorkspaceWake,
            cache: Arc::clone(&self.wakes),
            labels: None,
            freshness: Arc::clone(freshness),
            metrics: Arc::clone(metrics),
        };
        tasks.spawn(workspaces.run::<DeserializeGuard<AgentWorkspace>>(client.clone(), reachable, changed.clone()));
        tasks.spawn(wakes.run::<DeserializeGuard<AgentWorkspaceWake>>(client.clone(), wake, changed));
        tasks
    }
}

/// Writes wakes.
#[derive(Clone)]
pub struct Wakes {
    client: Client,
    calls: Calls,
    cache: Arc<Cache<WakeView>>,
}

impl Wakes {
    /// What is written is put into the cache at once.
    pub fn new(client: Client, calls: Calls, caches: &GatewayCaches) -> Self {
        Self { client, calls, cache: Arc::clone(&caches.wakes) }
    }

    /// Writes a wake on condition that `seen` is still what is there.
    ///
    /// # Errors
    /// `Conflict` and `AlreadyExists` when another gateway was faster: [`Wakes::refresh`], then decide again.
    pub async fn write(
        &self,
        key: &WorkspaceKey,
        workspace_uid: &str,
        wanted: AgentWorkspaceWakeSpec,
        seen: Option<&Entry<WakeView>>,
    ) -> Result<(), ClusterError> {
        let api: Api<AgentWorkspaceWake> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = PostParams::default();
        let mut object = AgentWorkspaceWake::new(&key.name, wanted);
        object.metadata = ObjectMeta {
            owner_references: Some(vec![owner(key, workspace_uid)]),
            resource_version: seen.map(|seen| seen.version.to_string()),
            uid: seen.map(|seen| seen.uid.clone()),
            ..object.metadata
        };
        let written = if seen.is_some() {
            let call = api.replace(&key.name, &parameters, &object);
            self.calls.run(Kind::AgentWorkspaceWake, Verb::Update, call).await?
        } else {
            self.calls.run(Kind::AgentWorkspaceWake, Verb::Create, api.create(&parameters, &object)).await?
        };
        self.keep(written);
        Ok(())
    }

    /// Puts what is there now into the cache, without waiting for the watch.
    pub async fn refresh(&self, key: &WorkspaceKey) -> Result<(), ClusterError> {
        let api: Api<AgentWorkspaceWake> = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(found) = self.calls.run(Kind::AgentWorkspaceWake, Verb::Get, api.get_opt(&key.name)).await? {
            self.keep(found);
        }
        Ok(())
    }

    fn keep(&self, object: AgentWorkspaceWake) {
        if let Some((key, entry)) = entry(object, wake) {
            self.cache.wrote(&key, entry);
        }
    }
}

/// Deleted with the workspace. It is not its controller: nothing of the workspace is rendered from it.
fn owner(key: &WorkspaceKey, workspace_uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: <AgentWorkspace as kube::Resource>::api_version(&()).into_owned(),
        kind: <AgentWorkspace as kube::Resource>::kind(&()).into_owned(),
        name: key.name.clone(),
        uid: workspace_uid.to_owned(),
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn projected(spec: &serde_json::Value, status: &serde_json::Value) -> Reachable {
        let object = json!({
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
            "metadata": {"name": "alice", "namespace": "team-a"}, "spec": spec, "status": status,
        });
        reachable(serde_json::from_value(object).unwrap()).unwrap().1
    }

    #[test]
    fn the_address_of_the_pod_is_read_with_its_uid_and_rubbish_is_none() {
        let pod = |pod: serde_json::Value| projected(&json!({}), &json!({"pod": pod})).pod;
        let address: IpAddr = "10.244.0.7".parse().unwrap();
        assert_eq!(
            pod(json!({"name": "alice-agent", "uid": "1", "ip": "10.244.0.7"})),
            Some(("1".to_owned(), address))
        );
        assert_eq!(pod(json!({"name": "alice-agent", "uid": "1", "ip": "evil.example"})), None);
        assert_eq!(pod(json!({"name": "alice-agent", "uid": "1"})), None);
    }

    #[test]
    fn trouble_is_what_stalls_or_what_failed() {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "SecretNotFound", "message": "no secret", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let trouble =
            |phase: &str, condition| projected(&json!({}), &json!({"phase": phase, "conditions": [condition]})).trouble;
        let expected = Some(("SecretNotFound".to_owned(), "no secret".to_owned()));
        assert_eq!(trouble("Starting", condition("Stalled", "True")), expected);
        assert_eq!(trouble("Failed", condition("Ready", "False")), expected);
        assert_eq!(trouble("Starting", condition("Ready", "False")), None);
    }

    #[test]
    fn a_wake_speaks_for_the_workspace_that_owns_it() {
        let mut object = AgentWorkspaceWake::new("alice", AgentWorkspaceWakeSpec { intent: Intent::Awake, counter: 3 });
        let key = WorkspaceKey { namespace: "team-a".to_owned(), name: "alice".to_owned() };
        object.metadata.namespace = Some("team-a".to_owned());
        object.metadata.owner_references = Some(vec![owner(&key, "1")]);
        let (found, view) = wake(object).unwrap();
        assert_eq!((found, view.counter), (key, 3));
        assert!(view.belongs_to("1") && !view.belongs_to("2"));
    }
}
