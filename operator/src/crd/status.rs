//! The status of an AgentWorkspace: what the operator did last and what it sees. Nothing in it is an input of a user.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What the operator reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentWorkspaceStatus {
    /// `metadata.generation` that this status answers. −1 until the operator has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary for people; programs read the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Where the workspace is reached through the gateway. Absent when the operator knows of no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub url: Option<String>,
    /// The running pod. Absent before it is Ready and from the moment a stop is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
    /// The claim. Absent with `storage.ephemeral`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// When the pod became Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The workspace was not used after this time. Known since the last idle stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_time: Option<Time>,
    /// The last time of a schedule that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_slot: Option<Time>,
    /// When a schedule starts it next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_scheduled_start: Option<Time>,
    /// When a schedule puts it to sleep next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_scheduled_stop: Option<Time>,
    /// The last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_start: Option<LastStart>,
    /// The last stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stop: Option<LastStop>,
    /// The last end of a pod that the operator did not ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_termination: Option<LastTermination>,
    /// How often the pod was created again after an end that the operator did not ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i32>,
    /// What separates commands from the server, as the running server reports it after trying: Bubblewrap, Landlock,
    /// DirectWithLandlockLayer or None.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub isolation: Option<String>,
    /// Hash of the pod that would be created now. Differs from the running pod's annotation while UpdateAvailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub rendered_revision: Option<String>,
    /// Counter of the wake object that the last start or stop answered. Never decreases; a greater counter with intent Awake
    /// asks for a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_transition: Option<i64>,
    /// The conditions; `docs/api.md` lists types and reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// Where a workspace is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing was started, because the spec cannot be used or a name is taken.
    Pending,
    /// A start was decided and the pod is not Ready yet.
    Starting,
    /// The pod is Ready, or was and is not at present.
    Running,
    /// A stop was decided and the pod is still there.
    Stopping,
    /// No pod, since nobody uses it; the next request starts it.
    Sleeping,
    /// No pod, as wanted.
    Stopped,
    /// The pod failed, and it is not created again.
    Failed,
    /// The workspace is being deleted.
    Terminating,
}

/// The pod of the running workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReference {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its UID, a part of the audience of tokens.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub ip: Option<String>,
}

/// The claim of the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Name of the claim.
    #[schemars(length(max = 253))]
    pub claim_name: String,
    /// UID of the claim.
    #[serde(default, rename = "claimUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub claim_uid: Option<String>,
    /// Capacity of the bound volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub capacity: Option<String>,
}

/// The last start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastStart {
    /// When it was decided, to the microsecond.
    pub requested_at: MicroTime,
    /// Why.
    pub reason: StartReason,
    /// Milliseconds until the pod was Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_after_milliseconds: Option<i64>,
    /// UID of the pod that was there when the start was decided, and has to be gone first.
    #[serde(default, rename = "replacesPodUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub replaces_pod_uid: Option<String>,
    /// Failed pods in a row; sets the pause before the next one. Back to 0 after 10 healthy minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<i32>,
}

/// Why a start was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StartReason {
    /// `runPolicy` says so.
    RunPolicy,
    /// A request.
    Wake,
    /// A schedule.
    Schedule,
    /// The workspace is new.
    Created,
    /// The pod before failed.
    Failure,
    /// The pod before was taken away by its node or by the scheduler.
    NodeDrain,
    /// The pod before had to give way to one of higher priority.
    Preempted,
    /// The pod before was deleted by somebody else.
    PodDeleted,
}

/// The last stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastStop {
    /// When it was decided.
    pub at: Time,
    /// Why.
    pub reason: StopReason,
    /// Who wanted it.
    pub by: StopActor,
}

/// Why a stop was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StopReason {
    /// `runPolicy` says so.
    RunPolicy,
    /// The spec became one that cannot be used.
    Failure,
    /// An explicit stop.
    User,
    /// Nobody used it.
    Idle,
    /// A schedule.
    Schedule,
    /// `lifecycle.maxRunSeconds` is over.
    MaxRun,
    /// `lifecycle.expiresAt` has passed.
    Expired,
}

/// Who wanted a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StopActor {
    /// Whoever wrote the spec.
    User,
    /// The operator.
    Operator,
}

/// An end of a pod that the operator did not ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastTermination {
    /// The word that the kubelet or the operator has for it.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Exit code of the agent server, when it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was seen.
    pub at: Time,
    /// UID of the pod, so that each end counts once.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
}

/// `metav1.Condition` with the bounds that its Go definition carries.
fn conditions_schema(_generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "The conditions; `docs/api.md` lists types and reasons.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "description": "Type of the condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Word for programs."},
                "message": {"type": "string", "maxLength": 32768, "description": "Sentence for people."},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0, "description": "Generation of the workspace that the condition answers."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When the status changed last."},
            },
        },
    })
}
