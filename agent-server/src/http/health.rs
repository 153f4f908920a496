//! `/health`, `/ready` and `/api/v1/ready-status`: public, cheap, never use.
//!
//! Owns their shapes. Must not decide what ready means; `readiness` does.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::sse::{self, Frame};
use crate::activity::Activity;
use crate::readiness::{Facts, Verdict};
use crate::sandbox::{Isolation, IsolationKind, Network};

/// Seconds after which a client should ask again.
const RETRY_SECONDS: u64 = 2;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(ready)).routes(routes!(ready_status))
}

/// Answer of `GET /health`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    status: &'static str,
    /// Version of the server.
    version: &'static str,
    /// Seconds since the start.
    uptime: u64,
}

/// The process answers.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses((status = 200, body = Health)))]
async fn health(State(app): State<AppState>) -> Response {
    health_answer(app.config.pod_uid.as_deref(), app.started_at)
}

/// The answer of `/health`, also before the server has started in full.
pub fn health_answer(pod_uid: Option<&str>, started_at: Instant) -> Response {
    let answer = Health { status: "ok", version: env!("CARGO_PKG_VERSION"), uptime: started_at.elapsed().as_secs() };
    let mut response = Json(answer).into_response();
    if let Some(uid) = pod_uid.and_then(|uid| HeaderValue::from_str(uid).ok()) {
        response.headers_mut().insert(HeaderName::from_static("x-boring-agent-pod"), uid);
    }
    response
}

/// Answer of `GET /ready`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// `ok`, `degraded` or `unavailable`.
    status: &'static str,
    /// With `degraded`: what does not work; files and history do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'static str>,
    /// With `unavailable`: `VolumeNotWritable`, `SandboxUnavailable`, `Provisioning`, `ProvisioningFailed`, `Draining` or
    /// `Starting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// With `unavailable`: for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// With `unavailable`: seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// What separates commands from the server, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation: Option<ReadyIsolation>,
}

/// What separates commands from the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadyIsolation {
    /// `Bubblewrap`, `Landlock`, `DirectWithLandlockLayer` or `None`.
    #[schema(value_type = String)]
    kind: IsolationKind,
    /// `Inherit` or `Isolated`.
    #[schema(value_type = String)]
    network: Network,
    /// Why the wanted mode cannot be had, where another one serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
}

impl ReadyIsolation {
    fn of(app: &AppState) -> Self {
        let Isolation { kind, network, .. } = app.sandbox.isolation();
        Self { kind, network, degraded: app.degraded.as_ref().map(|(_, reason)| reason.clone()) }
    }
}

/// Whether requests should be sent here.
#[utoipa::path(get, path = "/ready", tag = "health", security(()),
    responses((status = 200, body = Ready), (status = 503, body = Ready)))]
async fn ready(State(app): State<AppState>) -> Response {
    ready_answer(verdict(&app.readiness.facts(), app.activity.draining()), Some(ReadyIsolation::of(&app)))
}

/// The answer of `/ready`.
pub fn ready_answer(verdict: Verdict, isolation: Option<ReadyIsolation>) -> Response {
    let mut answer = Ready { status: "ok", reasons: vec![], reason: None, message: None, retry_after: None, isolation };
    match verdict {
        Verdict::Ready => Json(answer).into_response(),
        Verdict::Degraded(reasons) => {
            answer.status = "degraded";
            answer.reasons = reasons;
            Json(answer).into_response()
        }
        Verdict::Unavailable(reason, message) => {
            answer.status = "unavailable";
            answer.reason = Some(reason);
            answer.message = Some(message);
            answer.retry_after = Some(RETRY_SECONDS);
            let headers = [(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS))];
            (StatusCode::SERVICE_UNAVAILABLE, headers, Json(answer)).into_response()
        }
    }
}

fn verdict(facts: &Facts, draining: bool) -> Verdict {
    if draining {
        return Verdict::Unavailable("Draining", "the workspace is being stopped".into());
    }
    facts.judge()
}

/// Payload of `event: status`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadyStatus {
    /// `ready`, `degraded`, or the reason word in lower case: `starting`, `volumenotwritable`, …
    state: String,
    /// Commands can run.
    sandbox_ready: bool,
    /// Chat can be had.
    harness_ready: bool,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Milliseconds since the Unix epoch.
    timestamp: u64,
}

/// Readiness as events, until ready (or degraded, or draining).
#[utoipa::path(get, path = "/api/v1/ready-status", tag = "health", security(()),
    responses((status = 200, body = ReadyStatus, content_type = "text/event-stream")))]
async fn ready_status(State(app): State<AppState>) -> Response {
    let facts = app.readiness.subscribe();
    follow(facts, Some(app.activity.clone()))
}

/// The events of `/api/v1/ready-status`. Without an activity nothing can drain yet, and the stream ends when the facts
/// do.
pub fn follow(facts: watch::Receiver<Facts>, activity: Option<Arc<Activity>>) -> Response {
    struct Follow {
        facts: watch::Receiver<Facts>,
        activity: Option<Arc<Activity>>,
        sent: u64,
        over: bool,
    }
    let follow = Follow { facts, activity, sent: 0, over: false };
    sse::response(stream::unfold(follow, |mut follow| async move {
        if follow.over {
            return None;
        }
        if follow.sent > 0 {
            let drain = async {
                match &follow.activity {
                    Some(activity) => activity.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = follow.facts.changed() => changed.ok()?,
                () = drain => {}
            }
        }
        let facts = follow.facts.borrow_and_update().clone();
        let draining = follow.activity.as_ref().is_some_and(|activity| activity.draining());
        let (status, over) = status(&facts, draining);
        follow.over = over;
        follow.sent += 1;
        let data = serde_json::to_string(&status).unwrap_or_default();
        Some((Frame::event("status", data).with_id(follow.sent.to_string()), follow))
    }))
}

/// The event, and whether it is the last.
fn status(facts: &Facts, draining: bool) -> (ReadyStatus, bool) {
    let (state, message, over) = match verdict(facts, draining) {
        Verdict::Ready => ("ready".to_string(), None, true),
        Verdict::Degraded(reasons) => ("degraded".to_string(), Some(reasons.join(", ")), true),
        Verdict::Unavailable(reason, message) => (reason.to_ascii_lowercase(), Some(message), reason == "Draining"),
    };
    let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let status = ReadyStatus {
        harness_ready: state == "ready",
        sandbox_ready: facts.started && facts.sandbox_failure.is_none(),
        state,
        message,
        timestamp: u64::try_from(timestamp).unwrap_or(u64::MAX),
    };
    (status, over)
}
