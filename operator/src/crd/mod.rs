//! The kinds of the group `agents.boring.dev`: types, words and names that users and other programs see.
//!
//! Owns the shape of every field, the condition types and their reasons, the labels and annotations of children, and the
//! published definition. Knows nothing of decisions (`plan`) and nothing of the API server's client (`cluster`).

mod conditions;
mod definition;
mod lifecycle;
mod provisioning;
mod quantity;
mod sandbox;
mod spec;
mod status;
mod wake;
mod workspace;

pub use conditions::{ConditionType, Reason};
pub use definition::{Rule, agent_workspace_definition, agent_workspace_wake_definition, root_rules, spec_rules};
pub use lifecycle::{ExpirePolicy, FailurePolicy, Lifecycle, RunPolicy, Schedule, StartOnCreate, WakeMode, WakePolicy};
pub use provisioning::{Libraries, PYTHON_LIBRARY, Template};
pub use quantity::{QUANTITY_MAX_LENGTH, QUANTITY_PATTERN};
pub use sandbox::{OnUnavailable, ProcMount, Sandbox, SandboxLimits, SandboxMode, SandboxNetwork, sandbox_rules};
pub use spec::{
    Access, AccessMode, Agent, ConfigMapReference, Credential, CredentialPurpose, EnvironmentVariable,
    EphemeralStorage, Exposure, ImagePullPolicy, Model, ModelProvider, Owner, PodMetadata, Resources, Retention,
    Scheduling, SecretKeyReference, Storage, Toleration, TolerationEffect, TolerationOperator, Visibility, WhenDeleted,
};
pub use status::{
    AgentWorkspaceStatus, LastStart, LastStop, LastTermination, Phase, PodReference, StartReason, StopActor,
    StopReason, StorageStatus,
};
pub use wake::{AgentWorkspaceWake, AgentWorkspaceWakeSpec, Intent, wake_rules};
pub use workspace::{AgentWorkspace, AgentWorkspaceSpec};

/// API group of every kind.
pub const GROUP: &str = "agents.boring.dev";
/// Label of children: which program made them.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`]; the operator's caches are scoped by it.
pub const MANAGED_BY: &str = "agent-workspace-operator";
/// Label of children: name of the workspace.
pub const LABEL_WORKSPACE: &str = "agents.boring.dev/workspace";
/// Label of children: UID of the workspace; the selector of Service and NetworkPolicy, so that no other pod can be selected by name.
pub const LABEL_WORKSPACE_UID: &str = "agents.boring.dev/workspace-uid";
/// Annotation of the pod: the JWKS its server verifies tokens with.
pub const ANNOTATION_KEYS: &str = "agents.boring.dev/keys";
/// Annotation of the pod: hash of what was rendered, see `plan::revision`.
pub const ANNOTATION_REVISION: &str = "agents.boring.dev/revision";
/// Annotation of the pod: the text of `agent.systemPrompt`.
pub const ANNOTATION_SYSTEM_PROMPT: &str = "agents.boring.dev/system-prompt";
/// Annotation of the claim: hex SHA-256 of `owner.user`; a retained claim is re-attached only to the same owner.
pub const ANNOTATION_OWNER_USER: &str = "agents.boring.dev/owner-user";
/// Annotation of claim, Service and NetworkPolicy: hash of what the operator applied last.
pub const ANNOTATION_APPLIED: &str = "agents.boring.dev/applied";
