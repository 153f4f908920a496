//! What answers before the server is put together: the public routes, and 503 `provisioning` for everything else.
//!
//! Owns that router. It knows no workspace and no token yet, so it can be there a few milliseconds after the start.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::routing::get;

use super::error::{ApiError, Code};
use super::health::{follow, health_answer, ready_answer};
use crate::readiness::Readiness;

/// Seconds after which a client should ask again.
const RETRY_SECONDS: u64 = 1;

/// The router until the parts are put together.
pub fn router(pod_uid: Option<String>, started_at: Instant, readiness: Arc<Readiness>) -> Router {
    let followed = readiness.clone();
    Router::new()
        .route("/health", get(move || async move { health_answer(pod_uid.as_deref(), started_at) }))
        .route("/ready", get(move || async move { ready_answer(readiness.facts().judge()) }))
        .route("/api/v1/ready-status", get(move || async move { follow(followed.subscribe(), None) }))
        .fallback(provisioning)
        .method_not_allowed_fallback(provisioning)
}

async fn provisioning() -> ApiError {
    ApiError::new(Code::Provisioning, "the server is starting").with_retry_after(RETRY_SECONDS)
}
