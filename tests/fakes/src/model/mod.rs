//! The model provider's double: the Anthropic Messages API and OpenAI-compatible chat completions, streaming and not,
//! scripted from the prompt.
//!
//! Owns the routes, the life of a server in a test, and the order of checks of one request. Must know neither product.
//! How to script it stands in `script.rs`; what it demands of a request in `invariants.rs`.

mod answer;
mod blocks;
mod invariants;
mod openai;
mod pieces;
mod prompt;
mod record;
mod script;
mod sign;
mod thinking;
mod usage;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use record::{Counters, Failure, Record, RequestSummary};
pub use script::ScriptError;
pub use wire::ProviderError;

/// The provider's limit of a request body, 32 MB.
const MAX_BODY_BYTES: usize = 32_000_000;
/// How long open streams may go on after a stop was asked.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// The key that the double rejects.
const REJECTED_KEY: &str = "invalid-key";

/// What can be set.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of the context window in estimated tokens; a longer prompt is refused as the provider does.
    pub context_tokens: u64,
    /// Join neighbouring messages of one role before the checks, as the provider does, instead of refusing them. Off by
    /// default: a conversation that was put together with care alternates.
    pub join_roles: bool,
    /// Chat completions need no key, as with a server of one's own.
    pub keyless: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { context_tokens: 200_000, join_roles: false, keyless: false }
    }
}

/// Everything the routes share.
struct Double {
    options: Options,
    record: Arc<Record>,
    cache: usage::PromptCache,
}

/// A double that listens on a free loopback port and stops when dropped.
///
/// Dropping it fails the test when a request broke an invariant and nobody called [`ModelDouble::take_failures`].
pub struct ModelDouble {
    /// Base URL without a trailing slash, such as `http://127.0.0.1:40123`; clients append `/v1/messages` or
    /// `/v1/chat/completions`.
    pub base_url: String,
    record: Arc<Record>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<io::Result<()>>,
}

impl ModelDouble {
    /// Starts on a free port of 127.0.0.1 with the default options.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts on a free port of 127.0.0.1.
    pub async fn start_with(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (router, record) = Self::router(options);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, router, async move {
            // An error means that the double was dropped, which is a stop as well.
            let _ = stopped.await;
        }));
        Ok(Self { base_url: format!("http://{address}"), record, stop: Some(stop), server })
    }

    /// The routes alone, for `tower::ServiceExt::oneshot`, and the record that they write.
    pub fn router(options: Options) -> (Router, Arc<Record>) {
        let record = Arc::new(Record::default());
        let double = Arc::new(Double { options, record: Arc::clone(&record), cache: usage::PromptCache::default() });
        let router = Router::new()
            .route("/v1/messages", post(messages).fallback(wrong_method))
            .route("/v1/chat/completions", post(openai::chat_completions).fallback(wrong_method))
            .route("/healthz", get(|| async { "ok" }))
            .route("/double/failures", get(failures).delete(take_failures))
            .route("/double/requests", get(requests))
            .route("/double/requests/{number}", get(request_body))
            .fallback(unknown_route)
            .with_state(double);
        (router, record)
    }

    /// How many requests came and how they ended.
    pub fn counters(&self) -> Counters {
        self.record.counters()
    }

    /// The broken invariants so far.
    pub fn failures(&self) -> Vec<Failure> {
        self.record.failures()
    }

    /// The broken invariants so far, which are forgotten, so that dropping the double does not fail the test.
    pub fn take_failures(&self) -> Vec<Failure> {
        self.record.take_failures()
    }

    /// Summaries of the newest requests, oldest first.
    pub fn requests(&self) -> Vec<RequestSummary> {
        self.record.requests()
    }

    /// The body of a request by its number (from 1), while it is kept.
    pub fn request_body(&self, number: u64) -> Option<Value> {
        self.record.body(number)
    }
}

impl Drop for ModelDouble {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The server may have ended already.
            let _ = stop.send(());
        }
        self.server.abort();
        let failures = self.record.take_failures();
        if !std::thread::panicking() {
            assert!(failures.is_empty(), "the model double saw broken requests: {failures:#?}");
        }
    }
}

/// Serves until `stop` resolves, then lets open streams go on for at most five seconds.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = oneshot::channel::<()>();
    // Events are small and each counts at once, as with the provider; without this a second one waits 40 ms for the first
    // one's acknowledgement. A socket that refuses is only slower.
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    let graceful = axum::serve(listener, router).with_graceful_shutdown(async move {
        stop.await;
        // The receiver lives as long as the select below.
        let _ = stopping.send(());
    });
    tokio::select! {
        result = graceful.into_future() => result,
        () = async {
            if stopped.await.is_ok() {
                tokio::time::sleep(SHUTDOWN_GRACE).await;
            } else {
                std::future::pending::<()>().await;
            }
        } => Ok(()),
    }
}

