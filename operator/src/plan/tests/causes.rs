//! Starts that take long: each cause is told apart, with what to do about it. Sentences are as scheduler and kubelet write them.

use super::*;
use crate::crd::Phase;

/// A workspace whose pod has been there, unready, for 12 seconds.
fn late(change: impl FnOnce(&mut Observed)) -> Observed {
    let mut observed = fresh(json!({"agent": {"credentials": [
        {"name": "key", "secretKeyRef": {"name": "agent-key", "key": "token"}, "purpose": "ModelKey"}
    ]}}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(0)));
    change(&mut observed);
    observed
}

fn events_with(reason: &str, message: &str) -> Vec<PodEvent> {
    let scheduled = PodEvent {
        reason: "Scheduled".to_owned(),
        message: "Successfully assigned team-a/alice-agent to node1".to_owned(),
        last_seen: Some(at(0)),
    };
    vec![scheduled, PodEvent { reason: reason.to_owned(), message: message.to_owned(), last_seen: Some(at(9)) }]
}

/// `(Ready reason, Stalled reason, other condition, message)` after 12 seconds, and that it is stable.
fn told(mut observed: Observed) -> (String, Option<String>, String) {
    let plan = step(&mut observed, at(12));
    assert_eq!((plan.create_pod, plan.delete_pod), (None, None), "a pod that waits is held, never replaced");
    assert_eq!(plan.requeue_at, Some(status::seconds(at(20)).0));
    let again = decide(&observed, at(13));
    assert_eq!((again.status, again.events), (None, Vec::new()));
    let status = &observed.workspace.status;
    let reason = |kind| status::condition(status, kind).map(|one| one.reason.clone());
    (
        reason(ConditionType::Ready).expect("Ready"),
        reason(ConditionType::Stalled),
        message(status, ConditionType::Ready),
    )
}

#[test]
fn nothing_is_said_in_the_first_ten_seconds() {
    let observed = late(|observed| {
        pod_mut(observed).waiting = Some(ContainerWait { reason: "ErrImagePull".to_owned(), message: None });
    });
    assert_eq!(decide(&observed, at(9)).status, None);
}

#[test]
fn an_image_that_cannot_be_pulled_asks_for_a_person() {
    for reason in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"] {
        let observed = late(|observed| {
            let message = Some("rpc error: code = NotFound desc = failed to pull\n and unpack image".to_owned());
            pod_mut(observed).waiting = Some(ContainerWait { reason: reason.to_owned(), message });
        });
        assert_eq!(
            told(observed),
            (
                "ImagePull".to_owned(),
                Some("ImagePull".to_owned()),
                "the image cannot be pulled; correct spec.agent.image (or spec.template.image) or make it available: rpc error: code = NotFound desc = failed to pull and unpack image".to_owned()
            )
        );
    }
}

#[test]
fn a_pull_that_is_tried_again_is_not_told_again() {
    let mut observed = late(|observed| {
        let message = Some("dial tcp 192.0.2.1:443: read 198.18.0.2:41969: i/o timeout".to_owned());
        pod_mut(observed).waiting = Some(ContainerWait { reason: "ErrImagePull".to_owned(), message });
    });
    step(&mut observed, at(12));
    let message = Some("Back-off pulling image \"x\": ErrImagePull: read 198.18.0.2:36105: i/o timeout".to_owned());
    pod_mut(&mut observed).waiting = Some(ContainerWait { reason: "ImagePullBackOff".to_owned(), message });
    assert_eq!(decide(&observed, at(25)).status, None);
    assert_eq!(decide(&observed, at(700)).status, None);
}

#[test]
fn a_missing_secret_is_named_although_the_mount_timed_out_later() {
    let observed = late(|observed| {
        let event = |message: &str, second| PodEvent {
            reason: "FailedMount".to_owned(),
            message: message.to_owned(),
            last_seen: Some(at(second)),
        };
        observed.pod_events = Some(vec![
            event("MountVolume.SetUp failed for volume \"model-key\" : secret \"agent-key\" not found", 3),
            event(
                "Unable to attach or mount volumes: unmounted volumes=[model-key]: timed out waiting for the condition",
                9,
            ),
        ]);
    });
    assert_eq!(told(observed).0, "SecretNotFound");
}

