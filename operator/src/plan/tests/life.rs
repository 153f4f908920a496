//! Start, run, stop, deletion: the plain way.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::crd::{AgentWorkspaceStatus, Phase, Reason};

#[test]
fn a_start_takes_six_writes_and_four_decisions() {
    let mut observed = fresh(json!({"owner": {"user": "alice"}}));
    // 1: announce and apply the children
    let first = step(&mut observed, at(0));
    assert_eq!(
        first.apply.iter().map(Child::kind).collect::<Vec<_>>(),
        [ChildKind::Claim, ChildKind::Service, ChildKind::NetworkPolicy]
    );
    assert_eq!(first.create_pod, None, "no pod before the cache holds the announcement");
    assert_eq!(observed.workspace.status.phase, Some(Phase::Starting));
    // 2: the cache caught up
    let mut observed = with_children(observed);
    let second = decide(&observed, at(0));
    let valid = Valid::parse(&Config::default(), &observed.workspace).expect("valid");
    assert_eq!(
        second,
        Plan { create_pod: Some(children::pod(&valid, &observed.token_keys)), ..Plan::default() },
        "exactly one pod and nothing else"
    );
    // the pod comes up: nothing to write
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(0)));
    assert_eq!(
        decide(&observed, at(1)),
        Plan { requeue_at: Some(status::after(at(0), 10)), ..Plan::default() }.on_the_second()
    );
    // 3: Ready; the server is asked once and the status written once
    observed.pod = Seen::Ours(ready(pending_pod(&observed, "pod-1", at(0)), at(2)));
    // what a probe met before the pod was Ready says nothing of it now
    let unreachable = vec![ReadinessReason::Unreachable];
    observed.agent_readiness =
        Some(AgentReadiness { reasons: unreachable, isolation: None, ..healthy("pod-1", at(1)) });
    assert_eq!(
        decide(&observed, at(2)).look_up,
        [LookUp::AgentReadiness { pod_uid: "pod-1".to_owned(), ip: "10.1.2.3".to_owned() }]
    );
    observed.agent_readiness = Some(healthy("pod-1", at(2)));
    let third = step(&mut observed, at(2));
    assert_eq!((third.apply, third.create_pod, third.delete_pod), (Vec::new(), None, None));
    insta::assert_yaml_snapshot!("status_running", observed.workspace.status);
    // 4: its own write comes back
    let fourth = decide(&observed, at(2));
    assert_eq!(fourth, Plan { requeue_at: Some(status::after(status::seconds(at(2)).0, 30)), ..Plan::default() });
}

impl Plan {
    /// Times of pods are whole seconds.
    fn on_the_second(mut self) -> Self {
        self.requeue_at = self.requeue_at.map(|time| status::seconds(time).0);
        self
    }
}

#[test]
fn nothing_is_applied_over_objects_that_were_not_looked_at() {
    let mut observed = fresh(json!({}));
    observed.claim = Seen::Unconfirmed;
    observed.service = Seen::Unconfirmed;
    observed.policy = Seen::Unconfirmed;
    observed.pod = Seen::Unconfirmed;
    let all = vec![ChildKind::Claim, ChildKind::Service, ChildKind::NetworkPolicy, ChildKind::Pod];
    assert_eq!(decide(&observed, at(0)), Plan { look_up: vec![LookUp::Live(all)], ..Plan::default() });
}

#[test]
fn a_lagging_cache_decides_nothing() {
    let mut observed = fresh(json!({}));
    observed.own_write_pending = true;
    assert_eq!(decide(&observed, at(0)), Plan { requeue_at: Some(at(5)), ..Plan::default() });
}

#[test]
fn a_namespace_that_ends_gets_nothing() {
    let mut observed = fresh(json!({}));
    observed.namespace_terminating = true;
    assert_eq!(decide(&observed, at(0)), Plan::default());
}

#[test]
fn a_stop_is_a_status_then_a_drain_and_a_deletion() {
    let mut observed = running(json!({"owner": {"user": "alice"}}));
    observed.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    observed.workspace.generation = 2;
    let first = step(&mut observed, at(60));
    assert_eq!((first.drain, first.delete_pod), (None, None), "the status comes first");
    assert_eq!(observed.workspace.status.pod, None);
    assert_eq!(events(&Plan { events: first.events, ..Plan::default() }), ["Normal Stopping"]);
    let second = decide(&observed, at(60));
    assert_eq!(
        second,
        Plan {
            drain: Some(Drain { pod_uid: "pod-1".to_owned(), ip: "10.1.2.3".to_owned(), grace_seconds: 55 }),
            delete_pod: Some(PodDeletion {
                name: "alice-agent".to_owned(),
                uid: "pod-1".to_owned(),
                grace_seconds: None
            }),
            ..Plan::default()
        }
    );
    pod_mut(&mut observed).deleting = true;
    assert_eq!(decide(&observed, at(61)), Plan::default(), "waiting for the pod to go");
    observed.pod = Seen::Unconfirmed;
    step(&mut observed, at(62));
    assert_eq!(
        conditions(&observed.workspace.status),
        [
            "Ready=True/Stopped",
            "Running=False/Stopped",
            "StorageReady=True/Available",
            "SandboxReady=Unknown/Stopped",
            "AgentReady=Unknown/Stopped",
        ]
    );
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopped));
    assert_eq!(decide(&observed, at(62)), Plan::default());
}

