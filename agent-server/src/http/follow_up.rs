//! Follow-ups: user messages that wait for the end of the running turn.
//!
//! Owns the route. Must not know how they wait.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{JsonBody, Path, Query};
use super::chat::user_message;
use super::error::{ApiError, ApiResult};
use super::openapi::ErrorBody;
use crate::session::follow_up::FollowUpState;
use crate::session::ids;
use crate::session::queue::FollowUp;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(queue, waiting, cancel))
}

/// Body of a follow-up.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FollowUpRequest {
    /// A text or a UI message.
    #[schema(value_type = Object)]
    message: Value,
    /// The client's name of it, chosen once: a repeated request changes nothing.
    client_nonce: String,
    /// Its place: smaller ones run first, equal ones in order of arrival. Behind all that wait when absent.
    #[schema(required = false)]
    client_seq: Option<u64>,
}

/// What became of a follow-up.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FollowUpAnswer {
    client_nonce: String,
    /// `queued`, `begun` or `cancelled`.
    status: &'static str,
    /// Its turn, once it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<String>,
}

/// Queues a message for after the running turn; begins it at once when none runs. 202 says that it is stored.
#[utoipa::path(post, path = "/api/v1/agent/chat/{session_id}/followup", tag = "chat", request_body = FollowUpRequest,
    params(("session_id" = String, Path)),
    responses((status = 202, body = FollowUpAnswer), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn queue(
    State(app): State<AppState>,
    Path(session_id): Path<String>,
    JsonBody(request): JsonBody<FollowUpRequest>,
) -> ApiResult<(StatusCode, Json<FollowUpAnswer>)> {
    if !ids::is_session_id(&session_id) {
        return Err(id_fault("id"));
    }
    let client_nonce = check_nonce(request.client_nonce)?;
    let follow_up = FollowUp {
        session_id,
        message: user_message(request.message, Vec::new())?,
        client_nonce: client_nonce.clone(),
        client_seq: request.client_seq,
    };
    let (status, turn_id) = match app.sessions.follow_up(follow_up).await? {
        FollowUpState::Queued => ("queued", None),
        FollowUpState::Cancelled => ("cancelled", None),
        FollowUpState::Begun { turn_id } => ("begun", Some(turn_id)),
    };
    Ok((StatusCode::ACCEPTED, Json(FollowUpAnswer { client_nonce, status, turn_id })))
}

fn check_nonce(nonce: String) -> ApiResult<String> {
    if ids::is_session_id(&nonce) { Ok(nonce) } else { Err(id_fault("clientNonce")) }
}

fn id_fault(field: &'static str) -> ApiError {
    ApiError::invalid_field(field, format!("1 to {} characters of A-Z, a-z, 0-9, _ and -", ids::MAX_ID))
}

/// The follow-ups that wait.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Waiting {
    /// The next one first.
    follow_ups: Vec<WaitingFollowUp>,
}

/// One that waits.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WaitingFollowUp {
    client_nonce: String,
    client_seq: u64,
    /// The UI message.
    #[schema(value_type = Object)]
    message: Value,
}

/// The follow-ups that wait, the next one first.
#[utoipa::path(get, path = "/api/v1/agent/chat/{session_id}/followup", tag = "chat", params(("session_id" = String, Path)),
    responses((status = 200, body = Waiting), (status = 404, body = ErrorBody)))]
async fn waiting(State(app): State<AppState>, Path(session_id): Path<String>) -> ApiResult<Json<Waiting>> {
    let waiting = app.sessions.waiting_follow_ups(&session_id).await?;
    let follow_ups = waiting.into_iter().map(|queued| WaitingFollowUp {
        client_nonce: queued.client_nonce,
        client_seq: queued.client_seq,
        message: queued.message,
    });
    Ok(Json(Waiting { follow_ups: follow_ups.collect() }))
}

/// Query of a cancellation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
struct CancelQuery {
    /// This one, also before it has come; all that wait when absent.
    client_nonce: Option<String>,
}

/// Cancels follow-ups; 204 also when there is nothing to cancel, 409 with `turnId` when the named one has begun.
#[utoipa::path(delete, path = "/api/v1/agent/chat/{session_id}/followup", tag = "chat",
    params(CancelQuery, ("session_id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn cancel(
    State(app): State<AppState>,
    Path(session_id): Path<String>,
    Query(query): Query<CancelQuery>,
) -> ApiResult<StatusCode> {
    let nonce = query.client_nonce.map(check_nonce).transpose()?;
    app.sessions.cancel_follow_ups(&session_id, nonce).await?;
    Ok(StatusCode::NO_CONTENT)
}
