//! A double of an agent server: says who it is, shows what it was sent, streams, breaks off, changes its protocol.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// What tests reach into.
pub struct Shared {
    uid: Mutex<String>,
    stopping: AtomicBool,
    /// Paths of requests but probes.
    seen: Mutex<Vec<String>>,
    events: Mutex<Option<mpsc::UnboundedReceiver<Result<Bytes, std::io::Error>>>>,
}

/// A running double; ends when dropped.
pub struct Agent {
    /// Its address: loopback, different for each test.
    pub ip: String,
    shared: Arc<Shared>,
    /// Feeds the one event stream; an error breaks it off.
    pub events: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
    server: JoinHandle<()>,
}

impl Agent {
    /// Serves on `127.78.0.<last>:8787` as the pod with this UID.
    pub async fn start(uid: &str, last: u8) -> Self {
        let ip = format!("127.78.0.{last}");
        let (events, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            uid: Mutex::new(uid.to_owned()),
            stopping: AtomicBool::new(false),
            seen: Mutex::new(Vec::new()),
            events: Mutex::new(Some(receiver)),
        });
        let router = Router::new()
            .route("/health", get(health))
            .route("/ready", get(ready))
            .route("/events", get(stream))
            .route("/socket", get(socket))
            .fallback(any(echo))
            .layer(middleware::from_fn_with_state(Arc::clone(&shared), refuse_while_stopping))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind((ip.as_str(), 8787)).await.expect("the address is free");
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { ip, shared, events, server }
    }

    /// From now on it is another pod.
    pub fn become_pod(&self, uid: &str) {
        uid.clone_into(&mut self.shared.uid.lock().expect("no panic"));
    }

    /// Refuses all but `/health`, as an agent server that drains.
    pub fn stop_serving(&self, stopping: bool) {
        self.shared.stopping.store(stopping, Ordering::SeqCst);
    }

    /// Paths of requests but probes.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().expect("no panic").clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn refuse_while_stopping(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/health" {
        return next.run(request).await;
    }
    if shared.stopping.load(Ordering::SeqCst) {
        let body = Json(json!({"error": {"code": "draining"}}));
        return (StatusCode::SERVICE_UNAVAILABLE, [("x-workspace-state", "stopping")], body).into_response();
    }
    if path != "/ready" {
        shared.seen.lock().expect("no panic").push(path);
    }
    next.run(request).await
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let uid = HeaderValue::try_from(shared.uid.lock().expect("no panic").clone()).expect("a header");
    ([("x-boring-agent-pod", uid)], Json(json!({"status": "ok"}))).into_response()
}

async fn ready() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// What came: method, target, headers, number of bytes.
async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut bytes = 0;
    let mut data = body.into_data_stream();
    while let Some(piece) = data.next().await {
        match piece {
            Ok(piece) => bytes += piece.len(),
            Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        }
    }
    let headers: serde_json::Map<String, Value> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let shown =
        json!({"method": parts.method.as_str(), "target": parts.uri.to_string(), "headers": headers, "bytes": bytes});
    ([("x-turn-id", "turn-1"), ("set-cookie", "theme=dark")], Json(shown)).into_response()
}

/// The events that the test sends, one piece each.
async fn stream(State(shared): State<Arc<Shared>>) -> Response {
    let receiver = shared.events.lock().expect("no panic").take().expect("one stream per double");
    let body = Body::from_stream(UnboundedReceiverStream::new(receiver));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Echoes bytes after the change of protocol.
async fn socket(mut request: Request) -> Result<Response, Infallible> {
    let headers: HeaderMap = request.headers().clone();
    if headers.get("upgrade").is_none_or(|protocol| protocol != "websocket") {
        return Ok((StatusCode::UPGRADE_REQUIRED, "a socket").into_response());
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgraded.await.expect("an upgrade"));
        let mut buffer = [0; 64];
        while let Ok(read @ 1..) = io.read(&mut buffer).await {
            if io.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    let headers = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", "x")];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}
