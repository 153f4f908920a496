//! One test's world: namespaces, the operator's service account with exactly the generated rights, controllers, simulated pods.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Binding, Namespace, ObjectReference, PersistentVolumeClaim, Pod, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use operator::{
    cluster::rbac,
    controller::{self, ControllerError, Settings},
    crd::{AgentWorkspace, AgentWorkspaceStatus, Phase},
    plan,
    telemetry::{Kind, Metrics, Outcome, Verb},
    trust::rotation::Times,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::support::{Space, eventually};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Everything a test acts on.
pub struct World {
    /// The administrator's client.
    pub client: Client,
    /// Namespace of workspaces.
    pub namespace: String,
    space: Space,
    system: Space,
    /// What the operator connects with: its service account's token.
    pub config: Config,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// A running controller.
pub struct Controller {
    /// What it counted.
    pub metrics: Arc<Metrics>,
    /// Address of its server.
    pub address: std::net::SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ControllerError>>,
}

impl World {
    /// Namespaces, account, roles. Nothing runs yet.
    pub async fn new() -> Self {
        operator::telemetry::start_logs(operator::telemetry::LogFormat::Text, "warn");
        let guard = ONE_AT_A_TIME.lock().await;
        let space =
            Space::new(json!({"pod-security.kubernetes.io/enforce": "restricted"})).await.with_service_account().await;
        let system = Space::new(json!({})).await;
        let client = space.client.clone();
        no_workspaces(&client).await;
        install_roles(&client, &system.name).await;
        let config = account_config(&client, &system.name).await;
        Self { client, namespace: space.name.clone(), space, system, config, _one_at_a_time: guard }
    }