#[test]
fn a_missing_secret_or_key_is_found_in_the_events() {
    let waiting = || Some(ContainerWait { reason: "ContainerCreating".to_owned(), message: None });
    let observed = late(|observed| pod_mut(observed).waiting = waiting());
    assert_eq!(decide(&observed, at(12)).look_up, [LookUp::PodEvents { pod_uid: "pod-1".to_owned() }]);
    for sentence in [
        "MountVolume.SetUp failed for volume \"model-key\" : secret \"agent-key\" not found",
        "MountVolume.SetUp failed for volume \"model-key\" : references non-existent secret key: token",
    ] {
        let observed = late(|observed| {
            pod_mut(observed).waiting = waiting();
            observed.pod_events = Some(events_with("FailedMount", sentence));
        });
        let message =
            format!("a secret or a key in it is missing; create it or correct spec.agent.credentials: {sentence}");
        assert_eq!(told(observed), ("SecretNotFound".to_owned(), Some("SecretNotFound".to_owned()), message));
    }
}

#[test]
fn a_missing_config_map_is_found_in_the_events() {
    for sentence in [
        "MountVolume.SetUp failed for volume \"template\" : configmap \"agent-files\" not found",
        "MountVolume.SetUp failed for volume \"settings\" : references non-existent config key: settings",
    ] {
        let observed = late(|observed| observed.pod_events = Some(events_with("FailedMount", sentence)));
        let message = format!(
            "a config map or a key in it is missing; create it or correct spec.template.configMapName or spec.agent.settingsRef: {sentence}"
        );
        assert_eq!(told(observed), ("ConfigMapNotFound".to_owned(), Some("ConfigMapNotFound".to_owned()), message));
    }
}

#[test]
fn no_room_on_the_nodes_is_waited_for() {
    let sentence = "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available";
    let observed = late(|observed| {
        let pod = pod_mut(observed);
        pod.node_name = None;
        pod.unschedulable = Some(sentence.to_owned());
    });
    let message = format!("no node takes the pod; check spec.resources and spec.scheduling, or add a node: {sentence}");
    assert_eq!(told(observed), ("Unschedulable".to_owned(), None, message));
}

#[test]
fn a_claim_without_a_volume_is_told_by_its_class() {
    let unbound = |class: Option<&str>, known: bool| {
        late(|observed| {
            let Seen::Ours(claim) = &mut observed.claim else { panic!("a claim") };
            claim.phase = ClaimPhase::Pending;
            claim.storage_class_name = class.map(str::to_owned);
            observed.storage_class = class.filter(|_| known).map(|name| StorageClassView {
                name: name.to_owned(),
                allow_volume_expansion: true,
                waits_for_consumer: false,
            });
            let pod = pod_mut(observed);
            pod.node_name = None;
            pod.unschedulable =
                Some("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims".to_owned());
        })
    };
    let (reason, stalled, message) = told(unbound(None, false));
    assert_eq!((reason.as_str(), stalled.as_deref()), ("NoStorageClass", Some("NoStorageClass")));
    assert!(message.starts_with("the cluster has no default StorageClass"), "{message}");
    let (reason, _, message) = told(unbound(Some("fast"), false));
    assert_eq!(reason, "NoStorageClass");
    assert!(message.starts_with("StorageClass fast does not exist"), "{message}");
    let (reason, stalled, message) = told(unbound(Some("fast"), true));
    assert_eq!((reason.as_str(), stalled), ("VolumePending", None));
    assert!(message.starts_with("waiting for a volume of StorageClass fast"), "{message}");
}

#[test]
fn trouble_on_the_node_is_told_apart() {
    let cases = [
        (
            "FailedAttachVolume",
            "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) x",
            "VolumeAttach",
        ),
        ("FailedCreatePodSandBox", "Failed to create pod sandbox: failed to setup network for sandbox", "NetworkSetup"),
    ];
    for (reason, sentence, expected) in cases {
        let observed = late(|observed| observed.pod_events = Some(events_with(reason, sentence)));
        let (told, stalled, message) = told(observed);
        assert_eq!((told.as_str(), stalled), (expected, None));
        assert!(message.ends_with(sentence), "{message}");
    }
    let observed = late(|observed| observed.pod_events = Some(events_with("Pulling", "Pulling image \"x\"")));
    assert_eq!(told(observed).0, "Pending");
}

