//! What was decided: one comparable value. Executed in the order of its fields.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Service},
    networking::v1::NetworkPolicy,
};

use crate::crd::{AgentWorkspaceStatus, Reason};

/// The decision about one workspace.
///
/// When `look_up` is not empty every other field is: the caller fills in what was asked for and plans again (at most once
/// for each kind of question). Otherwise: the status is patched first, with the resourceVersion that was observed; only when
/// that succeeded follow children, drain, deletions and the events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Questions to answer before a decision is possible.
    pub look_up: Vec<LookUp>,
    /// The whole status to write; `None` when it would not change anything but times.
    pub status: Option<StatusPatch>,
    /// Claim, Service and NetworkPolicy to apply (server-side, forced), in this order.
    pub apply: Vec<Child>,
    /// New keys and lost labels for a living pod (metadata only, with its UID).
    pub pod_metadata: Option<PodMetadataPatch>,
    /// Pod to create by POST. On 409 the pod is read live and the decision made again.
    pub create_pod: Option<Pod>,
    /// Server to drain before its pod is deleted. A drain that fails is logged and does not stop the deletion: SIGTERM has the same effect.
    pub drain: Option<Drain>,
    /// Pod to delete.
    pub delete_pod: Option<PodDeletion>,
    /// The workspace itself is to be deleted: its UID.
    pub delete_workspace: Option<String>,
    /// Events about the workspace.
    pub events: Vec<EventToPublish>,
    /// When to decide again although nothing changed.
    pub requeue_at: Option<Timestamp>,
}

/// A question for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// Read these objects live: `Seen::Unconfirmed` becomes one of the other three.
    Live(Vec<ChildKind>),
    /// List the events about the pod with this UID.
    PodEvents {
        /// UID of the pod.
        pod_uid: String,
    },
    /// `GET /ready` of the pod, with a time limit of seconds; no answer is an answer (`ReadinessReason::Unreachable`).
    AgentReadiness {
        /// UID of the pod.
        pod_uid: String,
        /// Its address.
        ip: String,
    },
    /// Whether this node is Ready.
    Node {
        /// Name of the node.
        name: String,
    },
    /// The atomic question of an idle stop.
    Drain(DrainQuestion),
}

/// `POST /api/v1/drain {ifIdleSeconds, holdSeconds}`: an agent that was not used for so long takes no more work from that
/// instant on; no answer is an answer ([`super::Answer::Unknown`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainQuestion {
    /// UID of the pod, a part of the token's audience.
    pub pod_uid: String,
    /// Its address.
    pub ip: String,
    /// Seconds without use.
    pub if_idle_seconds: i64,
}

/// A new status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPatch {
    /// All of it: fields that are absent here are to be removed.
    pub status: AgentWorkspaceStatus,
}

/// Kinds of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// PersistentVolumeClaim `<name>-home`.
    Claim,
    /// Service `<name>-agent`.
    Service,
    /// NetworkPolicy `<name>-agent`.
    NetworkPolicy,
    /// Pod `<name>-agent`.
    Pod,
}

impl ChildKind {
    /// The kind as Kubernetes spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "PersistentVolumeClaim",
            Self::Service => "Service",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::Pod => "Pod",
        }
    }
}

/// A child to apply.
#[derive(Clone, Debug, PartialEq)]
pub enum Child {
    /// The claim.
    Claim(Box<PersistentVolumeClaim>),
    /// The Service.
    Service(Box<Service>),
    /// The NetworkPolicy.
    NetworkPolicy(Box<NetworkPolicy>),
}

impl Child {
    /// Its kind.
    pub const fn kind(&self) -> ChildKind {
        match self {
            Self::Claim(_) => ChildKind::Claim,
            Self::Service(_) => ChildKind::Service,
            Self::NetworkPolicy(_) => ChildKind::NetworkPolicy,
        }
    }
}

/// Metadata for a living pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodMetadataPatch {
    /// Name of the pod.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The JWKS, when the pod carries another.
    pub keys: Option<String>,
    /// The labels that it should have, when it has not.
    pub labels: BTreeMap<String, String>,
}

/// A drain call (docs/contract.md, scope `lifecycle`, without `ifIdleSeconds`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// UID of the pod, a part of the token's audience.
    pub pod_uid: String,
    /// Its address.
    pub ip: String,
    /// `graceSeconds`: what running turns get.
    pub grace_seconds: u32,
}

/// A deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDeletion {
    /// Name of the pod.
    pub name: String,
    /// Precondition.
    pub uid: String,
    /// Grace period in seconds; the pod's own when `None`.
    pub grace_seconds: Option<u32>,
}

/// An event about the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventToPublish {
    /// Normal or Warning.
    pub kind: EventKind,
    /// Word for programs.
    pub reason: Reason,
    /// What the operator was doing, a word for programs: `Start`, `Stop`, `Validate`, ….
    pub action: &'static str,
    /// Sentence for people, cause first, at most 1 kB.
    pub note: String,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// For information.
    Normal,
    /// A person should look.
    Warning,
}
