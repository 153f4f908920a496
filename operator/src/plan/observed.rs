//! What was seen: a projection of the fields that decisions depend on, and nothing else. `cluster::observe` builds it.

use jiff::Timestamp;

use crate::crd::{AgentWorkspaceSpec, AgentWorkspaceStatus, Intent, Reason};

use super::{Activity, ChildKind, ModelService, PodEvent, PodView};

/// Everything a decision about one workspace depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The workspace itself.
    pub workspace: WorkspaceView,
    /// The namespace has a deletionTimestamp.
    pub namespace_terminating: bool,
    /// The cache does not hold the operator's own last write to this workspace or its children yet: no pod is created or deleted.
    pub own_write_pending: bool,
    /// Object `<name>-home`.
    pub claim: Seen<ClaimView>,
    /// Object `<name>-agent`, a Service.
    pub service: Seen<SimpleView>,
    /// Object `<name>-agent`, a NetworkPolicy.
    pub policy: Seen<SimpleView>,
    /// Object `<name>-agent`, a pod.
    pub pod: Seen<PodView>,
    /// StorageClass of the claim, when the claim names one and it exists.
    pub storage_class: Option<StorageClassView>,
    /// The Service that `spec.agent.model.baseUrl` names, when it is in a permitted namespace of the cluster.
    pub model_service: Option<ModelService>,
    /// The last write of a child that the API server refused, kept until a write of that child succeeds or the spec changes.
    pub write_failure: Option<WriteFailure>,
    /// Events about the pod (by its UID); `None` when they were not asked for, see [`super::LookUp::PodEvents`].
    pub pod_events: Option<Vec<PodEvent>>,
    /// The last answer of the pod's `/ready`, kept in memory for the pod's life; `None` when it was never asked.
    pub agent_readiness: Option<AgentReadiness>,
    /// The JWKS that pods must carry in their annotation.
    pub token_keys: String,
    /// What requests want; `None` when there is no wake object.
    pub wake: Option<WakeView>,
    /// The pod that this process created for the present start; `None` after its end was recorded, and after a restart.
    pub created_pod: Option<String>,
    /// The node of a pod that does not end; `None` when it was not asked for, see [`super::LookUp::Node`].
    pub node: Option<NodeState>,
    /// The agent's last answer to the question of an idle stop, kept in memory for the pod's life.
    pub activity: Option<Activity>,
    /// Too many agents do not answer: none is put to sleep for now.
    pub idle_stops_paused: bool,
    /// When this process began to act; what happened before is not in its memory.
    pub leading_since: Timestamp,
    /// Over how long the first questions after that are spread.
    pub spread_seconds: i64,
}

/// The workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkspaceView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// Its spec.
    pub spec: AgentWorkspaceSpec,
    /// Its status as the cache holds it; the default one when there is none.
    pub status: AgentWorkspaceStatus,
}

impl WorkspaceView {
    /// A new workspace that nobody has looked at.
    pub fn new(namespace: &str, name: &str, uid: &str, spec: AgentWorkspaceSpec) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            generation: 1,
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            spec,
            status: AgentWorkspaceStatus::default(),
        }
    }
}

impl Observed {
    /// A workspace with nothing else in its namespace, and nothing in memory.
    pub fn alone(workspace: WorkspaceView, token_keys: String) -> Self {
        Self {
            workspace,
            namespace_terminating: false,
            own_write_pending: false,
            claim: Seen::Missing,
            service: Seen::Missing,
            policy: Seen::Missing,
            pod: Seen::Missing,
            storage_class: None,
            model_service: None,
            write_failure: None,
            pod_events: None,
            agent_readiness: None,
            token_keys,
            wake: None,
            created_pod: None,
            node: None,
            activity: None,
            idle_stops_paused: false,
            leading_since: Timestamp::UNIX_EPOCH,
            spread_seconds: 0,
        }
    }
}

/// An object with the name of a child.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<T> {
    /// The cache has none, and the API server was not asked. (The caches hold only objects with the operator's label.)
    Unconfirmed,
    /// The API server was asked and has none.
    Missing,
    /// It belongs to this workspace: by its controller reference, or, for a claim, by its label `agents.boring.dev/workspace`
    /// together with `app.kubernetes.io/managed-by` (a retained claim has no owner reference).
    Ours(T),
    /// It belongs to somebody else.
    Foreign(ForeignObject),
}

/// An object in our way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// Who owns it, for the message: `Deployment/web`, or what its labels say; `None` when nothing tells.
    pub owner: Option<String>,
    /// It is controlled by an AgentWorkspace of this name with another UID: a former workspace whose children are being collected.
    pub leftover: bool,
}