#[test]
fn a_node_that_cannot_give_the_sandbox_is_told_with_the_remedy() {
    let sentences = [
        "Failed to create pod sandbox: rpc error: code = Unknown desc = runtime does not support user namespaces",
        "Failed to create pod sandbox: user namespaces is not supported by the runtime handler",
    ];
    for sentence in sentences {
        let observed = late(|observed| observed.pod_events = Some(events_with("FailedCreatePodSandBox", sentence)));
        let (reason, stalled, message) = told(observed);
        assert_eq!((reason.as_str(), stalled.as_deref()), ("UserNamespacesUnsupported", Some(reason.as_str())));
        assert!(message.contains("procMount Empty") && message.ends_with(sentence), "{message}");
    }
    let sentence = "failed to generate container \"x\" spec: failed to generate seccomp spec opts: cannot load seccomp profile \"/var/lib/kubelet/seccomp/agent-workspace-operator/bubblewrap.json\": no such file or directory";
    let mut observed = late(|observed| {
        let message = Some(sentence.to_owned());
        pod_mut(observed).waiting = Some(ContainerWait { reason: "CreateContainerError".to_owned(), message });
    });
    step(&mut observed, at(12));
    let told = conditions(&observed.workspace.status);
    for expected in ["Ready=False/SeccompProfileMissing", "SandboxReady=False/SeccompProfileMissing"] {
        assert!(told.contains(&expected.to_owned()), "{told:?}");
    }
}

#[test]
fn a_server_that_runs_and_is_not_ready_is_asked() {
    let run = |reasons: Vec<ReadinessReason>| {
        late(|observed| {
            let pod = pod_mut(observed);
            pod.phase = PodPhase::Running;
            pod.ip = Some("10.1.2.3".to_owned());
            observed.agent_readiness = (!reasons.is_empty()).then(|| AgentReadiness {
                pod_uid: "pod-1".to_owned(),
                asked_at: at(12),
                reasons,
                message: Some("permission denied".to_owned()),
                isolation: None,
            });
        })
    };
    let question = LookUp::AgentReadiness { pod_uid: "pod-1".to_owned(), ip: "10.1.2.3".to_owned() };
    assert_eq!(decide(&run(Vec::new()), at(12)).look_up, [question]);
    let (reason, stalled, message) = told(run(vec![ReadinessReason::VolumeNotWritable]));
    assert_eq!((reason.as_str(), stalled.as_deref()), ("VolumeNotWritable", Some("VolumeNotWritable")));
    assert!(message.ends_with("permission denied"), "{message}");
    assert_eq!(told(run(vec![ReadinessReason::Unreachable])).0, "NotReady");
    assert_eq!(told(run(vec![ReadinessReason::Starting])).0, "Pending");
    let (reason, stalled, message) = told(run(vec![ReadinessReason::Provisioning]));
    assert_eq!((reason.as_str(), stalled), ("Provisioning", None));
    assert_eq!(message, "the workspace is being prepared: permission denied");
    let (reason, stalled, message) = told(run(vec![ReadinessReason::ProvisioningFailed]));
    assert_eq!((reason.as_str(), stalled.as_deref()), ("ProvisioningFailed", Some("ProvisioningFailed")));
    assert!(message.starts_with("the workspace cannot be prepared; correct spec.template"), "{message}");
    // What was said seconds ago is asked again.
    let stale = run(vec![ReadinessReason::Unreachable]);
    assert_eq!(decide(&stale, at(20)).look_up.len(), 1);
}

#[test]
fn the_start_timeout_names_the_cause_and_the_pod_stays() {
    let mut observed = late(|observed| {
        let pod = pod_mut(observed);
        pod.node_name = None;
        pod.unschedulable = Some("0/1 nodes are available: 1 Insufficient cpu.".to_owned());
    });
    step(&mut observed, at(320));
    let plan = step(&mut observed, at(600));
    assert_eq!((plan.delete_pod, plan.requeue_at), (None, None));
    assert_eq!(events(&Plan { events: plan.events, ..Plan::default() }), ["Warning StartTimeout"]);
    assert_eq!(
        message(&observed.workspace.status, ConditionType::Stalled),
        "the pod was not ready within 600 s (spec.lifecycle.startTimeoutSeconds): no node takes the pod; check spec.resources and spec.scheduling, or add a node: 0/1 nodes are available: 1 Insufficient cpu."
    );
    // A node came: all is well again.
    observed.pod = Seen::Ours(ready(pending_pod(&observed, "pod-1", at(0)), at(700)));
    observed.agent_readiness = Some(healthy("pod-1", at(700)));
    step(&mut observed, at(700));
    assert!(!conditions(&observed.workspace.status).iter().any(|one| one.starts_with("Stalled")));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Running));
}

