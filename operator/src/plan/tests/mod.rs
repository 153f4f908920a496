//! Tests of decisions: whole plans compared, rendered children as snapshots, and random walks through a model of a cluster.

mod causes;
mod failures;
mod life;
mod on_demand;
mod ownership;
mod rendering;
mod sandbox;
mod state_space;
mod validation;
mod walk;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::crd::{AgentWorkspaceSpec, AgentWorkspaceStatus, ConditionType};

/// Start of every test's time.
pub(crate) fn start() -> Timestamp {
    "2026-03-01T08:00:00.250Z".parse().expect("a time")
}

/// Seconds after [`start`].
pub(crate) fn at(seconds: i64) -> Timestamp {
    status::after(start(), seconds)
}

pub(crate) fn spec(value: Value) -> AgentWorkspaceSpec {
    serde_json::from_value(value).expect("a spec")
}

/// Settings that permit a model server in one namespace of the cluster.
pub(crate) fn permitting(namespace: &str) -> Config {
    Config { model_namespaces: [namespace.to_owned()].into(), ..Config::default() }
}

/// A workspace that was just created, with nothing else in the namespace.
pub(crate) fn fresh(value: Value) -> Observed {
    let mut workspace = WorkspaceView::new("team-a", "alice", "5f0c", spec(value));
    workspace.created = start();
    workspace.status.observed_generation = Some(-1);
    Observed { leading_since: start(), spread_seconds: 60, ..Observed::alone(workspace, "{\"keys\":[]}".to_owned()) }
}

/// The children as they are after [`plan`] applied them.
pub(crate) fn with_children(mut observed: Observed) -> Observed {
    let valid = Valid::parse(&Config::default(), &observed.workspace).expect("a valid spec");
    if let Some(claim) = children::claim(&valid, None, None) {
        observed.claim = Seen::Ours(ClaimView {
            uid: "claim-1".to_owned(),
            deleting: false,
            applied: Some(claim.applied),
            workspace_uid: Some(observed.workspace.uid.clone()),
            owner_user: valid.owner_user.clone(),
            phase: ClaimPhase::Bound,
            requested: Some("10Gi".to_owned()),
            capacity: Some("10Gi".to_owned()),
            storage_class_name: Some("standard".to_owned()),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            controller_uid: None,
        });
    }
    let simple = |uid: &str, applied: String| {
        let (deleting, overwritten, applied_at) = (false, false, None);
        Seen::Ours(SimpleView { uid: uid.to_owned(), deleting, applied: Some(applied), overwritten, applied_at })
    };
    observed.service = simple("service-1", children::service(&valid).1);
    observed.policy = simple("policy-1", children::network_policy(&Config::default(), &valid, None).1);
    observed
}

/// A pod that was created at a time and is Pending.
pub(crate) fn pending_pod(observed: &Observed, uid: &str, created: Timestamp) -> PodView {
    let valid = Valid::parse(&Config::default(), &observed.workspace).expect("a valid spec");
    PodView {
        uid: uid.to_owned(),
        created: status::seconds(created).0,
        deleting: false,
        gone_by: None,
        revision: Some(children::revision(&valid)),
        keys: Some(observed.token_keys.clone()),
        labelled: true,
        phase: PodPhase::Pending,
        ready: false,
        ready_since: None,
        node_name: Some("node1".to_owned()),
        ip: None,
        unschedulable: None,
        disruption: None,
        stages: PodStages::default(),
        waiting: None,
        terminated: None,
        reason: None,
        message: None,
    }
}

/// The pod after it became Ready.
pub(crate) fn ready(mut pod: PodView, since: Timestamp) -> PodView {
    pod.phase = PodPhase::Running;
    pod.ready = true;
    pod.ready_since = Some(status::seconds(since).0);
    pod.ip = Some("10.1.2.3".to_owned());
    pod
}

/// The pod after its container ended.
pub(crate) fn ended(mut pod: PodView, exit_code: i32, reason: &str, output: &str) -> PodView {
    pod.phase = if exit_code == 0 { PodPhase::Succeeded } else { PodPhase::Failed };
    pod.ready = false;
    pod.terminated = Some(ContainerEnd {
        reason: Some(reason.to_owned()),
        exit_code,
        message: Some(output.to_owned()),
        finished: None,
    });
    pod
}

/// What a server in direct mode reports.
pub(crate) fn direct() -> AgentIsolation {
    AgentIsolation { kind: "DirectWithLandlockLayer".to_owned(), isolated: false, degraded: None }
}

