//! The values of the chart. The chart is written by hand; this says what its values may be, and Helm refuses the rest.

use std::collections::BTreeMap;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Values of the chart agent-workspace-operator.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Values {
    /// Operator pods. One leads. 0 pauses the operator; workspaces go on.
    #[schemars(range(max = 10))]
    replicas: Option<u8>,
    /// Image of the operator.
    image: Option<Image>,
    /// Secrets for pulling the operator's image.
    image_pull_secrets: Option<Vec<SecretReference>>,
    /// The agent server.
    agent_server: Option<AgentServer>,
    /// How names of Secrets must begin that a workspace may use; "" allows all.
    #[schemars(length(max = 253))]
    allowed_secret_prefix: Option<String>,
    /// What workspaces may reach and who may reach them.
    network_policy: Option<NetworkPolicy>,
    /// Days after which the key pairs that sign tokens are replaced; 0: only when asked.
    #[schemars(range(max = 3650))]
    key_rotation_days: Option<u16>,
    /// What sandboxes of workspaces need.
    sandbox: Option<Sandbox>,
    /// The way from people to workspaces.
    gateway: Option<Gateway>,
    /// Leader election.
    leader_election: Option<Enabled>,
    /// Reconciles at once.
    #[schemars(range(min = 1, max = 256))]
    concurrency: Option<u16>,
    /// Logging.
    log: Option<Log>,
    /// The policy on `spec.owner` and long names.
    admission_policy: Option<Enabled>,
    /// Roles that extend view, edit and admin.
    aggregated_roles: Option<Enabled>,
    /// The custom resource definitions.
    crds: Option<Definitions>,
    /// Service account of the operator.
    service_account: Option<ServiceAccount>,
    /// Resources of the operator's container.
    resources: Option<FreeForm>,
    /// Disruption budget of the operator.
    pod_disruption_budget: Option<PodDisruptionBudget>,
    /// Metrics of the operator.
    metrics: Option<Metrics>,
    /// Seconds that the operator gets to end its work.
    #[schemars(range(max = 3600))]
    termination_grace_period_seconds: Option<u16>,
    /// Priority class of the operator's pods.
    priority_class_name: Option<String>,
    /// Node selector of the operator's pods.
    node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations of the operator's pods.
    tolerations: Option<Vec<FreeForm>>,
    /// Affinity of the operator's pods.
    affinity: Option<FreeForm>,
    /// Spread of the operator's pods; null: over nodes where possible.
    topology_spread_constraints: Option<Vec<FreeForm>>,
    /// Labels of the operator's pods.
    pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations of the operator's pods.
    pod_annotations: Option<BTreeMap<String, String>>,
    /// Further environment of the operator's container, as in a container.
    env: Option<Vec<FreeForm>>,
    /// Values that Helm hands to every chart.
    global: Option<FreeForm>,
}

