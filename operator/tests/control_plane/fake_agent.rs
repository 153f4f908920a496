//! An agent server of a simulated pod: answers `/ready` and records drains.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
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
    busy: Arc<AtomicBool>,
    questions: Arc<AtomicUsize>,
    drains: Arc<Mutex<Vec<Drained>>>,
    workspaces: Api<AgentWorkspace>,
    name: String,
}

/// A running fake; ends when dropped.
pub struct FakeAgent {
    /// Its address: loopback, different for each test.
    pub ip: String,
    drains: Arc<Mutex<Vec<Drained>>>,
    busy: Arc<AtomicBool>,
    questions: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl FakeAgent {
    /// Serves on `127.77.0.<last>:8787` for the pod of a workspace.
    pub async fn start(workspaces: Api<AgentWorkspace>, name: &str, last: u8) -> Self {
        let ip = format!("127.77.0.{last}");
        let drains = Arc::new(Mutex::new(Vec::new()));
        let (busy, questions) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let shared = Shared {
            busy: Arc::clone(&busy),
            questions: Arc::clone(&questions),
            drains: Arc::clone(&drains),
            workspaces,
            name: name.to_owned(),
        };
        let isolation = json!({"kind": "DirectWithLandlockLayer", "network": "Inherit"});
        let router = Router::new()
            .route("/ready", get(async move || Json(json!({"status": "ok", "isolation": isolation}))))
            .route("/api/v1/drain", post(drain))
            .with_state(shared);
        let listener = TcpListener::bind((ip.as_str(), 8787)).await.expect("the address is free");
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { ip, drains, busy, questions, server }
    }

    /// Something runs, or nothing does.
    pub fn works(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    /// How often it was asked whether it may be put to sleep.
    pub fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// The drains that were accepted so far.
    pub fn drains(&self) -> Vec<Drained> {
        self.drains.lock().expect("no panic").clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn drain(State(shared): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    if body.get("ifIdleSeconds").is_some() {
        shared.questions.fetch_add(1, Ordering::SeqCst);
        if shared.busy.load(Ordering::SeqCst) {
            let activity = json!({"busy": true, "reasons": ["turn"], "idleSeconds": 0, "busySeconds": 1, "turns": 1, "processes": 0});
            return (StatusCode::CONFLICT, Json(json!({"error": {"code": "conflict", "activity": activity}})));
        }
    }
    let workspace = shared.workspaces.get(&shared.name).await.expect("the workspace exists");
    let phase = workspace.status.and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    let token = headers.get("authorization").is_some_and(|value| value.as_bytes().starts_with(b"Bearer "));
    shared.drains.lock().expect("no panic").push(Drained { body, token, phase });
    (StatusCode::OK, Json(json!({"state": "draining"})))
}