/// Binds, so that the caller can print the address before it serves.
pub async fn bind(host: &str, port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn messages(State(double): State<Arc<Double>>, request: Request) -> Response {
    let number = double.record.begin();
    match accept(&double, number, request).await {
        Ok(call) => answer::answer(&double.record, call).await,
        Err(error) => {
            double.record.refuse(number, &error);
            error.into_response()
        }
    }
}

/// All that is checked before the first byte of an answer, in the provider's order: key, headers, size, shape, model.
async fn accept(double: &Double, number: u64, request: Request) -> Result<answer::Call, ProviderError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers)?;
    let bytes = read_body(body).await?;
    let mut body: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ProviderError::violation("json", format!("The request body is not valid JSON: {error}")))?;
    double.record.describe(number, &body);
    double.record.keep_body(number, &body);
    if double.options.join_roles {
        blocks::join_roles(&mut body);
    }
    invariants::check(&body)?;
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    if !(model.starts_with("claude-") || model.starts_with("scripted")) {
        return Err(ProviderError::new(404, format!("model: {model}")));
    }
    let usage = double.cache.measure(&body);
    if usage.prompt() > double.options.context_tokens {
        let (tokens, limit) = (usage.prompt(), double.options.context_tokens);
        return Err(ProviderError::new(400, format!("prompt is too long: {tokens} tokens > {limit} maximum")));
    }
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    let attempt = double.record.attempt(hash);
    let actions = prompt::actions(&body)
        .map_err(|error| ProviderError::violation("model-script", format!("model-script: {error}")))?;
    let actions = script::for_attempt(actions, attempt);
    if let Some(script::Action::Error { status, retry_after, message, .. }) = actions.first() {
        return Err(ProviderError::scripted(*status, message.clone(), *retry_after));
    }
    Ok(answer::Call {
        number,
        nonce: sign::nonce(&hash, attempt),
        stream: body["stream"].as_bool().unwrap_or(false),
        thinking: thinking::enabled(&body),
        thinking_shown: thinking::shown(&body),
        first_tool: body["tools"][0]["name"].as_str().map(str::to_owned),
        model,
        usage,
        actions,
    })
}

async fn read_body(body: Body) -> Result<bytes::Bytes, ProviderError> {
    to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(current) = cause {
            if current.to_string().contains("length limit") {
                return ProviderError::new(413, "Request exceeds the maximum size".to_owned());
            }
            cause = current.source();
        }
        ProviderError::violation("body", format!("The request body could not be read: {error}"))
    })
}

fn check_headers(headers: &HeaderMap) -> Result<(), ProviderError> {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match value("x-api-key") {
        "" => return Err(ProviderError::violation_with("x-api-key", 401, "x-api-key header is required".to_owned())),
        REJECTED_KEY => return Err(ProviderError::new(401, "invalid x-api-key".to_owned())),
        _ => {}
    }
    match value("anthropic-version") {
        "2023-06-01" => {}
        "" => return Err(ProviderError::violation("version", "anthropic-version: header is required".to_owned())),
        other => {
            let message = format!("anthropic-version: \"{other}\" is not a valid version");
            return Err(ProviderError::violation("version", message));
        }
    }
    let media_type = value("content-type").split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type != "application/json" {
        return Err(ProviderError::violation("content-type", "content-type: must be application/json".to_owned()));
    }
    Ok(())
}

async fn wrong_method() -> ProviderError {
    ProviderError::new(405, "Method Not Allowed".to_owned())
}

async fn unknown_route(State(double): State<Arc<Double>>, request: Request) -> ProviderError {
    let message = format!("Not Found: {} {}", request.method(), request.uri().path());
    let error = ProviderError::violation_with("route", 404, message);
    let number = double.record.begin();
    double.record.refuse(number, &error);
    error
}

async fn failures(State(double): State<Arc<Double>>) -> Json<Value> {
    Json(json!({ "failures": double.record.failures() }))
}

async fn take_failures(State(double): State<Arc<Double>>) -> Json<Value> {
    Json(json!({ "failures": double.record.take_failures() }))
}

async fn requests(State(double): State<Arc<Double>>) -> Json<Value> {
    Json(json!({ "counters": double.record.counters(), "requests": double.record.requests() }))
}

async fn request_body(State(double): State<Arc<Double>>, Path(number): Path<u64>) -> Response {
    match double.record.body(number) {
        Some(body) => Json(body).into_response(),
        None => (StatusCode::NOT_FOUND, Json(json!({ "error": "this body is not kept" }))).into_response(),
    }
}