/// As in a pod; the API server checks it.
type FreeForm = Map<String, Value>;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    /// Registry and name.
    #[schemars(length(min = 1))]
    repository: Option<String>,
    /// Tag; the chart's appVersion when empty.
    tag: Option<String>,
    /// Digest; wins over the tag.
    #[schemars(regex(pattern = "^(sha256:[0-9a-f]{64})?$"))]
    digest: Option<String>,
    /// When the node pulls it.
    pull_policy: Option<PullPolicy>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretReference {
    /// Name of the Secret.
    name: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AgentServer {
    /// Image of workspaces that name none.
    image: Option<Image>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkPolicy {
    /// Required: ranges of the cluster's pods, services and nodes, which workspaces must not reach.
    #[serde(rename = "clusterCIDRs")]
    #[schemars(inner(regex(pattern = "^[0-9a-fA-F.:]+/[0-9]{1,3}$")))]
    cluster_cidrs: Option<Vec<String>>,
    /// Where DNS is answered.
    dns: Option<Dns>,
    /// Namespaces whose Services a workspace may name as its model's address.
    #[schemars(inner(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")))]
    model_namespaces: Option<Vec<String>>,
    /// Whose pods may read the metrics port of workspaces; null: nobody's.
    metrics_from: Option<Peer>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sandbox {
    /// Seccomp profile in mode Bubblewrap: localhost/ and a path below the kubelet's seccomp folder, or unconfined.
    #[schemars(regex(pattern = "^(unconfined|localhost/[^/].*)$"))]
    seccomp_profile: Option<String>,
    /// The DaemonSet that puts the chart's own profile on each node.
    seccomp_installer: Option<SeccompInstaller>,
    /// Whether spec.sandbox.onUnavailable Degrade is permitted.
    allow_degrade: Option<bool>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Gateway {
    /// Whether it is installed; then workspaces that do not say are exposed through it alone.
    enabled: Option<bool>,
    /// Gateway pods.
    #[schemars(range(max = 50))]
    replicas: Option<u8>,
    /// Suffix of host names: alice--team-a.DOMAIN. Needs a wildcard record and certificate.
    #[schemars(length(max = 189), regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    domain: Option<String>,
    /// Host of the path form: HOST/w/team-a/alice.
    #[schemars(length(max = 253), regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?)?$"))]
    host: Option<String>,
    /// Required: address ranges of pods. Nothing else is ever dialled.
    #[serde(rename = "podCIDRs")]
    #[schemars(inner(regex(pattern = "^[0-9a-fA-F.:]+/[0-9]{1,3}$")))]
    pod_cidrs: Option<Vec<String>>,
    /// Take tokens that were made for the API server too.
    accept_cluster_tokens: Option<bool>,
    /// Limits of one pod.
    limits: Option<GatewayLimits>,
    /// How a pod ends.
    drain: Option<GatewayDrain>,
    /// Its Service.
    service: Option<GatewayService>,
    /// An Ingress.
    ingress: Option<GatewayIngress>,
    /// A route of the Gateway API.
    http_route: Option<GatewayRoute>,
    /// Who may open a connection to it.
    network_policy: Option<GatewayNetworkPolicy>,
    /// Its service account.
    service_account: Option<ServiceAccount>,
    /// Resources of its container.
    resources: Option<FreeForm>,
    /// Its disruption budget.
    pod_disruption_budget: Option<PodDisruptionBudget>,
    /// Labels of its pods.
    pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations of its pods.
    pod_annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SeccompInstaller {
    /// Whether it is installed.
    enabled: Option<bool>,
    /// Folder of the kubelet on the nodes.
    #[schemars(regex(pattern = "^/.+$"))]
    kubelet_seccomp_folder: Option<String>,
    /// Node selector of its pods.
    node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations of its pods.
    tolerations: Option<Vec<FreeForm>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayLimits {
    /// Connections of callers.
    #[schemars(range(min = 1, max = 1_000_000))]
    connections: Option<u32>,
    /// Requests that wait for their workspaces.
    #[schemars(range(min = 1, max = 100_000))]
    held_requests: Option<u32>,
    /// Bytes of a request's body.
    #[schemars(range(min = 1))]
    body_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayDrain {
    /// Seconds between not ready and the first refused connection.
    #[schemars(range(max = 300))]
    delay_seconds: Option<u16>,
    /// Seconds that open requests and streams get after that.
    #[schemars(range(max = 3600))]
    seconds: Option<u16>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayService {
    /// ClusterIP, NodePort or LoadBalancer.
    #[serde(rename = "type")]
    kind: Option<ServiceType>,
    /// Its port.
    #[schemars(range(min = 1, max = 65535))]
    port: Option<u16>,
    /// Annotations.
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
enum ServiceType {
    ClusterIP,
    NodePort,
    LoadBalancer,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayIngress {
    /// Whether it is installed.
    enabled: Option<bool>,
    /// Its class; the cluster's default when empty.
    class_name: Option<String>,
    /// Annotations, such as the ones that turn buffering off.
    annotations: Option<BTreeMap<String, String>>,
    /// Secret with the certificate; none when empty.
    tls_secret_name: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayRoute {
    /// Whether it is installed; needs the Gateway API.
    enabled: Option<bool>,
    /// Gateways that it belongs to, as in an HTTPRoute.
    parent_refs: Option<Vec<FreeForm>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayNetworkPolicy {
    /// Whether it is installed.
    enabled: Option<bool>,
    /// Peers of a NetworkPolicy that may connect; null: everybody.
    from: Option<Vec<FreeForm>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Dns {
    /// Labels of the namespace.
    namespace_labels: Option<BTreeMap<String, String>>,
    /// Labels of the pods.
    pod_labels: Option<BTreeMap<String, String>>,
    /// Ranges that answer DNS besides.
    #[schemars(inner(regex(pattern = "^[0-9a-fA-F.:]+/[0-9]{1,3}$")))]
    cidrs: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Peer {
    /// Labels of the namespace; all when empty.
    namespace_labels: Option<BTreeMap<String, String>>,
    /// Labels of the pods; all when empty.
    pod_labels: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Enabled {
    /// Whether it is installed or used.
    enabled: Option<bool>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Log {
    /// A tracing filter, such as info or info,operator::cluster=debug.
    filter: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Definitions {
    /// false when they are installed by other means.
    install: Option<bool>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceAccount {
    /// Name; agent-workspace-operator when empty.
    name: Option<String>,
    /// Annotations.
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodDisruptionBudget {
    /// Whether it is installed.
    enabled: Option<bool>,
    /// A number or a percentage.
    max_unavailable: Option<NumberOrPercentage>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum NumberOrPercentage {
    Number(u16),
    Percentage(#[schemars(regex(pattern = "^[0-9]+%$"))] String),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metrics {
    /// The Service of the metrics port.
    service: Option<Enabled>,
    /// The ServiceMonitor.
    service_monitor: Option<ServiceMonitor>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceMonitor {
    /// Whether it is installed; needs the Prometheus operator.
    enabled: Option<bool>,
    /// Scrape interval.
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m|h)$"))]
    interval: Option<String>,
    /// Labels.
    labels: Option<BTreeMap<String, String>>,
}

/// The schema as Helm reads it.
pub(super) fn schema() -> String {
    // Helm reads draft 7; references are inlined so that an error names the value and not a definition.
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Values>().to_value();
    strip_formats(&mut schema);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain data");
    text.push('\n');
    text
}

/// `uint8` and the like mean nothing to Helm.
fn strip_formats(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("format");
            fields.values_mut().for_each(strip_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_formats),
        _ => {}
    }
}
