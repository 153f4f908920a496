//! The operator's calls: activity and drain.
//!
//! Owns their shapes. The decision is `activity`'s.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::JsonBody;
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use super::{App, AppState};
use crate::activity::{ActivityReport, DrainRequest, MAX_DRAIN_SECONDS};
use crate::shutdown::{CLOSE_BUDGET, Closing, turn_grace};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(activity)).routes(routes!(drain))
}

/// What runs, and for how long nothing has.
#[utoipa::path(get, path = "/api/v1/activity", tag = "lifecycle", responses((status = 200, body = ActivityReport)))]
async fn activity(State(app): State<AppState>) -> Json<ActivityReport> {
    Json(app.activity.report())
}

/// Answer of a drain.
#[derive(Debug, Serialize, ToSchema)]
pub struct DrainAnswer {
    /// Always `draining`.
    state: &'static str,
}

/// Refuses new work from now on; with `ifIdleSeconds` only if nothing was used for that long. One atomic decision.
#[utoipa::path(post, path = "/api/v1/drain", tag = "lifecycle", request_body = DrainRequest,
    responses((status = 200, body = DrainAnswer), (status = 409, body = ErrorBody)))]
async fn drain(State(app): State<AppState>, JsonBody(request): JsonBody<DrainRequest>) -> ApiResult<Json<DrainAnswer>> {
    for (field, seconds) in [("holdSeconds", request.hold_seconds), ("graceSeconds", request.grace_seconds)] {
        if seconds.is_some_and(|seconds| seconds > MAX_DRAIN_SECONDS) {
            return Err(ApiError::invalid_field(field, format!("more than {MAX_DRAIN_SECONDS} s, a day")));
        }
    }
    if let Err(report) = app.activity.drain(request) {
        return Err(ApiError::new(Code::Conflict, "the workspace is in use").with_extra("activity", report));
    }
    let grace = request.grace_seconds.map_or_else(|| turn_grace(app.config.stop_grace), Duration::from_secs);
    tracing::info!(?grace, "draining");
    tokio::spawn(async move { close_turns(&app, grace).await });
    Ok(Json(DrainAnswer { state: "draining" }))
}

/// Gives running turns their time, then closes what is left, unless the drain was taken back meanwhile.
pub async fn close_turns(app: &App, grace: Duration) {
    if tokio::time::timeout(grace, app.activity.turns_ended()).await.is_err() {
        tracing::warn!(?grace, "turns still run after their grace");
    }
    if app.activity.draining() {
        let why = if app.activity.is_stopping() { Closing::Shutdown } else { Closing::Drain };
        app.shutdown.close(why, CLOSE_BUDGET).await;
    }
}