#[test]
fn a_workspace_that_is_created_stopped_makes_nothing() {
    let mut observed = fresh(json!({"runPolicy": "Stopped"}));
    observed.claim = Seen::Unconfirmed;
    let plan = step(&mut observed, at(0));
    assert_eq!(plan, Plan { status: plan.status.clone(), ..Plan::default() });
    assert_eq!(decide(&observed, at(0)), Plan::default());
}

#[test]
fn a_start_after_a_stop_uses_the_kept_claim() {
    let mut observed = running(json!({}));
    observed.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    step(&mut observed, at(60));
    observed.pod = Seen::Missing;
    step(&mut observed, at(61));
    observed.workspace.spec.run_policy = None;
    let plan = step(&mut observed, at(70));
    assert_eq!(plan.apply, Vec::new());
    assert!(decide(&observed, at(70)).create_pod.is_some());
}

#[test]
fn a_deleted_workspace_only_says_so() {
    let mut observed = running(json!({}));
    observed.workspace.deleting = true;
    let plan = step(&mut observed, at(60));
    assert_eq!(plan, Plan { status: plan.status.clone(), ..Plan::default() });
    assert_eq!(observed.workspace.status.phase, Some(Phase::Terminating));
    assert_eq!(decide(&observed, at(60)), Plan::default());
}

#[test]
fn a_changed_spec_waits_for_the_next_start_and_says_so() {
    let mut observed = running(json!({}));
    observed.workspace.spec = spec(json!({"agent": {"image": "other"}}));
    observed.workspace.generation = 2;
    let plan = step(&mut observed, at(60));
    assert_eq!((&plan.delete_pod, &plan.create_pod), (&None, &None));
    assert!(conditions(&observed.workspace.status).contains(&"UpdateAvailable=True/RevisionChanged".to_owned()));
    assert_eq!(events(&plan), ["Normal RevisionChanged"]);
    assert_eq!(observed.workspace.status.observed_generation, Some(2));
    observed.workspace.spec = spec(json!({}));
    observed.workspace.generation = 3;
    step(&mut observed, at(61));
    assert!(!conditions(&observed.workspace.status).iter().any(|one| one.starts_with("UpdateAvailable")));
}

#[test]
fn a_spec_that_is_repaired_during_the_start_is_used_at_once() {
    let mut observed = fresh(json!({"agent": {"image": "wrong"}}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(0)));
    observed.workspace.spec = spec(json!({"agent": {"image": "right"}}));
    observed.workspace.generation = 2;
    let plan = step(&mut observed, at(100));
    assert_eq!(plan.delete_pod, None, "the status comes first");
    let plan = decide(&observed, at(100));
    assert_eq!(plan.delete_pod.expect("a deletion").uid, "pod-1");
    assert_eq!(plan.drain, None);
    observed.pod = Seen::Missing;
    assert!(decide(&observed, at(101)).create_pod.is_some());
}

#[test]
fn new_keys_reach_the_running_pod() {
    let mut observed = running(json!({}));
    observed.token_keys = "NEW".to_owned();
    let plan = decide(&observed, at(3));
    let keys = PodMetadataPatch {
        name: "alice-agent".to_owned(),
        uid: "pod-1".to_owned(),
        keys: Some("NEW".to_owned()),
        labels: BTreeMap::new(),
    };
    assert_eq!((plan.status, plan.pod_metadata), (None, Some(keys.clone())));

    // Whatever else is wrong with the workspace: a rotation waits for every pod that lives.
    observed.workspace.spec = spec(json!({"agent": {"model": {"baseUrl": "http://database"}}}));
    assert_eq!(decide(&observed, at(3)).pod_metadata, Some(keys));
    pod_mut(&mut observed).deleting = true;
    assert_eq!(decide(&observed, at(3)).pod_metadata, None);
}