/// A Service or NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleView {
    /// `metadata.uid`.
    pub uid: String,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// Annotation `agents.boring.dev/applied`.
    pub applied: Option<String>,
    /// Somebody else has set a field since that the operator applied.
    pub overwritten: bool,
    /// When the operator applied it last, to the second.
    pub applied_at: Option<Timestamp>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// `metadata.uid`.
    pub uid: String,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// Annotation `agents.boring.dev/applied`.
    pub applied: Option<String>,
    /// Label `agents.boring.dev/workspace-uid`: the workspace that it was made for, maybe a former one of the same name.
    pub workspace_uid: Option<String>,
    /// Annotation `agents.boring.dev/owner-user`.
    pub owner_user: Option<String>,
    /// `status.phase`.
    pub phase: ClaimPhase,
    /// `spec.resources.requests.storage`.
    pub requested: Option<String>,
    /// `status.capacity.storage`.
    pub capacity: Option<String>,
    /// `spec.storageClassName`.
    pub storage_class_name: Option<String>,
    /// `spec.accessModes`.
    pub access_modes: Vec<String>,
    /// UID in the owner reference with `controller: true`.
    pub controller_uid: Option<String>,
}

/// `status.phase` of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPhase {
    /// No volume yet.
    Pending,
    /// It has a volume.
    Bound,
    /// Its volume is gone.
    Lost,
}

/// A storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageClassView {
    /// `metadata.name`.
    pub name: String,
    /// `allowVolumeExpansion`, false when absent.
    pub allow_volume_expansion: bool,
    /// `volumeBindingMode` is `WaitForFirstConsumer`.
    pub waits_for_consumer: bool,
}

/// A node that a pod was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its kubelet reports.
    Ready,
    /// Its kubelet does not report, or reports trouble.
    NotReady,
    /// There is no such node any more.
    Gone,
}

/// The wake object of the workspace; one of a former workspace is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeView {
    /// What requests want.
    pub intent: Intent,
    /// Number of the last wake.
    pub counter: i64,
}

/// What the pod's `/ready` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReadiness {
    /// UID of the pod that answered.
    pub pod_uid: String,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// What keeps it from being ready, or degrades it; empty when all is well.
    pub reasons: Vec<ReadinessReason>,
    /// The server's sentence, when it gave one.
    pub message: Option<String>,
    /// What separates commands from the server, when it said so.
    pub isolation: Option<AgentIsolation>,
}

/// What separates commands from the server (docs/contract.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIsolation {
    /// `Bubblewrap`, `Landlock`, `DirectWithLandlockLayer` or `None`.
    pub kind: String,
    /// Commands have no network.
    pub isolated: bool,
    /// Why the wanted mode cannot be had, where another one serves.
    pub degraded: Option<String>,
}

/// Words of `/ready` (docs/contract.md), or that there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadinessReason {
    /// degraded: no key for the model provider.
    ModelKeyMissing,
    /// degraded: the provider refused the key.
    ModelKeyRejected,
    /// unavailable: the volume is not writable.
    VolumeNotWritable,
    /// unavailable: the sandbox cannot be used.
    SandboxUnavailable,
    /// unavailable: template or libraries are being prepared.
    Provisioning,
    /// unavailable: template or libraries cannot be had; tried again.
    ProvisioningFailed,
    /// unavailable: a drain was asked for.
    Draining,
    /// unavailable: not up yet.
    Starting,
    /// There was no answer, or one outside of the contract.
    Unreachable,
}

/// A refused write of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// Which child.
    pub child: ChildKind,
    /// What kind of refusal.
    pub kind: WriteFailureKind,
    /// The API server's sentence.
    pub message: String,
    /// No second attempt before this.
    pub retry_at: Timestamp,
}

/// Kinds of refusals that a person has to act on. What passes by itself (timeouts, 429, 5xx, conflicts) is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailureKind {
    /// 403 of a ResourceQuota or LimitRange.
    QuotaExceeded,
    /// 403 of pod security admission.
    PodSecurityViolation,
    /// 403 because the namespace is being deleted.
    NamespaceTerminating,
    /// Another 403: RBAC or a policy.
    Forbidden,
    /// 422.
    Invalid,
}

impl WriteFailureKind {
    /// Sorts an answer of the API server. `None` when it is not a refusal that a person has to act on.
    pub fn of(code: u16, message: &str) -> Option<Self> {
        match code {
            403 if message.contains("is being terminated") => Some(Self::NamespaceTerminating),
            403 if message.contains("exceeded quota") || message.contains("failed quota") => Some(Self::QuotaExceeded),
            // LimitRange: `maximum memory usage per Container is 1Gi, but limit is 4Gi`
            403 if message.contains("usage per ") => Some(Self::QuotaExceeded),
            403 if message.contains("violates PodSecurity") => Some(Self::PodSecurityViolation),
            403 => Some(Self::Forbidden),
            422 => Some(Self::Invalid),
            _ => None,
        }
    }

    /// The word for condition, event and metric.
    pub const fn reason(self) -> Reason {
        match self {
            Self::QuotaExceeded => Reason::QuotaExceeded,
            Self::PodSecurityViolation => Reason::PodSecurityViolation,
            Self::NamespaceTerminating => Reason::Terminating,
            Self::Forbidden => Reason::Forbidden,
            Self::Invalid => Reason::InvalidChild,
        }
    }
}
