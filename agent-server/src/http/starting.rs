//! What answers before the server is put together: the public routes, and 503 `provisioning` for everything else.
//!
//! Owns that router. It knows no workspace and no token yet, so it can be there a few milliseconds after the start.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::routing::get;

use super::error::{ApiError, Code};
use super::health::{follow, health_answer, ready_answer};
use crate::readiness::{Readiness, Verdict};

/// Seconds after which a client should ask again.
const RETRY_SECONDS: u64 = 1;

/// The router until the parts are put together.
pub fn router(pod_uid: Option<String>, started_at: Instant, readiness: Arc<Readiness>) -> Router {
    let (followed, told) = (readiness.clone(), readiness.clone());
    let provisioning = move || async move { provisioning(told.facts().judge()) };
    Router::new()
        .route("/health", get(move || async move { health_answer(pod_uid.as_deref(), started_at) }))
        .route("/ready", get(move || async move { ready_answer(readiness.facts().judge(), None) }))
        .route("/api/v1/ready-status", get(move || async move { follow(followed.subscribe(), None) }))
        .fallback(provisioning.clone())
        .method_not_allowed_fallback(provisioning)
}

/// What keeps the server from being ready, in words.
fn provisioning(verdict: Verdict) -> ApiError {
    let message = match verdict {
        Verdict::Unavailable("Provisioning", step) => format!("the workspace is being prepared: {step}"),
        Verdict::Unavailable(_, message) => message,
        Verdict::Ready | Verdict::Degraded(_) => "the server is starting".into(),
    };
    ApiError::new(Code::Provisioning, message).with_retry_after(RETRY_SECONDS)
}