/// A server that reports no problem.
pub(crate) fn healthy(pod_uid: &str, asked_at: Timestamp) -> AgentReadiness {
    AgentReadiness {
        pod_uid: pod_uid.to_owned(),
        asked_at,
        reasons: Vec::new(),
        message: None,
        isolation: Some(direct()),
    }
}

pub(crate) fn decide(observed: &Observed, now: Timestamp) -> Plan {
    plan(&Config::default(), observed, now)
}

/// Decides and takes the status over, as the cache does after the write. Asserts that there was one.
pub(crate) fn step(observed: &mut Observed, now: Timestamp) -> Plan {
    let plan = decide(observed, now);
    let status = plan.status.clone().expect("a status patch").status;
    observed.workspace.status = round_trip(&status);
    plan
}

/// What the API server gives back for a written status.
pub(crate) fn round_trip(status: &AgentWorkspaceStatus) -> AgentWorkspaceStatus {
    serde_json::from_value(serde_json::to_value(status).expect("plain data")).expect("a status")
}

/// A workspace whose pod is Ready and reported, 2 seconds after its creation.
pub(crate) fn running(value: Value) -> Observed {
    let mut observed = fresh(value);
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    let pod = ready(pending_pod(&observed, "pod-1", at(0)), at(2));
    observed.pod = Seen::Ours(pod);
    observed.agent_readiness = Some(healthy("pod-1", at(2)));
    step(&mut observed, at(2));
    observed.agent_readiness = None;
    observed
}

pub(crate) fn pod_mut(observed: &mut Observed) -> &mut PodView {
    match &mut observed.pod {
        Seen::Ours(pod) => pod,
        other => panic!("no pod: {other:?}"),
    }
}

/// `type=status/reason` of every condition, and the message of those that are not quiet.
pub(crate) fn conditions(status: &AgentWorkspaceStatus) -> Vec<String> {
    status.conditions.iter().map(|one| format!("{}={}/{}", one.type_, one.status, one.reason)).collect()
}

pub(crate) fn message(status: &AgentWorkspaceStatus, kind: ConditionType) -> String {
    status::condition(status, kind).map(|one| one.message.clone()).unwrap_or_default()
}

/// Events as `type reason`.
pub(crate) fn events(plan: &Plan) -> Vec<String> {
    plan.events.iter().map(|event| format!("{:?} {}", event.kind, event.reason)).collect()
}

/// A spec with all that the agent can be given.
pub(crate) fn full_spec() -> Value {
    json!({
        "owner": {"user": "alice@example.com", "groups": ["team-a-devs"]},
        "runPolicy": "Always",
        "agent": {
            "image": "registry.example.com/agent@sha256:1", "imagePullPolicy": "Always",
            "model": {"provider": "anthropic", "id": "claude-test", "baseUrl": "http://model.fakes.svc:8080"},
            "systemPrompt": "speak plainly",
            "credentials": [
                {"name": "model-key", "secretKeyRef": {"name": "agent-alice", "key": "token"}, "purpose": "ModelKey"},
                {"name": "GITHUB_TOKEN", "secretKeyRef": {"name": "agent-git", "key": "token"}, "purpose": "Environment"},
                {"name": "npmrc", "secretKeyRef": {"name": "agent-npm", "key": "rc"}, "purpose": "File"},
            ],
            "settingsRef": {"name": "agent-settings"},
            "env": [{"name": "LOG_LEVEL", "value": "$(HOME) costs $5"}],
        },
        "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "4Gi"}},
        "sandbox": {"mode": "Direct"},
        "template": {"configMapName": "agent-template"},
        "libraries": {"python": ["pandas", "numpy>=2,<3"]},
        "storage": {"size": "20Gi", "storageClassName": "fast", "accessMode": "ReadWriteOncePod", "retention": {"whenDeleted": "Delete"}},
        "lifecycle": {"startTimeoutSeconds": 120, "stopGracePeriodSeconds": 30, "failurePolicy": "Recreate"},
        "scheduling": {
            "nodeSelector": {"pool": "agents"},
            "tolerations": [{"key": "agents", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
            "priorityClassName": "agents",
        },
        "podMetadata": {"labels": {"example.com/team": "a"}, "annotations": {"example.com/cost": "42"}},
        "access": {"exposure": "ClusterLocal"},
    })
}