#[test]
fn labels_that_somebody_took_from_the_pod_are_put_back_and_it_is_not_taken_for_deleted() {
    let mut observed = running(json!({}));
    let pod = std::mem::replace(&mut observed.pod, Seen::Unconfirmed);
    assert_eq!(decide(&observed, at(3)).look_up, [LookUp::Live(vec![ChildKind::Pod])], "the watch selects by label");
    observed.pod = pod;
    pod_mut(&mut observed).labelled = false;
    let plan = decide(&observed, at(3));
    assert_eq!(plan.status, None);
    let labels = plan.pod_metadata.expect("a patch").labels;
    assert_eq!(labels["agents.boring.dev/workspace-uid"], "5f0c");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "agent-workspace-operator");
}

#[test]
fn children_that_were_deleted_or_changed_in_the_settings_are_applied_again() {
    let mut observed = running(json!({}));
    observed.service = Seen::Missing;
    let plan = decide(&observed, at(3));
    assert_eq!(plan.apply.iter().map(Child::kind).collect::<Vec<_>>(), [ChildKind::Service]);
    let observed = running(json!({}));
    let config = Config { cluster_cidrs: vec!["8.8.0.0/16".to_owned()], ..Config::default() };
    let plan = super::super::plan(&config, &observed, at(3));
    assert_eq!(plan.apply.iter().map(Child::kind).collect::<Vec<_>>(), [ChildKind::NetworkPolicy]);
}

#[test]
fn retention_can_be_changed_while_off() {
    let mut observed = running(json!({}));
    observed.workspace.spec =
        spec(json!({"runPolicy": "Stopped", "storage": {"retention": {"whenDeleted": "Delete"}}}));
    step(&mut observed, at(60));
    observed.pod = Seen::Missing;
    let plan = decide(&observed, at(61));
    let [Child::Claim(claim)] = plan.apply.as_slice() else { panic!("one claim: {plan:?}") };
    assert_eq!(claim.metadata.owner_references.as_ref().map(Vec::len), Some(1));
}

#[test]
fn the_server_is_asked_again_at_twice_the_age_and_not_in_between() {
    let observed = running(json!({"agent": {"credentials": [
        {"name": "key", "secretKeyRef": {"name": "agent-key", "key": "token"}, "purpose": "ModelKey"}
    ]}}));
    let since = status::seconds(at(2)).0;
    let asked: Vec<i64> = (5..4000)
        .step_by(5)
        .filter(|second| {
            let now = status::after(since, *second);
            !decide(&observed, now).look_up.is_empty()
        })
        .collect();
    let mut windows: Vec<i64> = Vec::new();
    for second in asked {
        if windows.last().is_none_or(|last| second >= last + 20) {
            windows.push(second);
        }
    }
    assert_eq!(windows, [30, 60, 120, 240, 480, 960, 1920, 3840]);
    let mut answered = observed;
    answered.agent_readiness = Some(healthy("pod-1", status::after(since, 31)));
    assert_eq!(decide(&answered, status::after(since, 32)).look_up, []);
    assert_eq!(decide(&answered, status::after(since, 32)).requeue_at, Some(status::after(since, 60)));
}

#[test]
fn a_server_of_ones_own_may_need_no_key() {
    let own =
        json!({"agent": {"model": {"provider": "openai", "id": "m", "baseUrl": "http://models.example.com:8000/v1"}}});
    let keyed =
        json!({"agent": {"model": {"provider": "openai", "id": "m", "baseUrl": "https://models.example.com/v1"}}});
    for (value, expected) in [(own, "AgentReady=Unknown/Pending"), (keyed, "AgentReady=False/ModelKeyMissing")] {
        let mut observed = fresh(value.clone());
        step(&mut observed, at(0));
        assert!(conditions(&observed.workspace.status).contains(&expected.to_owned()), "{value}");
    }
}

#[test]
fn a_key_that_the_provider_refuses_is_said_and_taken_back() {
    let mut observed = running(json!({"agent": {"credentials": [
        {"name": "key", "secretKeyRef": {"name": "agent-key", "key": "token"}, "purpose": "ModelKey"}
    ]}}));
    let mut answer = healthy("pod-1", at(33));
    answer.reasons = vec![ReadinessReason::ModelKeyRejected];
    observed.agent_readiness = Some(answer);
    let plan = step(&mut observed, at(33));
    assert_eq!(events(&plan), ["Warning ModelKeyRejected"]);
    assert_eq!(
        message(&observed.workspace.status, ConditionType::AgentReady),
        "the model provider refuses the key; put a valid one into secret agent-key"
    );
    assert!(conditions(&observed.workspace.status).contains(&"Ready=True/Running".to_owned()));
    observed.agent_readiness = None;
    assert_eq!(decide(&observed, at(34)).status, None, "forgotten answers change nothing");
    observed.agent_readiness = Some(healthy("pod-1", at(63)));
    step(&mut observed, at(63));
    assert!(conditions(&observed.workspace.status).contains(&"AgentReady=True/Available".to_owned()));
}