#[test]
fn refused_children_are_told_apart_and_tried_again_later() {
    let cases = [
        (
            403,
            "pods \"alice-agent\" is forbidden: exceeded quota: compute, requested: limits.memory=2Gi",
            "QuotaExceeded",
        ),
        (403, "pods \"alice-agent\" is forbidden: failed quota: compute: must specify limits.cpu", "QuotaExceeded"),
        (
            403,
            "pods \"alice-agent\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi",
            "QuotaExceeded",
        ),
        (
            403,
            "pods \"alice-agent\" is forbidden: violates PodSecurity \"restricted:latest\": x",
            "PodSecurityViolation",
        ),
        (403, "admission webhook \"x\" denied the request", "Forbidden"),
        (422, "Pod \"alice-agent\" is invalid: spec.nodeSelector: Invalid value", "InvalidChild"),
    ];
    for (code, sentence, expected) in cases {
        let mut observed = fresh(json!({}));
        step(&mut observed, at(0));
        let mut observed = with_children(observed);
        observed.write_failure = Some(WriteFailure {
            child: ChildKind::Pod,
            kind: WriteFailureKind::of(code, sentence).expect("a refusal"),
            message: sentence.to_owned(),
            retry_at: at(10),
        });
        let plan = step(&mut observed, at(1));
        assert_eq!((&plan.create_pod, plan.requeue_at), (&None, Some(at(10))));
        assert_eq!(events(&plan), [format!("Warning {expected}")]);
        let text = message(&observed.workspace.status, ConditionType::Stalled);
        assert!(text.starts_with("Pod cannot be created, ") && text.ends_with(sentence), "{text}");
        let retry = decide(&observed, at(10));
        assert!(retry.create_pod.is_some() && retry.status.is_none(), "tried again without a word");
        observed.write_failure = None;
        let forgotten = decide(&observed, at(10));
        assert!(
            forgotten.create_pod.is_some() && forgotten.status.is_none(),
            "a restart of the operator writes nothing"
        );
        observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(10)));
        step(&mut observed, at(10));
        assert!(conditions(&observed.workspace.status).contains(&"Reconciling=True/Starting".to_owned()));
    }
    assert_eq!(WriteFailureKind::of(409, "conflict"), None);
    assert_eq!(WriteFailureKind::of(500, "etcdserver: request timed out"), None);
    let ends = "namespaces \"team-a\" is forbidden: unable to create new content in namespace team-a because it is being terminated";
    assert_eq!(WriteFailureKind::of(403, ends), Some(WriteFailureKind::NamespaceTerminating));
}

#[test]
fn a_claim_over_quota_is_said_and_tried_again_without_a_pod() {
    let mut observed = fresh(json!({}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    observed.claim = Seen::Missing;
    let sentence = "persistentvolumeclaims \"alice-home\" is forbidden: exceeded quota: storage";
    observed.write_failure = Some(WriteFailure {
        child: ChildKind::Claim,
        kind: WriteFailureKind::of(403, sentence).expect("a refusal"),
        message: sentence.to_owned(),
        retry_at: at(10),
    });
    step(&mut observed, at(1));
    assert!(conditions(&observed.workspace.status).contains(&"StorageReady=False/QuotaExceeded".to_owned()));
    assert_eq!(decide(&observed, at(2)), Plan { requeue_at: Some(at(10)), ..Plan::default() });
    let retry = decide(&observed, at(10));
    assert_eq!(retry.apply.iter().map(Child::kind).collect::<Vec<_>>(), [ChildKind::Claim]);
    assert_eq!((retry.create_pod, retry.status), (None, None));
}

#[test]
fn a_pod_that_is_not_ready_any_more_is_said_at_once() {
    let mut observed = running(json!({}));
    let pod = pod_mut(&mut observed);
    pod.ready = false;
    assert_eq!(decide(&observed, at(100)).look_up.len(), 1);
    observed.agent_readiness = Some(AgentReadiness {
        reasons: vec![ReadinessReason::Unreachable],
        message: Some("timed out".to_owned()),
        ..healthy("pod-1", at(100))
    });
    let plan = step(&mut observed, at(100));
    assert_eq!(events(&plan), ["Warning NotReady"]);
    assert_eq!(observed.workspace.status.phase, Some(Phase::Running));
    assert!(conditions(&observed.workspace.status).contains(&"Ready=False/NotReady".to_owned()));
    assert!(observed.workspace.status.pod.is_some());
}

#[test]
fn a_volume_that_cannot_grow_is_said_and_goes_on() {
    let mut observed = running(json!({}));
    observed.workspace.spec = spec(json!({"storage": {"size": "20Gi"}}));
    observed.storage_class =
        Some(StorageClassView { name: "standard".to_owned(), allow_volume_expansion: false, waits_for_consumer: true });
    let plan = step(&mut observed, at(60));
    assert_eq!((plan.apply.len(), events(&plan)), (0, vec!["Warning ResizeUnsupported".to_owned()]));
    let status = &observed.workspace.status;
    assert!(conditions(status).contains(&"Ready=True/Running".to_owned()));
    assert!(conditions(status).contains(&"StorageReady=False/ResizeUnsupported".to_owned()));
}
