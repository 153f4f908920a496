//! Why a pod is not Ready: sentences of scheduler, kubelet and agent server → a reason word, a sentence that names the
//! fix, and whether a person has to act. The table was made from recorded messages; what it does not know is passed on as it is.

use jiff::Timestamp;

use crate::crd::{ConditionType, Reason};

use super::{
    AgentReadiness, ClaimPhase, ClaimView, Observed, PodEvent, PodPhase, PodView, ReadinessReason, Seen,
    status::{clip, seconds_between},
};

/// Longest part of a foreign sentence that is passed on; with our own words the whole stays below 1 kB.
const QUOTE_BYTES: usize = 600;
/// The kubelet repeats a failing mount after two minutes at the latest.
const RECENT_EVENT_SECONDS: i64 = 300;
/// How long an answer of the server speaks for it: longer than the time limit of the question.
const FRESH_SECONDS: i64 = 5;

/// Why a pod is not Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub reason: Reason,
    pub message: String,
    /// It does not pass by itself.
    pub needs_person: bool,
    /// The condition that it belongs to besides Ready.
    pub condition: Option<ConditionType>,
}

/// What can be said now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// This is why.
    Known(Cause),
    /// The pod's events have to be read first.
    AskEvents,
    /// The server has to be asked first.
    AskReadiness { ip: String },
    /// Nothing is wrong as far as one can see; what is waited for.
    Waiting(String),
}

fn cause(reason: Reason, needs_person: bool, condition: Option<ConditionType>, message: String) -> Cause {
    Cause { reason, message, needs_person, condition }
}

/// Finds out why the pod is not Ready.
pub(super) fn find(observed: &Observed, pod: &PodView, now: Timestamp) -> Finding {
    let claim = match &observed.claim {
        Seen::Ours(claim) => Some(claim),
        _ => None,
    };
    if let Some(message) = &pod.unschedulable {
        return Finding::Known(unschedulable(observed, claim, message));
    }
    if pod.node_name.is_none() {
        return match claim.filter(|claim| claim.phase == ClaimPhase::Pending) {
            Some(claim) => Finding::Known(unbound(observed, claim, "the claim is not bound")),
            None => Finding::Waiting("the scheduler has not placed the pod yet".to_owned()),
        };
    }
    if let Some(found) =
        pod.waiting.as_ref().and_then(|waiting| waiting_cause(&waiting.reason, waiting.message.as_deref()))
    {
        return Finding::Known(found);
    }
    if pod.phase == PodPhase::Pending {
        return match &observed.pod_events {
            None => Finding::AskEvents,
            Some(events) => event_cause(events)
                .map_or_else(|| Finding::Waiting("the node prepares the pod".to_owned()), Finding::Known),
        };
    }
    match (fresh_answer(observed, pod, now), &pod.ip) {
        (None, Some(ip)) => Finding::AskReadiness { ip: ip.clone() },
        (None, None) => Finding::Waiting("the pod has no address yet".to_owned()),
        (Some(answer), _) => readiness_cause(answer)
            .map_or_else(|| Finding::Waiting("the agent server is starting".to_owned()), Finding::Known),
    }
}

/// What the server said just now. An older answer is kept in memory and says nothing about a pod that changed since.
fn fresh_answer<'a>(observed: &'a Observed, pod: &PodView, now: Timestamp) -> Option<&'a AgentReadiness> {
    let answer = observed.agent_readiness.as_ref().filter(|answer| answer.pod_uid == pod.uid)?;
    (seconds_between(answer.asked_at, now) < FRESH_SECONDS).then_some(answer)
}

fn unschedulable(observed: &Observed, claim: Option<&ClaimView>, message: &str) -> Cause {
    if message.contains("node affinity conflict") {
        return cause(
            Reason::VolumeNodeAffinity,
            false,
            Some(ConditionType::StorageReady),
            format!("the volume lives where no node can run the pod; free or add a node there: {}", quote(message)),
        );
    }
    if let Some(claim) = claim.filter(|claim| claim.phase == ClaimPhase::Pending)
        && message.contains("PersistentVolumeClaim")
    {
        return unbound(observed, claim, message);
    }
    cause(
        Reason::Unschedulable,
        false,
        None,
        format!("no node takes the pod; check spec.resources and spec.scheduling, or add a node: {}", quote(message)),
    )
}

fn unbound(observed: &Observed, claim: &ClaimView, message: &str) -> Cause {
    let condition = Some(ConditionType::StorageReady);
    match (&claim.storage_class_name, &observed.storage_class) {
        (None, _) => cause(
            Reason::NoStorageClass,
            true,
            condition,
            "the cluster has no default StorageClass; mark one as default and create the claim again, or create the workspace with spec.storage.storageClassName".to_owned(),
        ),
        (Some(name), None) => cause(
            Reason::NoStorageClass,
            true,
            condition,
            format!("StorageClass {name} does not exist; create it, or create the workspace with another spec.storage.storageClassName"),
        ),
        (Some(name), Some(_)) => cause(
            Reason::VolumePending,
            false,
            condition,
            format!("waiting for a volume of StorageClass {name}; kubectl describe pvc shows its provisioner's view: {}", quote(message)),
        ),
    }
}

fn waiting_cause(reason: &str, message: Option<&str>) -> Option<Cause> {
    let text = message.unwrap_or(reason);
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(image_pull(text)),
        "CreateContainerError" | "RunContainerError" if text.contains("seccomp profile") => Some(cause(
            Reason::SeccompProfileMissing,
            true,
            Some(ConditionType::SandboxReady),
            format!(
                "the node does not have the seccomp profile of sandbox mode Bubblewrap; install it there (chart value sandbox.seccompInstaller, docs/operations.md): {}",
                quote(text)
            ),
        )),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Some(cause(
            Reason::InvalidChild,
            true,
            None,
            format!("the node cannot create the container: {}", quote(text)),
        )),
        _ => None,
    }
}

