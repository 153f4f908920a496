//! Ends that nobody asked for.

use super::*;
use crate::crd::{FailurePolicy, Phase};

#[expect(clippy::unnecessary_wraps, reason = "as a pod has it")]
fn disruption(reason: &str, message: &str) -> Option<Disruption> {
    Some(Disruption { reason: Some(reason.to_owned()), message: message.to_owned() })
}

fn failures(observed: &Observed) -> Option<i32> {
    observed.workspace.status.last_start.as_ref().and_then(|start| start.failures)
}

/// The pod fails at `second`; the failed pod is deleted after the pause and the next one becomes Ready or not.
fn crash(observed: &mut Observed, second: i64, exit_code: i32, output: &str) -> Plan {
    let pod = ended(pod_mut(observed).clone(), exit_code, "Error", output);
    observed.pod = Seen::Ours(pod);
    step(observed, at(second))
}

#[test]
fn a_failed_pod_is_kept_for_the_pause_then_replaced() {
    let mut observed = running(json!({}));
    let plan = crash(&mut observed, 100, 1, "thread 'main' panicked");
    assert_eq!(plan.delete_pod, None, "the status comes first");
    assert_eq!(plan.requeue_at, Some(status::seconds(at(105)).0));
    assert_eq!(events(&plan), ["Warning Restarting"]);
    insta::assert_yaml_snapshot!("status_restarting", observed.workspace.status);
    let waiting = decide(&observed, at(104));
    assert_eq!(waiting, Plan { requeue_at: Some(status::seconds(at(105)).0), ..Plan::default() });
    let over = decide(&observed, at(105));
    assert_eq!(over.delete_pod.clone().expect("a deletion").uid, "pod-1");
    assert_eq!(over, Plan { delete_pod: over.delete_pod.clone(), ..Plan::default() });
    observed.pod = Seen::Missing;
    assert!(decide(&observed, at(105)).create_pod.is_some());
}

#[test]
fn deleting_the_failed_pod_does_not_shorten_the_pause() {
    let mut observed = running(json!({}));
    crash(&mut observed, 100, 1, "boom");
    observed.pod = Seen::Missing;
    let plan = decide(&observed, at(104));
    assert_eq!(plan, Plan { requeue_at: Some(status::seconds(at(105)).0), ..Plan::default() });
    assert!(decide(&observed, at(105)).create_pod.is_some());
}

