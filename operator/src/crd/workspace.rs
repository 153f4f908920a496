//! The kind AgentWorkspace: names, columns and the top level of its spec.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, Agent, AgentWorkspaceStatus, Libraries, Lifecycle, Owner, PodMetadata, Resources, RunPolicy, Sandbox,
    Scheduling, Storage, Template,
};

/// An agent workspace: a coding agent with files, history and a sandbox of its own.
///
/// Every field is optional, `spec: {}` works; the values that hold when a field is absent are listed in `docs/api.md`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "agents.boring.dev",
    version = "v1alpha1",
    kind = "AgentWorkspace",
    plural = "agentworkspaces",
    singular = "agentworkspace",
    shortname = "aw",
    category = "agents",
    namespaced,
    status = "AgentWorkspaceStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "AgentWorkspace is a coding agent with files, history and a sandbox of its own.",
    selectable = ".spec.runPolicy",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"where the workspace is in its life"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"True when the state is the wanted one"}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".status.url","description":"where people reach it"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"why Ready is what it is","priority":1}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.pod.nodeName","description":"node of the pod","priority":1}"#,
    printcolumn = r#"{"name":"Isolation","type":"string","jsonPath":".status.isolation","description":"what separates commands from the server","priority":1}"#,
    printcolumn = r#"{"name":"Last-Activity","type":"date","jsonPath":".status.lastActivityTime","description":"it was not used after this","priority":1}"#,
    printcolumn = r#"{"name":"Storage","type":"string","jsonPath":".status.storage.capacity","description":"capacity of the volume","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AgentWorkspaceSpec {
    /// Who may connect to the workspace. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Whether the workspace runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_policy: Option<RunPolicy>,
    /// The agent server: image, model, credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Compute resources of the agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How the agent's commands are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Where files and history are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Files that a fresh workspace gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// Libraries for the agent's commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Libraries>,
    /// Time limits and the answer to failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Where the pod may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,
    /// Labels and annotations added to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_metadata: Option<PodMetadata>,
    /// From where the workspace can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}