fn image_pull(text: &str) -> Cause {
    cause(
        Reason::ImagePull,
        true,
        None,
        format!(
            "the image cannot be pulled; correct spec.agent.image (or spec.template.image) or make it available: {}",
            quote(text)
        ),
    )
}

/// What the events say: of those that are recent, one that a person has to act on, else the newest. The kubelet mixes the
/// sentence that names a missing Secret with one that only says that mounting took too long.
fn event_cause(events: &[PodEvent]) -> Option<Cause> {
    let newest = events.iter().filter_map(|event| event.last_seen).max();
    let recent = |event: &&PodEvent| match (event.last_seen, newest) {
        (Some(seen), Some(newest)) => seconds_between(seen, newest) <= RECENT_EVENT_SECONDS,
        _ => true,
    };
    let mut sorted: Vec<&PodEvent> = events.iter().filter(recent).collect();
    sorted.sort_by_key(|event| std::cmp::Reverse(event.last_seen));
    let mut causes: Vec<Cause> = sorted.into_iter().filter_map(one_event_cause).collect();
    causes.sort_by_key(|cause| !cause.needs_person);
    causes.into_iter().next()
}

fn one_event_cause(event: &PodEvent) -> Option<Cause> {
    let text = event.message.as_str();
    let storage = Some(ConditionType::StorageReady);
    let secret = text.contains("non-existent secret key") || (text.contains("secret \"") && text.contains("not found"));
    match event.reason.as_str() {
        "FailedMount" if secret => Some(cause(
            Reason::SecretNotFound,
            true,
            None,
            format!("a secret or a key in it is missing; create it or correct spec.agent.credentials: {}", quote(text)),
        )),
        "FailedMount" if is_about_config_map(text) => Some(cause(
            Reason::ConfigMapNotFound,
            true,
            None,
            format!(
                "a config map or a key in it is missing; create it or correct spec.template.configMapName or spec.agent.settingsRef: {}",
                quote(text)
            ),
        )),
        "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => Some(cause(
            Reason::VolumeAttach,
            false,
            storage,
            format!("the volume cannot be attached or mounted yet: {}", quote(text)),
        )),
        "FailedCreatePodSandBox" if mentions_user_namespaces(text) => Some(cause(
            Reason::UserNamespacesUnsupported,
            true,
            Some(ConditionType::SandboxReady),
            format!(
                "the node has no user namespaces for pods, which spec.sandbox.procMount Full needs; use procMount Empty, or nodes with containerd 2.0 and Linux 6.3 or newer: {}",
                quote(text)
            ),
        )),
        "FailedCreatePodSandBox" => Some(cause(
            Reason::NetworkSetup,
            false,
            None,
            format!("the node cannot set up the pod's network or sandbox: {}", quote(text)),
        )),
        "Failed" if text.contains("pull image") => Some(image_pull(text)),
        _ => None,
    }
}

fn is_about_config_map(text: &str) -> bool {
    text.contains("non-existent config key") || (text.contains("configmap \"") && text.contains("not found"))
}

/// What runtimes and kubelets say when they do not know user namespaces for pods.
pub(super) fn mentions_user_namespaces(text: &str) -> bool {
    ["user namespace", "userns", "user-namespace"].iter().any(|words| text.contains(words))
}

/// What runtimes say when a volume cannot be mounted into a user namespace.
pub(super) fn mentions_idmap(text: &str) -> bool {
    ["MOUNT_ATTR_IDMAP", "idmap mount", "id-mapped mount", "idmapped mount"].iter().any(|words| text.contains(words))
}

/// What `/ready` tells; `None` when it only starts.
pub(super) fn readiness_cause(answer: &AgentReadiness) -> Option<Cause> {
    let said = |fallback: &str| answer.message.clone().unwrap_or_else(|| fallback.to_owned());
    answer.reasons.iter().find_map(|reason| match reason {
        ReadinessReason::VolumeNotWritable => Some(cause(
            Reason::VolumeNotWritable,
            true,
            Some(ConditionType::StorageReady),
            format!(
                "the server cannot write into its volume; the volume must honour fsGroup 1000: {}",
                quote(&said("no details"))
            ),
        )),
        ReadinessReason::SandboxUnavailable => Some(cause(
            Reason::SandboxUnavailable,
            true,
            Some(ConditionType::SandboxReady),
            format!("the sandbox cannot be used on this node: {}", quote(&said("no details"))),
        )),
        ReadinessReason::Provisioning => Some(cause(
            Reason::Provisioning,
            false,
            Some(ConditionType::AgentReady),
            format!("the workspace is being prepared: {}", quote(&said("no details"))),
        )),
        ReadinessReason::ProvisioningFailed => Some(cause(
            Reason::ProvisioningFailed,
            true,
            Some(ConditionType::AgentReady),
            format!(
                "the workspace cannot be prepared; correct spec.template or spec.libraries: {}",
                quote(&said("no details"))
            ),
        )),
        ReadinessReason::Unreachable => Some(cause(
            Reason::NotReady,
            false,
            None,
            format!("the agent server does not answer: {}", quote(&said("no details"))),
        )),
        ReadinessReason::Draining => {
            Some(cause(Reason::NotReady, false, None, "the agent server is draining".to_owned()))
        }
        ReadinessReason::ModelKeyMissing | ReadinessReason::ModelKeyRejected | ReadinessReason::Starting => None,
    })
}

/// A foreign sentence, on one line and bounded.
pub(super) fn quote(text: &str) -> String {
    clip(&text.split_whitespace().collect::<Vec<_>>().join(" "), QUOTE_BYTES)
}