#[test]
fn a_restored_object_without_status_finds_its_pod_again() {
    let mut observed = running(json!({}));
    observed.workspace.status = AgentWorkspaceStatus::default();
    observed.agent_readiness = Some(healthy("pod-1", at(50)));
    let plan = step(&mut observed, at(50));
    assert_eq!((plan.create_pod, plan.delete_pod), (None, None));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Running));
}

#[test]
fn a_pod_that_does_not_go_is_told_a_minute_after_its_time_and_never_deleted_by_force() {
    // Both ways to wait for the end of a pod: to be off, and to start anew.
    for (policy, before) in [("Stopped", Reason::Stopping), ("Always", Reason::Starting)] {
        let mut observed = running(json!({}));
        let wish = |observed: &mut Observed, policy: &str| {
            observed.workspace.spec = spec(json!({"runPolicy": policy}));
            observed.workspace.generation += 1;
        };
        wish(&mut observed, "Stopped");
        step(&mut observed, at(100));
        let pod = pod_mut(&mut observed);
        (pod.deleting, pod.gone_by) = (true, Some(at(160)));
        wish(&mut observed, policy);
        step(&mut observed, at(101));
        assert_eq!(decide(&observed, at(102)).requeue_at, Some(at(220)));
        observed.node = Some(NodeState::Ready);
        assert!(status::has_reason(&observed.workspace.status, ConditionType::Ready, before));
        let told = step(&mut observed, at(220));
        assert_eq!((told.create_pod, told.delete_pod, told.requeue_at), (None, None, Some(at(520))));
        let status = &observed.workspace.status;
        for kind in [ConditionType::Ready, ConditionType::Stalled] {
            assert!(status::has_reason(status, kind, Reason::PodTerminating), "{policy}: {kind:?}");
        }
        assert!(message(status, ConditionType::Ready).contains("node1"));
        let again = decide(&observed, at(1000));
        assert_eq!((again.status, again.events), (None, Vec::new()), "said once");
        observed.node = None;
        // When it is gone at last, all goes on.
        observed.pod = Seen::Missing;
        step(&mut observed, at(2000));
        assert!(!status::has_reason(&observed.workspace.status, ConditionType::Ready, Reason::PodTerminating));
        assert_eq!(status::condition(&observed.workspace.status, ConditionType::Stalled), None);
    }
}

#[test]
fn the_address_behind_the_gateway_is_written_with_the_first_status() {
    let config =
        Config { workspace_url: Some("https://{name}--{namespace}.example.com".to_owned()), ..Config::default() };
    let observed = fresh(json!({"runPolicy": "Stopped"}));
    let status = plan(&config, &observed, at(0)).status.expect("a status").status;
    assert_eq!(status.url.as_deref(), Some("https://alice--team-a.example.com"));
    assert_eq!(decide(&observed, at(0)).status.expect("a status").status.url, None);
}

#[test]
fn a_model_server_whose_service_is_missing_keeps_chat_from_working_until_it_is_there() {
    let config = permitting("models");
    let spec = json!({
        "agent": {
            "model": {"baseUrl": "http://llm.models.svc"},
            "credentials": [{"name": "k", "secretKeyRef": {"name": "agent-k", "key": "k"}, "purpose": "ModelKey"}],
        },
    });
    let mut observed = fresh(spec);
    observed.model_service = Some(ModelService::Missing);
    let first = plan(&config, &observed, at(0));
    let status = first.status.expect("a status").status;
    assert!(conditions(&status).contains(&"AgentReady=False/ModelEndpointUnusable".to_owned()));
    assert!(message(&status, ConditionType::AgentReady).contains("Service llm in namespace models"));
    let policy = |plan: &Plan| {
        let mut policies = plan.apply.iter().filter_map(|child| match child {
            Child::NetworkPolicy(policy) => Some(policy.spec.clone().expect("a spec").egress.expect("rules")),
            Child::Claim(_) | Child::Service(_) => None,
        });
        policies.next().expect("a policy")
    };
    let without = policy(&plan(&config, &observed, at(0)));
    let view = ServiceView {
        selector: [("app".to_owned(), "llm".to_owned())].into(),
        ports: vec![(80, IntOrString::Int(8080))],
    };
    observed.model_service = Some(ModelService::Found(view));
    let second = plan(&config, &observed, at(60));
    assert_eq!(policy(&second).len(), without.len() + 1);
    let status = second.status.expect("a status").status;
    assert!(conditions(&status).contains(&"AgentReady=Unknown/Pending".to_owned()));
}
