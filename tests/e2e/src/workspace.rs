//! One workspace from outside: its manifest, its token, its API through a port forward. Must not know the products' code.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

use crate::chat::Turn;
use crate::cluster::{Cluster, PortForward, has_condition};

/// Kind with its group, for `kubectl get`.
pub const KIND: &str = "agentworkspaces.agents.boring.dev";

/// Where the scripted model of a test cluster listens; `make test` and `make up` deploy it.
pub const MODEL_URL: &str = "http://model-double.agent-demo.svc:8080";

/// Image pull, scheduling, volume binding and start on a busy two-core machine: a start takes 2–5 s there, so a minute is ample.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// A workspace of a test.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The cluster.
    pub cluster: Cluster,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Workspace {
    /// Names a workspace without touching the cluster.
    pub fn new(cluster: &Cluster, namespace: &str, name: &str) -> Self {
        Self { cluster: cluster.clone(), namespace: namespace.into(), name: name.into() }
    }

    /// Applies a manifest with this spec.
    pub async fn apply(&self, spec: &Value) -> anyhow::Result<()> {
        let manifest = json!({
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
            "metadata": {"name": self.name, "namespace": self.namespace}, "spec": spec,
        });
        self.cluster.apply(&manifest.to_string()).await
    }

    /// Merges a patch into the spec.
    pub async fn patch(&self, spec: &Value) -> anyhow::Result<()> {
        let patch = json!({"spec": spec}).to_string();
        self.cluster
            .kubectl(&["patch", KIND, &self.name, "-n", &self.namespace, "--type=merge", "-p", &patch])
            .await
            .map(drop)
    }

    /// The object.
    pub async fn get(&self) -> anyhow::Result<Option<Value>> {
        self.cluster.get(&self.namespace, KIND, &self.name).await
    }

    /// Waits for a condition's status and reason, seen at the current generation.
    pub async fn wait_for(&self, kind: &str, status: &str, reason: Option<&str>) -> anyhow::Result<Value> {
        let what = format!("{kind}={status} {}", reason.unwrap_or_default());
        self.cluster
            .wait(&self.namespace, KIND, &self.name, START_LIMIT, &what, |object| {
                object.is_some_and(|object| object["status"]["observedGeneration"] == object["metadata"]["generation"])
                    && has_condition(object, kind, status, reason)
            })
            .await?
            .context("the condition holds of an object that does not exist")
    }

    /// Waits until an object of a kind with this name is gone.
    pub async fn wait_gone(&self, kind: &str, name: &str) -> anyhow::Result<()> {
        self.cluster.wait(&self.namespace, kind, name, START_LIMIT, "gone", |object| object.is_none()).await.map(drop)
    }

    /// Name of the pod, Service and NetworkPolicy.
    pub fn pod_name(&self) -> String {
        format!("{}-agent", self.name)
    }

    /// Name of the claim.
    pub fn claim_name(&self) -> String {
        format!("{}-home", self.name)
    }

    /// Opens the API of the running pod with a printed token.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let token = self.cluster.token(&self.namespace, &self.name).await?;
        let forward = self.cluster.port_forward(&self.namespace, &self.pod_name(), 8787).await?;
        Connection::new(forward, token)
    }
}

/// An open way to one agent server.
pub struct Connection {
    client: Client,
    token: String,
    forward: PortForward,
}

impl Connection {
    fn new(forward: PortForward, token: String) -> anyhow::Result<Self> {
        // A second installation in one process is refused and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self { client: Client::builder().build()?, token, forward })
    }

    /// Sends a request with the token.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Response> {
        let mut request =
            self.client.request(method, format!("{}{path}", self.forward.base_url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        Ok(request.send().await?)
    }

    /// Sends a request without any token.
    pub async fn send_without_token(&self, method: Method, path: &str) -> anyhow::Result<Response> {
        Ok(self.client.request(method, format!("{}{path}", self.forward.base_url)).send().await?)
    }

    /// GET that must answer 200 with JSON.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.send(Method::GET, path, None).await?;
        let status = response.status();
        let text = response.text().await?;
        if status != 200 {
            bail!("GET {path}: {status} {text}");
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// Holds one chat to its end.
    pub async fn chat(&self, session: &str, message: &str) -> anyhow::Result<Turn> {
        let body = json!({"sessionId": session, "message": message});
        Turn::read(self.send(Method::POST, "/api/v1/agent/chat", Some(&body)).await?).await
    }

    /// The assistant's and the user's texts of a session in order.
    pub async fn history(&self, session: &str) -> anyhow::Result<Vec<(String, String)>> {
        let messages = self.get(&format!("/api/v1/agent/chat/{session}/messages")).await?;
        crate::chat::texts(&messages)
    }
}
