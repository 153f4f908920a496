//! How a pod ended when nobody asked it to: by itself, by its node, by somebody else.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::{LastTermination, Reason, StartReason};

use super::{
    Disruption, PodPhase, PodView,
    cause::{mentions_idmap, mentions_user_namespaces, quote},
};

/// Exit code of the server for a configuration that does not validate (docs/contract.md).
const EXIT_CONFIG: i32 = 78;

/// How a pod ended.
pub(super) struct End {
    pod_uid: Option<String>,
    /// Word of the kubelet, or ours.
    word: String,
    exit_code: Option<i32>,
    pub start: StartReason,
    pub reason: Reason,
    pub message: String,
}

impl End {
    /// The pod is gone and nobody saw it go.
    pub fn vanished(pod_uid: Option<String>) -> Self {
        Self {
            pod_uid,
            word: "PodDeleted".to_owned(),
            exit_code: None,
            start: StartReason::PodDeleted,
            reason: Reason::PodDeleted,
            message: "the pod was deleted by somebody else; it is created again".to_owned(),
        }
    }

    /// The pod is being deleted, and not by us.
    pub fn taken_away(pod: &PodView) -> Self {
        match &pod.disruption {
            Some(disruption) => Self::disrupted(pod, disruption),
            None => Self::vanished(Some(pod.uid.clone())),
        }
    }

    fn disrupted(pod: &PodView, disruption: &Disruption) -> Self {
        let preempted = disruption.reason.as_deref().is_some_and(|reason| reason.starts_with("Preemption"));
        let (start, reason, what) = if preempted {
            (StartReason::Preempted, Reason::Preempted, "the pod had to give way to one of higher priority")
        } else {
            (StartReason::NodeDrain, Reason::NodeDrain, "the pod was taken away from its node")
        };
        Self {
            pod_uid: Some(pod.uid.clone()),
            word: pod
                .reason
                .clone()
                .or_else(|| disruption.reason.clone())
                .unwrap_or_else(|| "DisruptionTarget".to_owned()),
            exit_code: pod.terminated.as_ref().map(|end| end.exit_code),
            start,
            reason,
            message: format!("{what}, it is created again: {}", quote(&disruption.message)),
        }
    }

    /// It was Ready, is not any more, and does not become so.
    pub fn unresponsive(pod: &PodView, seconds: i64, why: &str) -> Self {
        Self {
            pod_uid: Some(pod.uid.clone()),
            word: "AgentUnresponsive".to_owned(),
            exit_code: None,
            start: StartReason::Failure,
            reason: Reason::AgentUnresponsive,
            message: format!(
                "the pod was not ready for {seconds} s (spec.lifecycle.unhealthyTimeoutSeconds), it is created again: {why}"
            ),
        }
    }

    /// The pod ended by itself.
    pub fn of(pod: &PodView) -> Self {
        if let Some(disruption) = &pod.disruption {
            return Self::disrupted(pod, disruption);
        }
        let terminated = pod.terminated.as_ref();
        let exit_code = terminated.map(|end| end.exit_code);
        // The pod's own reason (Evicted) says more than what became of its container (Error).
        let word = pod
            .reason
            .clone()
            .or_else(|| terminated.and_then(|end| end.reason.clone()))
            .unwrap_or_else(|| if pod.phase == PodPhase::Succeeded { "Completed" } else { "Error" }.to_owned());
        let output = terminated.and_then(|end| end.message.as_deref());
        let said = pod.message.as_deref().or(output).unwrap_or("no output");
        let code = exit_code.map_or_else(String::new, |code| format!(" with exit code {code}"));
        let (reason, message) = match (exit_code, word.as_str()) {
            (Some(EXIT_CONFIG), _) => (
                Reason::ConfigRejected,
                format!("the agent server refuses its configuration; correct spec.agent: {}", tail(said)),
            ),
            _ if mentions_idmap(said) => (
                Reason::VolumeNotIdmappable,
                format!(
                    "a volume cannot be used with user namespaces, which spec.sandbox.procMount Full needs; use procMount Empty or another StorageClass: {}",
                    tail(said)
                ),
            ),
            _ if word == "StartError" && mentions_user_namespaces(said) => (
                Reason::UserNamespacesUnsupported,
                format!(
                    "the node has no user namespaces for pods, which spec.sandbox.procMount Full needs; use procMount Empty: {}",
                    tail(said)
                ),
            ),
            (_, "OOMKilled") => (
                Reason::OutOfMemory,
                format!("the agent exceeded its memory limit; raise spec.resources.limits.memory: {}", tail(said)),
            ),
            _ => (Reason::Restarting, format!("the agent server ended{code} ({word}): {}", tail(said))),
        };
        Self { pod_uid: Some(pod.uid.clone()), word, exit_code, start: StartReason::Failure, reason, message }
    }

    /// Another pod like this one would end the same way: a person has to change something first. It is tried again with
    /// growing pauses all the same, since nodes change.
    pub fn needs_person(&self) -> bool {
        matches!(self.reason, Reason::ConfigRejected) || self.is_about_the_sandbox()
    }

    /// The condition SandboxReady says it too.
    pub fn is_about_the_sandbox(&self) -> bool {
        matches!(self.reason, Reason::VolumeNotIdmappable | Reason::UserNamespacesUnsupported)
    }

    pub fn record(&self, at: Time) -> LastTermination {
        LastTermination { reason: self.word.clone(), exit_code: self.exit_code, at, pod_uid: self.pod_uid.clone() }
    }
}

/// The end of a text is where the cause is.
fn tail(text: &str) -> String {
    const TAIL_BYTES: usize = 600;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES));
    if start == 0 { text } else { format!("…{}", &text[start..]) }
}
