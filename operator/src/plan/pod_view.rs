//! What was seen of a pod: a projection of the fields that decisions depend on.

use jiff::Timestamp;

/// The pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// That time: when it should be gone, its grace period included.
    pub gone_by: Option<Timestamp>,
    /// Annotation `agents.boring.dev/revision`.
    pub revision: Option<String>,
    /// Annotation `agents.boring.dev/keys`.
    pub keys: Option<String>,
    /// It has the labels that its Service, its policy and the operator's caches select it by.
    pub labelled: bool,
    /// `status.phase`.
    pub phase: PodPhase,
    /// Condition Ready is True.
    pub ready: bool,
    /// Last transition of condition Ready.
    pub ready_since: Option<Timestamp>,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `status.podIP`.
    pub ip: Option<String>,
    /// Message of condition PodScheduled when it is False with reason Unschedulable.
    pub unschedulable: Option<String>,
    /// Condition DisruptionTarget when it is True.
    pub disruption: Option<Disruption>,
    /// When it reached the stages of a start.
    pub stages: PodStages,
    /// `state.waiting` of the agent's container.
    pub waiting: Option<ContainerWait>,
    /// `state.terminated` of the agent's container.
    pub terminated: Option<ContainerEnd>,
    /// `status.reason` (for example `Evicted`) of a failed pod.
    pub reason: Option<String>,
    /// `status.message` of a failed pod.
    pub message: Option<String>,
}

impl PodView {
    /// It is not over and nobody asked for its deletion.
    pub const fn lives(&self) -> bool {
        !self.deleting && matches!(self.phase, PodPhase::Pending | PodPhase::Running)
    }
}

/// `status.phase` of a pod; `Unknown` counts as Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers were started.
    Pending,
    /// Started.
    Running,
    /// The container ended with code 0.
    Succeeded,
    /// The container ended with another code, or the pod was evicted.
    Failed,
}

/// When a pod reached the stages of a start, to the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodStages {
    /// It has a node.
    pub scheduled: Option<Timestamp>,
    /// Its volumes are mounted and its network is set up.
    pub network: Option<Timestamp>,
    /// Its container runs: the image is there.
    pub container: Option<Timestamp>,
}

/// Why the cluster takes a pod away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// For example `PreemptionByScheduler`, `EvictionByEvictionAPI`.
    pub reason: Option<String>,
    /// Its sentence.
    pub message: String,
}

/// Why a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerWait {
    /// For example `ImagePullBackOff`.
    pub reason: String,
    /// The kubelet's sentence.
    pub message: Option<String>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEnd {
    /// For example `OOMKilled`, `Error`, `Completed`.
    pub reason: Option<String>,
    /// Exit code.
    pub exit_code: i32,
    /// The last output of the container (`terminationMessagePolicy: FallbackToLogsOnError`).
    pub message: Option<String>,
    /// When it ended.
    pub finished: Option<Timestamp>,
}

/// An event about the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// For example `FailedMount`.
    pub reason: String,
    /// Its sentence.
    pub message: String,
    /// Last time it happened.
    pub last_seen: Option<Timestamp>,
}