    /// Starts a controller under this name.
    pub async fn controller(&self, identity: &str) -> Controller {
        let settings = Settings {
            namespace: self.system.name.clone(),
            identity: identity.to_owned(),
            leader_election: true,
            concurrency: 4,
            plan: plan::Config { operator_namespace: self.system.name.clone(), ..plan::Config::default() },
            key_rotation: Times { settle_seconds: 3, look: Duration::from_millis(500), ..Times::new(None) },
            least_spread_seconds: 1,
            on_lost: || panic!("the lease was lost"),
        };
        let metrics = Arc::new(Metrics::new());
        let stop = CancellationToken::new();
        let listener = controller::listen(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let run = controller::run(self.config.clone(), settings, listener, Arc::clone(&metrics), stop.clone());
        Controller { metrics, address, stop, task: tokio::spawn(run) }
    }

    /// Name of the operator's namespace.
    pub fn system(&self) -> &str {
        &self.system.name
    }

    /// Workspaces of the test's namespace.
    pub fn workspaces(&self) -> Api<AgentWorkspace> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Pods of the test's namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Claims of the test's namespace.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Services of the test's namespace.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Network policies of the test's namespace.
    pub fn policies(&self) -> Api<NetworkPolicy> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a workspace.
    pub async fn create(&self, name: &str, spec: Value) -> AgentWorkspace {
        let workspace = AgentWorkspace::new(name, serde_json::from_value(spec).expect("a spec"));
        self.workspaces().create(&PostParams::default(), &workspace).await.expect("created")
    }

    /// Merges into the spec of a workspace.
    pub async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.workspaces().patch(name, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// The status now.
    pub async fn status(&self, name: &str) -> AgentWorkspaceStatus {
        self.workspaces().get(name).await.expect("it exists").status.unwrap_or_default()
    }

    /// Waits for a phase.
    pub async fn reaches(&self, name: &str, phase: Phase) -> AgentWorkspaceStatus {
        eventually(&format!("{name} is {phase:?}"), async || self.status(name).await.phase == Some(phase)).await;
        self.status(name).await
    }

    /// Waits for a condition with this status and reason.
    pub async fn has_condition(&self, name: &str, kind: &str, status: &str, reason: &str) {
        eventually(&format!("{name} has {kind}={status} {reason}"), async || {
            self.status(name)
                .await
                .conditions
                .iter()
                .any(|condition| condition.type_ == kind && condition.status == status && condition.reason == reason)
        })
        .await;
    }

    /// Waits until the pod exists.
    pub async fn pod(&self, name: &str) -> Pod {
        let pod = format!("{name}-agent");
        eventually(&format!("{pod} exists"), async || self.pods().get_opt(&pod).await.expect("a read").is_some()).await;
        self.pods().get(&pod).await.expect("it exists")
    }

    /// Acts as scheduler and kubelet: the pod is on a node.
    pub async fn bind(&self, name: &str) {
        let binding = Binding {
            metadata: ObjectMeta { name: Some(format!("{name}-agent")), ..ObjectMeta::default() },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                // Of a node that does not exist the cluster deletes the pods, 40 s after it was first seen: another one for each test.
                name: Some(format!("node-of-{}", self.namespace)),
                ..ObjectReference::default()
            },
        };
        let _: Value = self
            .pods()
            .create_subresource("binding", &format!("{name}-agent"), &PostParams::default(), &binding)
            .await
            .expect("bound");
    }

    /// Acts as kubelet: the pod runs and is Ready at this address.
    pub async fn make_ready(&self, name: &str, ip: &str) {
        self.patch_pod_status(
            name,
            json!({
                "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            }),
        )
        .await;
    }

    /// Acts as kubelet.
    pub async fn patch_pod_status(&self, name: &str, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        let parameters = PatchParams::default();
        self.pods().patch_status(&format!("{name}-agent"), &parameters, &patch).await.expect("patched");
    }

    /// Acts as kubelet: the pod has ended and is removed.
    pub async fn finish_pod(&self, name: &str) {
        let parameters = DeleteParams::default().grace_period(0);
        self.pods().delete(&format!("{name}-agent"), &parameters).await.expect("removed");
    }

    /// From nothing to Ready, with the pod's part played.
    pub async fn start(&self, name: &str, ip: &str) {
        self.pod(name).await;
        self.bind(name).await;
        self.make_ready(name, ip).await;
        self.reaches(name, Phase::Running).await;
    }

    /// Deletes all of it.
    pub async fn remove(self) {
        let name = rights_name(&self.system.name);
        Api::<ClusterRole>::all(self.client.clone()).delete(&name, &DeleteParams::default()).await.expect("deleted");
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        bindings.delete(&name, &DeleteParams::default()).await.expect("deleted");
        self.workspaces().delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("deleted");
        no_workspaces(&self.client).await;
        self.space.remove().await;
        self.system.remove().await;
    }
}

impl Controller {
    /// Asks it to end and waits: as SIGTERM does.
    pub async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(20), self.task).await.expect("it ends in time");
        ended.expect("no panic").expect("no error");
    }

    /// Text of one of its routes.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{}{path}", self.address)).await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }

    /// Waits until it leads and works.
    pub async fn leads(&self) {
        eventually("the controller leads", async || {
            self.get("/metrics").await.1.contains("agent_workspace_operator_leader 1")
                && self.get("/readyz").await.0 == 200
        })
        .await;
    }

    /// Writes to workspaces and their children so far.
    pub fn writes(&self) -> u64 {
        let kinds = [Kind::AgentWorkspace, Kind::PersistentVolumeClaim, Kind::Service, Kind::NetworkPolicy, Kind::Pod];
        let verbs = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
        kinds.iter().flat_map(|kind| verbs.map(|verb| self.metrics.calls(*kind, verb))).sum()
    }

    /// Passes so far.
    pub fn reconciles(&self) -> u64 {
        [Outcome::Applied, Outcome::Unchanged, Outcome::Waiting, Outcome::Failed, Outcome::Abandoned]
            .iter()
            .map(|outcome| self.metrics.reconciles(*outcome))
            .sum()
    }

    /// Failed passes so far.
    pub fn failures(&self) -> u64 {
        self.metrics.reconciles(Outcome::Failed)
    }
}

/// Workspaces of earlier tests and of other test programs are gone: a controller acts on all of them.
async fn no_workspaces(client: &Client) {
    let all: Api<AgentWorkspace> = Api::all(client.clone());
    for workspace in all.list(&ListParams::default()).await.expect("a list") {
        let api: Api<AgentWorkspace> = Api::namespaced(client.clone(), &workspace.namespace().expect("namespaced"));
        let deleted = api.delete(&workspace.name_any(), &DeleteParams::default()).await;
        assert!(deleted.is_ok() || matches!(&deleted, Err(kube::Error::Api(status)) if status.code == 404));
    }
    eventually("there are no workspaces", async || {
        all.list(&ListParams::default()).await.expect("a list").items.is_empty()
    })
    .await;
}

fn rights_name(namespace: &str) -> String {
    format!("operator-{namespace}")
}

async fn install_roles(client: &Client, namespace: &str) {
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some("operator".to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    let parameters = PostParams::default();
    Api::namespaced(client.clone(), namespace).create(&parameters, &account).await.expect("an account");
    let metadata = ObjectMeta { name: Some(rights_name(namespace)), ..ObjectMeta::default() };
    let subjects = Some(vec![Subject {
        kind: "ServiceAccount".to_owned(),
        name: "operator".to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }]);
    let role_ref = |kind: &str| RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: rights_name(namespace),
    };
    let rules: Option<Vec<PolicyRule>> = Some(rbac::operator_cluster());
    let role = ClusterRole { metadata: metadata.clone(), rules, ..ClusterRole::default() };
    Api::all(client.clone()).create(&parameters, &role).await.expect("a role");
    let binding = ClusterRoleBinding {
        metadata: metadata.clone(),
        role_ref: role_ref("ClusterRole"),
        subjects: subjects.clone(),
    };
    Api::all(client.clone()).create(&parameters, &binding).await.expect("a binding");
    let role = Role { metadata: metadata.clone(), rules: Some(rbac::operator_namespace()) };
    Api::namespaced(client.clone(), namespace).create(&parameters, &role).await.expect("a role");
    let binding = RoleBinding { metadata, role_ref: role_ref("Role"), subjects };
    Api::namespaced(client.clone(), namespace).create(&parameters, &binding).await.expect("a binding");
}

/// The administrator's way to the API server, with the account's token and nothing of the administrator.
async fn account_config(client: &Client, namespace: &str) -> Config {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let token = accounts.create_token_request("operator", &PostParams::default(), &request).await.expect("a token");
    let path = std::env::var_os("API_SERVER_KUBECONFIG").expect("API_SERVER_KUBECONFIG is set");
    let kubeconfig = Kubeconfig::read_from(path).expect("a kubeconfig");
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster");
    config.auth_info = kube::config::AuthInfo {
        token: token.status.and_then(|status| status.token).map(Into::into),
        ..kube::config::AuthInfo::default()
    };
    config
}

/// Labels of a namespace, for quota tests and others that change it.
pub async fn namespace_exists(client: &Client, name: &str) -> bool {
    Api::<Namespace>::all(client.clone()).get_opt(name).await.expect("a read").is_some()
}