#[test]
fn the_pause_doubles_up_to_five_minutes() {
    let pauses: Vec<i64> = (0..10).map(starting::pause_seconds).collect();
    assert_eq!(pauses, [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(starting::pause_seconds(i32::MAX), 300);
}

#[test]
fn the_third_failure_in_a_row_asks_for_a_person() {
    let mut observed = running(json!({}));
    let mut reasons = Vec::new();
    for round in 0..4 {
        crash(&mut observed, 100 + round * 400, 1, "boom");
        reasons.push(observed.workspace.status.conditions.last().map(|one| format!("{}/{}", one.type_, one.reason)));
        let uid = format!("pod-{}", round + 2);
        observed.pod = Seen::Ours(pending_pod(&observed, &uid, at(300 + round * 400)));
    }
    let expected = ["Reconciling/Restarting", "Reconciling/Restarting", "Stalled/CrashLoop", "Stalled/CrashLoop"];
    assert_eq!(reasons, expected.map(|one| Some(one.to_owned())));
    assert_eq!(failures(&observed), Some(4));
    assert_eq!(observed.workspace.status.restarts, Some(4));
}

#[test]
fn ten_healthy_minutes_close_the_book() {
    let mut observed = running(json!({}));
    crash(&mut observed, 100, 1, "boom");
    observed.pod = Seen::Ours(ready(pending_pod(&observed, "pod-2", at(106)), at(108)));
    observed.agent_readiness = Some(healthy("pod-2", at(108)));
    step(&mut observed, at(108));
    assert_eq!(failures(&observed), Some(1));
    let plan = decide(&observed, at(110));
    assert_eq!(plan.status, None);
    let mut deadline = status::seconds(at(108)).0;
    deadline = status::after(deadline, 600);
    observed.agent_readiness = Some(healthy("pod-2", deadline));
    let plan = decide(&observed, deadline);
    assert_eq!(plan.status.expect("a patch").status.last_start.expect("a start").failures, None);
}

#[test]
fn a_rejected_configuration_shows_the_servers_last_words_at_once() {
    let mut observed = running(json!({}));
    let plan = crash(&mut observed, 100, 78, "BORING_AGENT_MODEL_BASE_URL: not an address");
    assert_eq!(events(&plan), ["Warning ConfigRejected"]);
    let status = &observed.workspace.status;
    assert!(conditions(status).contains(&"Stalled=True/ConfigRejected".to_owned()));
    assert_eq!(
        message(status, ConditionType::Ready),
        "the agent server refuses its configuration; correct spec.agent: BORING_AGENT_MODEL_BASE_URL: not an address"
    );
}

#[test]
fn memory_that_ran_out_is_named() {
    let mut observed = running(json!({}));
    observed.pod = Seen::Ours(ended(pod_mut(&mut observed).clone(), 137, "OOMKilled", ""));
    let plan = step(&mut observed, at(100));
    assert_eq!(events(&plan), ["Warning OutOfMemory"]);
    let end = observed.workspace.status.last_termination.as_ref().expect("an end");
    assert_eq!((end.reason.as_str(), end.exit_code), ("OOMKilled", Some(137)));
}

#[test]
fn a_pod_that_its_node_took_away_is_replaced_at_once() {
    for deleting in [true, false] {
        let mut observed = running(json!({}));
        let pod = pod_mut(&mut observed);
        pod.disruption = disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        pod.deleting = deleting;
        if !deleting {
            pod.phase = PodPhase::Failed;
        }
        pod.ready = false;
        let plan = step(&mut observed, at(100));
        assert_eq!(events(&plan), ["Warning NodeDrain"]);
        assert_eq!((plan.create_pod, plan.requeue_at), (None, None));
        assert_eq!(failures(&observed), None, "no failure of the agent");
        observed.pod = Seen::Missing;
        assert!(decide(&observed, at(100)).create_pod.is_some());
    }
}

#[test]
fn a_pod_that_somebody_deleted_is_replaced_when_it_is_gone() {
    let mut observed = running(json!({}));
    pod_mut(&mut observed).deleting = true;
    let plan = step(&mut observed, at(100));
    assert_eq!(events(&plan), ["Warning PodDeleted"]);
    assert_eq!(decide(&observed, at(101)), Plan::default(), "it is still there");
    observed.pod = Seen::Unconfirmed;
    assert!(decide(&observed, at(102)).create_pod.is_some());
    // nobody saw it go
    let mut observed = running(json!({}));
    observed.pod = Seen::Missing;
    let plan = step(&mut observed, at(100));
    assert_eq!((events(&plan), plan.create_pod), (vec!["Warning PodDeleted".to_owned()], None));
    assert!(decide(&observed, at(100)).create_pod.is_some());
}

#[test]
fn failure_policy_ignore_leaves_the_pod_until_something_changes() {
    let mut observed = running(json!({"lifecycle": {"failurePolicy": "Ignore"}}));
    let plan = crash(&mut observed, 100, 1, "boom");
    assert_eq!(events(&plan), ["Warning PodFailed"]);
    assert_eq!(observed.workspace.status.phase, Some(Phase::Failed));
    assert_eq!(decide(&observed, at(10_000)), Plan::default());
    let mut changed = observed.clone();
    changed.workspace.spec.lifecycle = Some(crate::crd::Lifecycle {
        failure_policy: Some(FailurePolicy::Recreate),
        ..crate::crd::Lifecycle::default()
    });
    step(&mut changed, at(10_000));
    assert_eq!(decide(&changed, at(10_000)).delete_pod.expect("a deletion").uid, "pod-1");
    let mut deleted = observed;
    deleted.pod = Seen::Missing;
    step(&mut deleted, at(10_000));
    assert!(decide(&deleted, at(10_000)).create_pod.is_some());
}

#[test]
fn an_evicted_pod_says_why_and_a_drained_one_is_replaced_in_spite_of_ignore() {
    let mut observed = running(json!({}));
    let mut pod = ended(pod_mut(&mut observed).clone(), 137, "Error", "");
    pod.reason = Some("Evicted".to_owned());
    pod.message = Some("Usage of EmptyDir volume \"tmp\" exceeds the limit \"1Gi\".".to_owned());
    observed.pod = Seen::Ours(pod.clone());
    step(&mut observed, at(100));
    assert_eq!(
        message(&observed.workspace.status, ConditionType::Ready),
        "the agent server ended with exit code 137 (Evicted): Usage of EmptyDir volume \"tmp\" exceeds the limit \"1Gi\"."
    );
    let mut observed = running(json!({"lifecycle": {"failurePolicy": "Ignore"}}));
    pod.disruption = disruption("TerminationByKubelet", "the node is being shut down");
    observed.pod = Seen::Ours(pod);
    step(&mut observed, at(100));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Starting));
}

