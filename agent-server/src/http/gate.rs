//! What happens to every request before and after its handler, in this order: request id, access, drain, activity,
//! handler (a panic becomes a 500), security headers, metrics.
//!
//! Owns that order and the list of requests that do not count as use. Must not know what handlers do.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, IF_MATCH, ORIGIN, RANGE,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;

use super::auth::{self, Access};
use super::error::{ApiError, Code, Defect};
use super::{App, AppState};
use crate::activity::WorkGuard;
use crate::telemetry::{RequestLabels, Route, RouteLabels};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const BACKGROUND: HeaderName = HeaderName::from_static("x-workspace-background");
/// The place in an event stream that a client resumes after.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Longest request id taken over from a caller.
const MAX_REQUEST_ID: usize = 128;
/// Seconds a client should wait for a draining workspace to be gone or back.
const DRAINING_RETRY_SECONDS: u64 = 5;

/// The middleware around every route.
pub async fn gate(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route: Arc<str> = match request.extensions().get::<MatchedPath>() {
        Some(path) => path.as_str().into(),
        None => "unmatched".into(),
    };
    let method = method_label(request.method());
    let id = request_id(request.headers());
    let mut response = match admit(&app, &route, &request) {
        Err(error) => error.into_response(),
        Ok(guard) => {
            // Held until the response head is made; streams report their own progress.
            let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            drop(guard);
            response.unwrap_or_else(|_| ApiError::internal("a handler panicked").into_response())
        }
    };
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        let detail = response.extensions_mut().remove::<Defect>().map(|defect| defect.0);
        tracing::error!(id = ?id, method, route = &*route, detail, "answered with an internal error");
    }
    finish_headers(response.headers_mut(), id);
    let labels = RequestLabels { route: Route(route.clone()), method, status: response.status().as_u16() };
    app.metrics.requests.get_or_create(&labels).inc();
    let seconds = started.elapsed().as_secs_f64();
    app.metrics.request_seconds.get_or_create(&RouteLabels { route: labels.route }).observe(seconds);
    response
}

/// Access, drain and activity. The guard, if any, counts the request as use.
fn admit(app: &App, route: &str, request: &Request) -> Result<Option<WorkGuard>, ApiError> {
    let access = auth::access(route);
    single_headers(request.headers())?;
    auth::check(app, access, request.method(), request.headers())?;
    // Probes and the operator's own calls are answered while draining, and are never use.
    if matches!(access, Access::Public | Access::Lifecycle) {
        return Ok(None);
    }
    if counts_as_use(route, request.headers()) {
        return app.activity.begin_request().map(Some).map_err(|_| draining());
    }
    if app.activity.draining() { Err(draining()) } else { Ok(None) }
}

/// Headers of which two would mean two different requests, depending on who reads them.
const SINGLE: [HeaderName; 9] =
    [HOST, ORIGIN, AUTHORIZATION, CONTENT_TYPE, CONTENT_LENGTH, IF_MATCH, RANGE, LAST_EVENT_ID, BACKGROUND];

fn single_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    match SINGLE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        None => Ok(()),
        Some(name) => Err(ApiError::invalid_field(name.as_str(), "is given more than once")),
    }
}

/// The answer to new work while the workspace is being stopped.
pub fn draining() -> ApiError {
    ApiError::new(Code::Draining, "the workspace is being stopped")
        .with_retry_after(DRAINING_RETRY_SECONDS)
        .with_header(HeaderName::from_static("x-workspace-state"), HeaderValue::from_static("stopping"))
}

/// The same list as in the contract with the operator: readers that wait for events keep nothing awake.
fn counts_as_use(route: &str, headers: &HeaderMap) -> bool {
    let background = matches!(
        route,
        "/metrics"
            | "/api/v1/runtime"
            | "/api/v1/fs/events"
            | "/api/v1/events"
            | "/api/v1/ui/state"
            | "/api/v1/ui/state/latest"
            | "/api/v1/ui/commands/next"
    );
    // `PUT /api/v1/ui/state` is told apart by its body, so its handler has to take a guard itself.
    !background && !is_background(headers)
}

/// Whether a request says itself that it is no use: a reader that comes back, or work that nobody waits for.
pub fn is_background(headers: &HeaderMap) -> bool {
    headers.contains_key(LAST_EVENT_ID) || headers.get(BACKGROUND).is_some_and(|value| value.as_bytes() == b"1")
}

/// The caller's id if it is short and printable, else a new one: 16 random digits of this process and a count.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let sound = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_REQUEST_ID && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(sound).cloned().unwrap_or_else(|| {
        let id = format!("{:016x}{:016x}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed));
        HeaderValue::try_from(id).expect("hexadecimal digits are a header value")
    })
}

fn finish_headers(headers: &mut HeaderMap, id: HeaderValue) {
    headers.insert(REQUEST_ID, id);
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    let html = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let policy = HeaderName::from_static("content-security-policy");
    if html && !headers.contains_key(&policy) {
        headers.insert(policy, HeaderValue::from_static("sandbox; default-src 'none'"));
    }
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "OTHER",
    }
}
