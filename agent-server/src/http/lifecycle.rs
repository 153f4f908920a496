//! The operator's calls: activity, drain and the notice of one.
//!
//! Owns their shapes. The decision is `activity`'s.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::JsonBody;
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use super::{App, AppState};
use crate::activity::{ActivityReport, DrainRequest, MAX_DRAIN_SECONDS};
use crate::harness::chunk::NoticeLevel;
use crate::session::notice::Notice;
use crate::shutdown::{CLOSE_BUDGET, Closing, turn_grace};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(activity)).routes(routes!(drain)).routes(routes!(drain_notice))
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

/// Body of a drain notice.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DrainNotice {
    /// Until the stop, at most a day.
    seconds: u64,
}

/// Tells everybody who watches that the workspace is about to be stopped. Changes nothing by itself.
#[utoipa::path(post, path = "/api/v1/drain-notice", tag = "lifecycle", request_body = DrainNotice,
    responses((status = 204), (status = 400, body = ErrorBody)))]
async fn drain_notice(
    State(app): State<AppState>,
    JsonBody(DrainNotice { seconds }): JsonBody<DrainNotice>,
) -> ApiResult<StatusCode> {
    if seconds > MAX_DRAIN_SECONDS {
        return Err(ApiError::invalid_field("seconds", format!("more than {MAX_DRAIN_SECONDS} s, a day")));
    }
    let text = format!("This workspace is about to be stopped, in {seconds} s. Using it keeps it running.");
    app.sessions.notice(Notice { level: NoticeLevel::Warn, text, stop_in_seconds: Some(seconds) });
    Ok(StatusCode::NO_CONTENT)
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
