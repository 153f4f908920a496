//! `/api/v1/quiesce` and `/api/v1/unquiesce`: the operator's pause around a snapshot.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::JsonBody;
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::quiesce::{MAX_PAUSE, QuiesceError};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(quiesce)).routes(routes!(unquiesce))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QuiesceBody {
    /// Seconds after which everything goes on by itself, 1 to 10.
    #[schema(minimum = 1, maximum = 10)]
    max_seconds: u64,
}

/// Answer of both.
#[derive(Debug, Serialize, ToSchema)]
struct QuiesceAnswer {
    /// `quiesced` or `running`.
    state: &'static str,
}

/// Keeps writes of files waiting, stops the processes of commands and syncs the volume. A pause that lasts already is
/// replaced.
#[utoipa::path(post, path = "/api/v1/quiesce", tag = "lifecycle", request_body = QuiesceBody, responses(
    (status = 200, body = QuiesceAnswer), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn quiesce(State(app): State<AppState>, JsonBody(body): JsonBody<QuiesceBody>) -> ApiResult<Json<QuiesceAnswer>> {
    if body.max_seconds == 0 || body.max_seconds > MAX_PAUSE.as_secs() {
        return Err(ApiError::invalid_field("maxSeconds", format!("must be from 1 to {}", MAX_PAUSE.as_secs())));
    }
    app.quiesce.begin(Duration::from_secs(body.max_seconds)).await?;
    Ok(Json(QuiesceAnswer { state: "quiesced" }))
}

/// Ends the pause; without one nothing happens.
#[utoipa::path(post, path = "/api/v1/unquiesce", tag = "lifecycle",
    responses((status = 200, body = QuiesceAnswer)))]
async fn unquiesce(State(app): State<AppState>) -> Json<QuiesceAnswer> {
    app.quiesce.end().await;
    Json(QuiesceAnswer { state: "running" })
}

impl From<QuiesceError> for ApiError {
    fn from(error: QuiesceError) -> Self {
        match error {
            QuiesceError::TooSlow => Self::new(Code::Conflict, error.to_string()),
            QuiesceError::NotSynced(error) => error.into(),
        }
    }
}
