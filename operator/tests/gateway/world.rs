//! One test's world: namespaces, people with tokens, workspaces whose status the test writes, gateways with their own rights.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use operator::{
    cluster::{Calls, GatewayKeys, rbac},
    crd::AgentWorkspace,
    gateway::{self, AUDIENCE, GatewayError, POD_PORT, Settings},
    telemetry::{GatewayMetrics, Metrics},
    trust::KeyRing,
};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Space, eventually};

/// Suffix of host names in these tests.
pub const DOMAIN: &str = "agents.test";

/// Everything a test acts on.
pub struct World {
    /// The administrator's client.
    pub client: Client,
    /// Namespace of workspaces and people.
    pub namespace: String,
    space: Space,
    system: Space,
    config: Config,
}

/// A running gateway.
pub struct Gateway {
    /// Where callers connect.
    pub address: SocketAddr,
    /// Where it tells how it is.
    pub health: SocketAddr,
    /// What it counted.
    pub counted: Arc<GatewayMetrics>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), GatewayError>>,
}

impl World {
    /// Namespaces, the gateway's account, roles and keys. Nothing runs yet.
    pub async fn new() -> Self {
        operator::telemetry::start_logs(operator::telemetry::LogFormat::Text, "warn");
        let space = Space::new(json!({})).await;
        let system = Space::new(json!({})).await;
        let client = space.client.clone();
        let calls = Calls::new(Arc::new(Metrics::new()));
        let ring = KeyRing::read(&KeyRing::generate().expect("keys")).expect("keys");
        GatewayKeys::new(client.clone(), calls, &system.name).write(&ring).await.expect("written");
        create_account(&client, &system.name, "gateway").await;
        install_roles(&client, &system.name).await;
        let mut config = kubeconfig().await;
        let token = account_token(&client, &system.name, "gateway", None).await;
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Self { client, namespace: space.name.clone(), space, system, config }
    }

    /// What a gateway of these tests runs with.
    pub fn settings(&self) -> Settings {
        Settings {
            namespace: self.system.name.clone(),
            domain: Some(DOMAIN.to_owned()),
            pod_cidrs: vec!["127.78.0.0/16".parse().expect("a range")],
            pod_port: POD_PORT,
            accept_cluster_tokens: false,
            max_connections: 1000,
            max_held_requests: 1000,
            max_body_bytes: 64 << 20,
            ask_again: Duration::from_secs(60),
            drain_delay: Duration::from_millis(200),
            drain: Duration::from_secs(20),
        }
    }

    /// Starts a gateway and waits until it is ready.
    pub async fn gateway(&self) -> Gateway {
        self.gateway_with(self.settings()).await
    }

    /// The same with other settings.
    pub async fn gateway_with(&self, settings: Settings) -> Gateway {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = gateway::listen(any, any).await.expect("ports");
        let address = listeners.callers.local_addr().expect("an address");
        let health = listeners.health.local_addr().expect("an address");
        let metrics = Arc::new(Metrics::for_gateway());
        let counted = Arc::new(GatewayMetrics::new(&metrics));
        let stop = CancellationToken::new();
        let run = gateway::run(self.config.clone(), settings, listeners, metrics, Arc::clone(&counted), stop.clone());
        let gateway = Gateway { address, health, counted, stop, task: tokio::spawn(run) };
        eventually("the gateway is ready", async || gateway.health("/readyz").await.0 == 200).await;
        gateway
    }

    /// Workspaces of the test's namespace.
    pub fn workspaces(&self) -> Api<AgentWorkspace> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Somebody: a service account, and its token for the gateway.
    pub async fn person(&self, name: &str) -> String {
        create_account(&self.client, &self.namespace, name).await;
        account_token(&self.client, &self.namespace, name, Some(AUDIENCE)).await
    }

    /// A token of an existing person for the API server.
    pub async fn cluster_token(&self, name: &str) -> String {
        account_token(&self.client, &self.namespace, name, None).await
    }

    /// The user name of a person.
    pub fn user(&self, name: &str) -> String {
        format!("system:serviceaccount:{}:{name}", self.namespace)
    }

    /// Creates a workspace of a person.
    pub async fn workspace(&self, name: &str, owner: &str, mut spec: Value) -> AgentWorkspace {
        spec["owner"] = json!({"user": self.user(owner)});
        let workspace = AgentWorkspace::new(name, serde_json::from_value(spec).expect("a spec"));
        self.workspaces().create(&PostParams::default(), &workspace).await.expect("created")
    }

