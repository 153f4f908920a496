//! The parts of an AgentWorkspace's spec.
//!
//! Every string, list and map is bounded: without bounds the API server prices the rules over its budget and refuses the
//! definition. No field has a default in the schema; what holds when it is absent is in `plan::valid`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::quantity;

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// User name as the cluster's authentication reports it.
    #[schemars(length(min = 1, max = 253))]
    pub user: String,
    /// Groups whose members may connect too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
}

/// The agent server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Container image; the operator's configured image when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^\S+$"))]
    pub image: Option<String>,
    /// When the node pulls the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// The model that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// Text added to the end of the agent's own system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32768))]
    pub system_prompt: Option<String>,
    /// Secrets for the server or for commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub credentials: Vec<Credential>,
    /// Environment of the server; never handed to commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub env: Vec<EnvironmentVariable>,
    /// ConfigMap whose key `settings` holds the defaults of the workspace's settings, in the form of its file `.boring/settings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings_ref: Option<ConfigMapReference>,
}

/// A ConfigMap of the workspace's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapReference {
    /// Name of the ConfigMap; must begin with the prefix that the operator permits.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
}

/// When the node pulls the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At each start.
    Always,
    /// When the node does not hold it.
    IfNotPresent,
    /// Never: the node must hold it.
    Never,
}

/// The model that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Wire format of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ModelProvider>,
    /// The provider's name of the model; needed with provider openai.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^\S+$"))]
    pub id: Option<String>,
    /// Address of the provider; the provider's public one when absent. With provider openai it is what stands before
    /// `/chat/completions`, and over plain http no key is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"))]
    pub base_url: Option<String>,
}

/// Wire format of a model provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelProvider {
    /// The Messages API of Anthropic.
    #[serde(rename = "anthropic")]
    Anthropic,
    /// Chat completions of OpenAI, which many other providers and servers of one's own speak.
    #[serde(rename = "openai")]
    Openai,
}

impl ModelProvider {
    /// The word of the API and of the agent server.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Openai => "openai",
        }
    }

    /// The variable that names the file with the key.
    pub const fn key_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_API_KEY_FILE",
            Self::Openai => "OPENAI_API_KEY_FILE",
        }
    }
}

/// One value of a Secret and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// Name of the credential: a variable name with purpose Environment, a file name with purpose File.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"))]
    pub name: String,
    /// Where the value is.
    pub secret_key_ref: SecretKeyReference,
    /// Who gets the value.
    pub purpose: CredentialPurpose,
}

/// A key in a Secret of the workspace's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Name of the Secret; must begin with the prefix that the operator permits.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"))]
    pub key: String,
}

/// Who gets a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CredentialPurpose {
    /// The server alone, as its key for the model provider. At most one.
    ModelKey,
    /// Commands, as an environment variable with the credential's name.
    Environment,
    /// Commands, as a file with the credential's name.
    File,
}

/// One environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Value of the variable, taken as it is.
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// Compute resources by name, as in a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler sets aside.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantity::quantity_map")]
    pub requests: BTreeMap<String, Quantity>,
    /// What the container may not exceed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantity::quantity_map")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Where files and history are kept: in a volume, or with `ephemeral` in space that is lost at each stop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of the volume; may grow, never shrink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity::quantity")]
    pub size: Option<Quantity>,
    /// StorageClass of the volume; the cluster's default when absent. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub storage_class_name: Option<String>,
    /// How the volume may be attached. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
    /// What happens to the volume with the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// Space on the node instead of a volume. Excludes every other field of `storage`; cannot be added or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralStorage>,
}

/// How a volume may be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// By one node at a time.
    ReadWriteOnce,
    /// By one pod at a time.
    ReadWriteOncePod,
    /// By many nodes.
    ReadWriteMany,
}

/// What happens to the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// When the workspace is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<WhenDeleted>,
}

/// What happens to the volume when the workspace is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenDeleted {
    /// The claim stays; a workspace of the same name and owner gets it back.
    Retain,
    /// The claim is deleted.
    Delete,
}

/// Space on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralStorage {
    /// How much may be used; the pod is evicted beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity::quantity")]
    pub size_limit: Option<Quantity>,
}

/// Where the pod may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of the pod. The cluster's own classes (`system-…`) are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub priority_class_name: Option<String>,
}

/// A taint that the pod tolerates, as in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint; every key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// How key and value are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint, for operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; every effect when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TolerationEffect>,
    /// Seconds that a NoExecute taint is tolerated; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration is compared with a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The key exists.
    Exists,
    /// Key and value are equal.
    Equal,
}

/// Effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationEffect {
    /// New pods are not placed there.
    NoSchedule,
    /// New pods are placed there only when nothing else is left.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

/// Labels and annotations added to the pod. Keys need a prefix (`example.com/team`), and it must not be one of Kubernetes,
/// of a deployment tool or of this group: a pod must not be selected by services that do not know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_map")]
    pub annotations: BTreeMap<String, String>,
}

/// From where the workspace can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// Who can open a connection; each request needs a token besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Whom the gateway lets in. Who runs programs in the workspace's own namespace is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
}

/// Who can open a connection to the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Exposure {
    /// The gateway alone.
    Gateway,
    /// Pods of the workspace's own namespace.
    ClusterLocal,
}

/// Whom the gateway lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Visibility {
    /// The owner: the user and the groups of `spec.owner`. Without an owner, whom the access review allows.
    Owner,
    /// The owner, and who may `create` the subresource `agentworkspaces/connect` of this workspace.
    Authorized,
}

/// Labels: the API server permits 63 characters.
fn label_map(_generator: &mut SchemaGenerator) -> Schema {
    text_map(63)
}

/// Annotations: 32 of 2,048 characters are a quarter of what an object may hold.
fn annotation_map(_generator: &mut SchemaGenerator) -> Schema {
    text_map(2048)
}

fn text_map(longest: u32) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": {"type": "string", "maxLength": longest},
    })
}
