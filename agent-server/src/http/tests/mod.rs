//! Tests of the router without a socket: one application over a fresh folder, requests by `oneshot`.

mod browser;
mod chat;
mod events;
mod files;
mod follow_up;
mod gate;
mod lifecycle;
mod listing;
mod raw;
mod readers;
mod sessions;
mod settings;
mod ui;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::{App, AppState, router};
use crate::activity::Activity;
use crate::auth::Authenticator;
use crate::config::{Arguments, Surroundings, resolve};
use crate::readiness::{ModelKey, Readiness};
use crate::sandbox::{ExecEvent, ExecRequest, Isolation, IsolationKind, Network, Sandbox, SandboxError};
use crate::session::tests::Script;
use crate::shutdown::Shutdown;
use crate::telemetry::Metrics;
use crate::ui_bridge::UiBridge;
use crate::workspace::{LocalWorkspace, Workspace};

/// The static token of the application under test.
const TOKEN: &str = "test-token";

/// Refuses every command: these tests are about files and the gate.
struct NoCommands;

#[async_trait::async_trait]
impl Sandbox for NoCommands {
    fn isolation(&self) -> Isolation {
        Isolation {
            kind: IsolationKind::None,
            network: Network::Inherit,
            probes: vec!["no commands in this test".into()],
        }
    }

    async fn exec(&self, _request: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError> {
        Err(SandboxError::Unavailable("no commands in this test".into()))
    }

    fn running(&self) -> usize {
        0
    }

    async fn stop_all(&self) {}
}

/// An application over a fresh folder.
pub struct Place {
    dir: tempfile::TempDir,
    pub app: AppState,
    /// What the model says.
    pub script: Arc<Script>,
    router: Router,
}

/// A whole answer.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON, not {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    /// Status and code of an error, whose shape is checked on the way.
    pub fn error(&self) -> (u16, String) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("an error, not {body}"));
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert!(!body.to_string().contains("/tmp"), "no host path: {body}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        (self.status.as_u16(), error["code"].as_str().expect("a code").to_string())
    }
}

impl Place {
    pub fn new() -> Self {
        Self::with(Arguments::default())
    }

    pub fn with(arguments: Arguments) -> Self {
        let dir = tempfile::tempdir().expect("folder");
        std::fs::create_dir(dir.path().join("work")).expect("folder");
        std::fs::write(dir.path().join("token"), TOKEN).expect("written");
        let text = |path: PathBuf| Some(path.to_str().expect("text").to_string());
        let arguments = Arguments {
            workspace_root: text(dir.path().join("work")),
            state_dir: text(dir.path().join("state")),
            token_file: text(dir.path().join("token")),
            ..arguments
        };
        let config = Arc::new(resolve(&arguments, &Surroundings::default()).expect("valid"));
        let readiness = Readiness::new();
        readiness.set_model_key(ModelKey::Accepted);
        readiness.set_started();
        let workspace = LocalWorkspace::open(&config.workspace_root, "/workspace").expect("opened");
        let workspace: Arc<dyn Workspace> = Arc::new(workspace);
        let quiesce = crate::quiesce::Quiesce::new(workspace.clone(), Box::new(|_no_commands| {}));
        let script = Arc::new(Script::default());
        let activity = Activity::new(|| 0);
        let begin_turn = crate::begin_turn(activity.clone());
        let sessions = crate::session::tests::open(&config.state_dir, &config.workspace_root, &script, begin_turn);
        let app = Arc::new(App {
            sessions,
            ui_bridge: Arc::new(UiBridge::open(config.state_dir.join("ui"), config.ui_kinds.clone()).expect("opened")),
            workspace,
            quiesce,
            mode: crate::config::RuntimeMode::Direct,
            degraded: None,
            sandbox: Arc::new(NoCommands),
            activity,
            readiness: Arc::new(readiness),
            shutdown: Arc::new(Shutdown::default()),
            metrics: Arc::new(Metrics::new()),
            authenticator: Authenticator::new(&config.authentication),
            started_at: Instant::now(),
            config,
        });
        Self { dir, router: router(app.clone()), app, script }
    }

    pub fn file(&self, path: &str) -> PathBuf {
        self.dir.path().join("work").join(path)
    }

    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.file(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, content).expect("written");
    }

    /// Sends a request as it is.
    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("readable").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// A request with token and host.
    pub fn request(method: &str, uri: &str) -> axum::http::request::Builder {
        Request::builder()
            .method(method)
            .uri(uri)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {TOKEN}"))
    }

    pub async fn get(&self, uri: &str) -> Answer {
        self.send(Self::request("GET", uri).body(Body::empty()).expect("request")).await
    }

    pub async fn delete(&self, uri: &str) -> Answer {
        self.send(Self::request("DELETE", uri).body(Body::empty()).expect("request")).await
    }

    pub async fn post(&self, uri: &str, body: Value) -> Answer {
        let request = Self::request("POST", uri).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).expect("request")).await
    }
}

/// `{"ok":true}`.
pub fn ok() -> Value {
    json!({"ok": true})
}