    /// Acts as the operator.
    pub async fn status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.workspaces().patch_status(name, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// Acts as the operator: the pod is there.
    pub async fn runs(&self, name: &str, pod_uid: &str, ip: &str) {
        let pod = json!({"name": format!("{name}-agent"), "uid": pod_uid, "ip": ip});
        self.status(name, json!({"phase": "Running", "pod": pod})).await;
    }

    /// Lets a person connect to all workspaces of the namespace that say `Authorized`.
    pub async fn let_connect(&self, name: &str) {
        let metadata = ObjectMeta { name: Some(format!("connect-{name}")), ..ObjectMeta::default() };
        let rules: Vec<PolicyRule> = rbac::admin();
        let role = Role { metadata: metadata.clone(), rules: Some(rules) };
        let parameters = PostParams::default();
        Api::namespaced(self.client.clone(), &self.namespace).create(&parameters, &role).await.expect("a role");
        let binding = RoleBinding {
            role_ref: role_ref("Role", &format!("connect-{name}")),
            metadata,
            subjects: Some(vec![subject(&self.namespace, name)]),
        };
        Api::namespaced(self.client.clone(), &self.namespace).create(&parameters, &binding).await.expect("a binding");
    }

    /// Takes that away.
    pub async fn forbid_to_connect(&self, name: &str) {
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &self.namespace);
        bindings.delete(&format!("connect-{name}"), &DeleteParams::default()).await.expect("deleted");
    }

    /// The host name of a workspace.
    pub fn host(&self, name: &str) -> String {
        format!("{name}--{}.{DOMAIN}", self.namespace)
    }

    /// Deletes all of it.
    pub async fn remove(self) {
        let name = rights_name(&self.system.name);
        Api::<ClusterRole>::all(self.client.clone()).delete(&name, &DeleteParams::default()).await.expect("deleted");
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        bindings.delete(&name, &DeleteParams::default()).await.expect("deleted");
        self.space.remove().await;
        self.system.remove().await;
    }
}

impl Gateway {
    /// A request to a host, not sent yet. No connection is kept, no redirect followed.
    pub fn request(&self, method: &str, host: &str, target: &str) -> RequestBuilder {
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        let method: Method = method.parse().expect("a method");
        client.request(method, format!("http://{}{target}", self.address)).header("host", host)
    }

    /// Status and JSON body of a GET.
    pub async fn get(&self, host: &str, target: &str, token: &str) -> (u16, Value) {
        answer(self.request("GET", host, target).bearer_auth(token)).await
    }

    /// Waits until the gateway has seen that a workspace serves.
    pub async fn serves(&self, host: &str, token: &str) {
        eventually("the workspace is reached", async || self.get(host, "/api/v1/tree", token).await.0 == 200).await;
    }

    /// Status and text of one of its own health routes.
    pub async fn health(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{}{path}", self.health)).await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }

    /// Asks it to end, as SIGTERM does.
    pub fn terminate(&self) {
        self.stop.cancel();
    }

    /// Asks it to end and waits.
    pub async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(40), self.task).await.expect("it ends in time");
        ended.expect("no panic").expect("no error");
    }
}

/// Status and JSON body; a body that is none is null.
pub async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("a body");
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// `error.code` of an answer.
pub fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

async fn kubeconfig() -> Config {
    let path = std::env::var_os("API_SERVER_KUBECONFIG").expect("API_SERVER_KUBECONFIG is set");
    let kubeconfig = Kubeconfig::read_from(path).expect("a kubeconfig");
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster")
}

async fn create_account(client: &Client, namespace: &str, name: &str) {
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &account).await.expect("an account");
}

async fn account_token(client: &Client, namespace: &str, name: &str, audience: Option<&str>) -> String {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: audience.map(|audience| vec![audience.to_owned()]),
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let made = api.create_token_request(name, &PostParams::default(), &request).await.expect("a token");
    made.status.and_then(|status| status.token).expect("a token")
}

fn rights_name(namespace: &str) -> String {
    format!("gateway-{namespace}")
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: Some("rbac.authorization.k8s.io".to_owned()), kind: kind.to_owned(), name: name.to_owned() }
}

fn subject(namespace: &str, name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }
}

async fn install_roles(client: &Client, namespace: &str) {
    let name = rights_name(namespace);
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let subjects = Some(vec![subject(namespace, "gateway")]);
    let parameters = PostParams::default();
    let role =
        ClusterRole { metadata: metadata.clone(), rules: Some(rbac::gateway_cluster()), ..ClusterRole::default() };
    Api::all(client.clone()).create(&parameters, &role).await.expect("a role");
    let binding = ClusterRoleBinding {
        metadata: metadata.clone(),
        role_ref: role_ref("ClusterRole", &name),
        subjects: subjects.clone(),
    };
    Api::all(client.clone()).create(&parameters, &binding).await.expect("a binding");
    let role = Role { metadata: metadata.clone(), rules: Some(rbac::gateway_namespace()) };
    Api::namespaced(client.clone(), namespace).create(&parameters, &role).await.expect("a role");
    let binding = RoleBinding { metadata, role_ref: role_ref("Role", &name), subjects };
    Api::namespaced(client.clone(), namespace).create(&parameters, &binding).await.expect("a binding");
}

/// Name of a created object.
pub fn uid(workspace: &AgentWorkspace) -> String {
    workspace.uid().expect("a UID")
}