#[test]
fn a_changed_spec_ends_the_pause() {
    let mut observed = running(json!({}));
    crash(&mut observed, 100, 78, "no");
    observed.workspace.spec = spec(json!({"agent": {"image": "repaired"}}));
    step(&mut observed, at(101));
    assert_eq!(failures(&observed), None);
    assert_eq!(decide(&observed, at(101)).delete_pod.expect("a deletion").uid, "pod-1");
}

#[test]
fn a_failed_pod_found_while_off_is_deleted_without_a_drain() {
    let mut observed = running(json!({}));
    observed.pod = Seen::Ours(ended(pod_mut(&mut observed).clone(), 1, "Error", "boom"));
    observed.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    step(&mut observed, at(100));
    let plan = decide(&observed, at(100));
    assert_eq!(plan.drain, None);
    assert_eq!(plan.delete_pod.expect("a deletion").uid, "pod-1");
}

#[test]
fn a_preempted_pod_is_replaced_at_once_and_told_apart_from_a_drained_one() {
    let mut observed = running(json!({}));
    let pod = pod_mut(&mut observed);
    pod.deleting = true;
    pod.disruption =
        disruption("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod");
    let plan = step(&mut observed, at(100));
    assert_eq!(events(&plan), ["Warning Preempted"]);
    assert_eq!((failures(&observed), observed.workspace.status.restarts), (None, Some(1)));
    observed.pod = Seen::Missing;
    assert!(decide(&observed, at(101)).create_pod.is_some());
}

