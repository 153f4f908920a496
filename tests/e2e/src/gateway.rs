//! The gateway from outside: its pods, people with tokens, and one person's way to one workspace. Must not know the products'
//! code.

use std::time::Instant;

use anyhow::{Context, ensure};
use reqwest::{Client, Method, RequestBuilder, Response, header::HOST};
use serde_json::{Value, json};

use crate::chat::Turn;
use crate::cluster::{Cluster, LOOK_AGAIN, OPERATOR_NAMESPACE, PortForward};
use crate::workspace::START_LIMIT;

/// Suffix of host names that the tests install the gateway with.
pub const DOMAIN: &str = "agents.test";

/// Audience of tokens for the gateway.
pub const AUDIENCE: &str = "agents.boring.dev/gateway";

/// Port for callers.
const PORT: u16 = 8000;

/// One pod of the gateway with a way to it.
pub struct Gateway {
    /// Name of the pod.
    pub pod: String,
    client: Client,
    forward: PortForward,
}

impl Gateway {
    /// Every gateway pod that is Ready, ordered by name.
    pub async fn all(cluster: &Cluster) -> anyhow::Result<Vec<Self>> {
        let selector = "app.kubernetes.io/name=agent-workspace-gateway";
        let pods = cluster.kubectl(&["get", "pods", "-n", OPERATOR_NAMESPACE, "-l", selector, "-o", "json"]).await?;
        let pods: Value = serde_json::from_str(&pods)?;
        let mut gateways = Vec::new();
        for pod in pods["items"].as_array().context("no list of pods")?.iter().filter(|pod| serves(pod)) {
            let pod = pod["metadata"]["name"].as_str().context("a pod without a name")?.to_owned();
            let forward = cluster.port_forward(OPERATOR_NAMESPACE, &pod, PORT).await?;
            // A second installation in one process is refused and changes nothing.
            let _ = rustls::crypto::ring::default_provider().install_default();
            gateways.push(Self { pod, client: Client::builder().no_proxy().build()?, forward });
        }
        gateways.sort_by(|one, other| one.pod.cmp(&other.pod));
        Ok(gateways)
    }

    /// The first of them. Tests that kill a gateway take the last.
    pub async fn first(cluster: &Cluster) -> anyhow::Result<Self> {
        Self::all(cluster).await?.into_iter().next().context("no gateway is Ready")
    }

    /// A request for a workspace at its host name; the caller adds who asks.
    pub fn request(&self, method: Method, namespace: &str, name: &str, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.forward.base_url);
        self.client.request(method, url).header(HOST, host(namespace, name))
    }

    /// The way of somebody with this token to a workspace.
    pub fn caller<'a>(&'a self, namespace: &'a str, name: &'a str, token: &'a str) -> Caller<'a> {
        Caller { gateway: self, namespace, name, token }
    }
}

/// Host name of a workspace behind the gateway.
pub fn host(namespace: &str, name: &str) -> String {
    format!("{name}--{namespace}.{DOMAIN}")
}

fn serves(pod: &Value) -> bool {
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    pod["metadata"].get("deletionTimestamp").is_none()
        && pod["status"]["conditions"].as_array().is_some_and(|conditions| conditions.iter().any(ready))
}

/// Somebody at one workspace.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    gateway: &'a Gateway,
    namespace: &'a str,
    name: &'a str,
    token: &'a str,
}

impl<'a> Caller<'a> {
    /// Somebody with another token at the same workspace.
    #[must_use]
    pub const fn with_token(self, token: &'a str) -> Self {
        Self { token, ..self }
    }

    /// A request with the token.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.gateway.request(method, self.namespace, self.name, path).bearer_auth(self.token)
    }

    /// Begins a chat and returns the answer as it begins.
    pub async fn begin_chat(&self, session: &str, message: &str) -> anyhow::Result<Response> {
        let body = json!({"sessionId": session, "message": message});
        Ok(self.request(Method::POST, "/api/v1/agent/chat").json(&body).send().await?)
    }

    /// Holds one chat to its end.
    pub async fn chat(&self, session: &str, message: &str) -> anyhow::Result<Turn> {
        Turn::read(self.begin_chat(session, message).await?).await
    }

    /// Status and JSON body of a request without a body.
    pub async fn ask(&self, method: Method, path: &str) -> anyhow::Result<(u16, Value)> {
        answer(self.request(method, path)).await
    }

    /// Waits until this gateway's watch has brought the sleeping workspace. Looking wakes nothing.
    pub async fn sees_it_asleep(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let (status, body) = self.ask(Method::GET, "/api/v1/tree").await?;
            if (status, body["error"]["code"].as_str()) == (503, Some("sleeping")) {
                return Ok(());
            }
            ensure!(begin.elapsed() < START_LIMIT, "{} does not sleep: {status} {body}", self.name);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Role and text of each message of a session.
    pub async fn history(&self, session: &str) -> anyhow::Result<Vec<(String, String)>> {
        let (status, body) = self.ask(Method::GET, &format!("/api/v1/agent/chat/{session}/messages")).await?;
        ensure!(status == 200, "history of {session}: {status} {body}");
        crate::chat::texts(&body)
    }
}

/// Sends a request and reads its answer: status, and the body as JSON (as a string when it is none).
pub async fn answer(request: RequestBuilder) -> anyhow::Result<(u16, Value)> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let text = response.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}

/// Creates somebody and returns a token for the gateway.
pub async fn person(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<String> {
    cluster.kubectl(&["create", "serviceaccount", name, "-n", namespace]).await?;
    token(cluster, namespace, name, &[AUDIENCE]).await
}

/// A token of somebody for these audiences; for the API server when there is none.
pub async fn token(cluster: &Cluster, namespace: &str, name: &str, audiences: &[&str]) -> anyhow::Result<String> {
    let mut arguments = vec!["create", "token", name, "-n", namespace];
    for audience in audiences {
        arguments.extend(["--audience", audience]);
    }
    Ok(cluster.kubectl(&arguments).await?.trim().to_owned())
}

/// User name of somebody.
pub fn user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}
