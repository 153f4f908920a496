//! An agent server of a simulated pod: answers `/ready` and records drains.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    extract::State,
    http::HeaderMap,
    routing::{get, post},
};
use kube::Api;
use operator::crd::AgentWorkspace;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

/// What a drain call saw.
#[derive(Clone, Debug)]
pub struct Drained {
    /// The body.
    pub body: Value,
    /// Whether a bearer token came with it.
    pub token: bool,
    /// `status.phase` of the workspace at that moment.
    pub phase: Option<String>,
}

#[derive(Clone)]
struct Shared {
    drains: Arc<Mutex<Vec<Drained>>>,
    workspaces: Api<AgentWorkspace>,
    name: String,
}

/// A running fake; ends when dropped.
pub struct FakeAgent {
    /// Its address: loopback, different for each test.
    pub ip: String,
    drains: Arc<Mutex<Vec<Drained>>>,
    server: JoinHandle<()>,
}

impl FakeAgent {
    /// Serves on `127.77.0.<last>:8787` for the pod of a workspace.
    pub async fn start(workspaces: Api<AgentWorkspace>, name: &str, last: u8) -> Self {
        let ip = format!("127.77.0.{last}");
        let drains = Arc::new(Mutex::new(Vec::new()));
        let shared = Shared { drains: Arc::clone(&drains), workspaces, name: name.to_owned() };
        let router = Router::new()
            .route("/ready", get(async || Json(json!({"status": "ok"}))))
            .route("/api/v1/drain", post(drain))
            .with_state(shared);
        let listener = TcpListener::bind((ip.as_str(), 8787)).await.expect("the address is free");
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { ip, drains, server }
    }

    /// The drains so far.
    pub fn drains(&self) -> Vec<Drained> {
        self.drains.lock().expect("no panic").clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn drain(State(shared): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    let workspace = shared.workspaces.get(&shared.name).await.expect("the workspace exists");
    let phase = workspace.status.and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    let token = headers.get("authorization").is_some_and(|value| value.as_bytes().starts_with(b"Bearer "));
    shared.drains.lock().expect("no panic").push(Drained { body, token, phase });
    Json(json!({"state": "draining"}))
}