#[test]
fn a_pod_that_is_lost_while_it_starts_counts() {
    let mut observed = fresh(json!({}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    // gone at once, as a pod without a node is
    observed.created_pod = Some("pod-1".to_owned());
    observed.pod = Seen::Unconfirmed;
    assert_eq!(decide(&observed, at(1)).look_up, [LookUp::Live(vec![ChildKind::Pod])]);
    observed.pod = Seen::Missing;
    let plan = step(&mut observed, at(1));
    assert_eq!((events(&plan), plan.create_pod), (vec!["Warning PodDeleted".to_owned()], None));
    assert_eq!(observed.workspace.status.restarts, Some(1));
    assert!(decide(&observed, at(1)).create_pod.is_some(), "counted once");
    // taken away with a grace period
    observed.created_pod = Some("pod-2".to_owned());
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-2", at(1)));
    pod_mut(&mut observed).deleting = true;
    step(&mut observed, at(2));
    assert_eq!(observed.workspace.status.restarts, Some(2));
    assert_eq!(decide(&observed, at(3)), Plan::default());
    observed.pod = Seen::Missing;
    assert!(decide(&observed, at(4)).create_pod.is_some());
}

#[test]
fn a_pod_that_stays_unready_is_created_again_after_its_timeout() {
    let mut observed = running(json!({"lifecycle": {"unhealthyTimeoutSeconds": 120}}));
    pod_mut(&mut observed).ready = false;
    let silent = |second| {
        let reasons = vec![ReadinessReason::Unreachable];
        Some(AgentReadiness {
            pod_uid: "pod-1".to_owned(),
            asked_at: at(second),
            reasons,
            message: Some("timed out".to_owned()),
            isolation: None,
        })
    };
    observed.agent_readiness = silent(100);
    let plan = step(&mut observed, at(100));
    assert_eq!(plan.requeue_at, Some(at(160)));
    observed.agent_readiness = silent(160);
    assert_eq!(decide(&observed, at(160)).requeue_at, Some(status::seconds(at(220)).0));
    observed.agent_readiness = silent(220);
    let mut ignored = observed.clone();
    ignored.workspace.spec = spec(json!({"lifecycle": {"failurePolicy": "Ignore"}}));
    assert_eq!(decide(&ignored, at(100_000)).status.map(|patch| patch.status.phase), None);
    let plan = step(&mut observed, at(220));
    assert_eq!(events(&plan), ["Warning AgentUnresponsive"]);
    assert_eq!((failures(&observed), plan.delete_pod), (Some(1), None));
    let end = observed.workspace.status.last_termination.clone().expect("an end");
    assert_eq!((end.reason.as_str(), end.pod_uid.as_deref()), ("AgentUnresponsive", Some("pod-1")));
    // It goes, even when it has come back meanwhile: its end is told already.
    pod_mut(&mut observed).ready = true;
    assert_eq!(decide(&observed, at(221)).delete_pod.expect("a deletion").uid, "pod-1");
    pod_mut(&mut observed).deleting = true;
    assert_eq!(decide(&observed, at(222)).status, None);
    observed.pod = Seen::Missing;
    assert_eq!(decide(&observed, at(222)).requeue_at, Some(status::seconds(at(225)).0), "after its pause");
    assert!(decide(&observed, at(226)).create_pod.is_some());
}

#[test]
fn a_pod_on_a_lost_node_is_never_deleted_by_force_and_a_person_hears_the_remedy() {
    for spec in [json!({}), json!({"runPolicy": "Stopped"})] {
        let mut observed = running(json!({}));
        observed.workspace.spec = self::spec(spec);
        let pod = pod_mut(&mut observed);
        (pod.deleting, pod.ready, pod.gone_by) = (true, false, Some(at(160)));
        step(&mut observed, at(100));
        assert_eq!(decide(&observed, at(101)).requeue_at, Some(at(220)));
        assert_eq!(decide(&observed, at(220)).look_up, [LookUp::Node { name: "node1".to_owned() }]);
        observed.node = Some(NodeState::NotReady);
        let plan = step(&mut observed, at(220));
        assert_eq!((plan.delete_pod, plan.create_pod, plan.requeue_at), (None, None, Some(at(520))));
        let status = &observed.workspace.status;
        assert!(conditions(status).contains(&"Stalled=True/NodeLost".to_owned()), "{:?}", conditions(status));
        let told = message(status, ConditionType::Stalled);
        assert!(told.contains("node1") && told.contains("out-of-service"), "{told}");
        observed.node = Some(NodeState::Gone);
        step(&mut observed, at(520));
        assert!(message(&observed.workspace.status, ConditionType::Stalled).contains("does not exist any more"));
        observed.node = Some(NodeState::Ready);
        step(&mut observed, at(820));
        assert!(conditions(&observed.workspace.status).contains(&"Stalled=True/PodTerminating".to_owned()));
    }
}
