//! A client, the installed definition, namespaces.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::{
    api::core::v1::{Namespace, ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{DynamicObject, GroupVersionKind},
    discovery::ApiResource,
    runtime::{conditions, wait::await_condition},
};
use operator::crd;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Nothing that these tests wait for takes longer on a healthy cluster.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A client that acts as the administrator of the kubeconfig.
pub async fn client() -> Client {
    // Another test of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = std::env::var_os("API_SERVER_KUBECONFIG").map(PathBuf::from).expect("API_SERVER_KUBECONFIG is set");
    let kubeconfig = Kubeconfig::read_from(&path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster");
    Client::try_from(config).expect("a client")
}

/// Installs a definition and waits until it is served.
pub async fn install(client: &Client, definition: &CustomResourceDefinition) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.name_any();
    let parameters = PatchParams::apply("api-server-tests").force();
    api.patch(&name, &parameters, &Patch::Apply(definition)).await.expect("the definition is accepted");
    let established = await_condition(api, &name, conditions::is_crd_established());
    tokio::time::timeout(LIMIT, established).await.expect("established in time").expect("established");
}

/// A namespace with the AgentWorkspace kind installed; deleted by [`Space::remove`].
pub struct Space {
    /// Its client.
    pub client: Client,
    /// Its name.
    pub name: String,
}

impl Space {
    /// Makes one with labels.
    pub async fn new(labels: Value) -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let client = client().await;
        let install_both = async || {
            for definition in [crd::agent_workspace_definition(), crd::agent_workspace_wake_definition()] {
                install(&client, &definition).await;
            }
        };
        INSTALLED.get_or_init(install_both).await;
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": "api-server-", "labels": labels}}))
                .expect("a namespace");
        let created = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("created");
        Self { client, name: Namespace::name_any(&created) }
    }

    /// Waits for the service account that every pod needs.
    pub async fn with_service_account(self) -> Self {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.name);
        let exists = await_condition(api, "default", |account: Option<&ServiceAccount>| account.is_some());
        tokio::time::timeout(LIMIT, exists).await.expect("in time").expect("a service account");
        self
    }

    /// Workspaces as plain JSON, so that what no Rust type can hold may be sent too.
    pub fn workspaces(&self) -> Workspaces {
        Workspaces::new(self, crd::GROUP)
    }

    /// Deletes the namespace; its end is not waited for.
    pub async fn remove(self) {
        let api: Api<Namespace> = Api::all(self.client);
        api.delete(&self.name, &DeleteParams::default()).await.expect("the namespace is deleted");
    }
}

/// Workspaces of a namespace, of this group or of another with the same schema.
pub struct Workspaces {
    api: Api<DynamicObject>,
    group: String,
}

impl Workspaces {
    /// Those of a group.
    pub fn new(space: &Space, group: &str) -> Self {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(group, "v1alpha1", "AgentWorkspace"),
            "agentworkspaces",
        );
        Self { api: Api::namespaced_with(space.client.clone(), &space.name, &resource), group: group.to_owned() }
    }

    fn object(&self, name: &str, spec: &Value) -> DynamicObject {
        let value = json!({
            "apiVersion": format!("{}/v1alpha1", self.group), "kind": "AgentWorkspace",
            "metadata": {"name": name}, "spec": spec,
        });
        serde_json::from_value(value).expect("an object")
    }

    /// Creates one; the message of a refusal otherwise.
    pub async fn create(&self, name: &str, spec: &Value) -> Result<DynamicObject, String> {
        refusal(self.api.create(&PostParams::default(), &self.object(name, spec)).await)
    }

    /// Replaces the spec of one.
    pub async fn replace(&self, name: &str, spec: &Value) -> Result<DynamicObject, String> {
        let current = self.api.get(name).await.expect("it exists");
        let mut object = self.object(name, spec);
        object.metadata.resource_version = current.metadata.resource_version;
        refusal(self.api.replace(name, &PostParams::default(), &object).await)
    }

    /// Merges into the status of one.
    pub async fn patch_status(&self, name: &str, status: &Value) -> Result<DynamicObject, String> {
        let patch = Patch::Merge(json!({"status": status}));
        refusal(self.api.patch_status(name, &PatchParams::default(), &patch).await)
    }

    /// Names of those that a field selector selects.
    pub async fn select(&self, fields: &str) -> Vec<String> {
        let list = self.api.list(&kube::api::ListParams::default().fields(fields)).await.expect("a list");
        list.items.iter().map(ResourceExt::name_any).collect()
    }
}

/// The message of a 422 or 400; anything else is a fault of the test.
fn refusal(result: kube::Result<DynamicObject>) -> Result<DynamicObject, String> {
    match result {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Err(status.message.clone()),
        Err(error) => panic!("neither accepted nor refused: {error}"),
    }
}

/// Asserts on what was refused, and that the message tells why.
#[track_caller]
pub fn assert_refused(result: &Result<DynamicObject, String>, expected: &str, case: &Value) {
    match result {
        Ok(_) => panic!("accepted: {case}"),
        Err(message) => assert!(message.contains(expected), "{case}\nexpected: {expected}\ngot: {message}"),
    }
}

/// Asks until it is so, a few times a second, up to [`LIMIT`].
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        let mut interval = tokio::time::interval(Duration::from_millis(200));
        while !is_so().await {
            interval.tick().await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, asking).await.is_ok(), "not within {LIMIT:?}: {what}");
}
