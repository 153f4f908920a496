//! `/api/v1/ui/…`: the bridge to the user interface.
//!
//! Owns its JSON shapes. The rules are the bridge's.

use axum::Json;
use axum::extract::State;
use axum::http::header::ETAG;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{JsonBody, Query};
use super::error::{ApiError, ApiResult, Code};
use super::events;
use super::files::{header, if_match, not_modified};
use super::gate;
use super::openapi::ErrorBody;
use crate::ui_bridge::{CausedBy, MAX_STATE, UiBridgeError};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(ui_state, put_ui_state))
        .routes(routes!(latest_ui_state))
        .routes(routes!(post_command))
        .routes(routes!(next_commands))
}

/// The state of the user interface.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StateAnswer {
    /// As the interface told it; null before the first time.
    state: Option<Map<String, Value>>,
    /// Who changed it last.
    caused_by: Option<CausedBy>,
}

/// What the user interface shows, as it told last.
#[utoipa::path(get, path = "/api/v1/ui/state", tag = "ui",
    responses((status = 200, body = StateAnswer), (status = 304, description = "unchanged")))]
async fn ui_state(State(app): State<AppState>, headers: HeaderMap) -> Response {
    state_answer(&app, &headers)
}

/// The same for clients that ask again and again.
#[utoipa::path(get, path = "/api/v1/ui/state/latest", tag = "ui",
    responses((status = 200, body = StateAnswer), (status = 304, description = "unchanged")))]
async fn latest_ui_state(State(app): State<AppState>, headers: HeaderMap) -> Response {
    state_answer(&app, &headers)
}

fn state_answer(app: &AppState, headers: &HeaderMap) -> Response {
    let Some(state) = app.ui_bridge.state() else {
        return Json(StateAnswer { state: None, caused_by: None }).into_response();
    };
    let tag = [(ETAG, header(&state.etag))];
    if not_modified(headers, &state.etag) {
        return (StatusCode::NOT_MODIFIED, tag).into_response();
    }
    (tag, Json(StateAnswer { state: Some(state.value), caused_by: Some(state.caused_by) })).into_response()
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StateBody {
    /// The whole new state, at most 1 MiB.
    state: Map<String, Value>,
    /// Who changed it. `restore` is no use of the workspace.
    caused_by: CausedBy,
}

/// Answer of a new state.
#[derive(Debug, Serialize, ToSchema)]
struct StateWritten {
    /// Always true.
    ok: bool,
    /// Validator of the state.
    etag: String,
}

/// Replaces the state; with `If-Match` only the one that was read.
#[utoipa::path(put, path = "/api/v1/ui/state", tag = "ui", request_body = StateBody, responses(
    (status = 200, body = StateWritten), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody)))]
async fn put_ui_state(
    State(app): State<AppState>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<StateBody>,
) -> ApiResult<Response> {
    // The gate cannot tell a restored page from a user by the route alone.
    let _use = if body.caused_by == CausedBy::Restore || gate::is_background(&headers) {
        None
    } else {
        Some(app.activity.begin_request().map_err(|_| gate::draining())?)
    };
    let expected = if_match(&headers)?;
    let bridge = app.ui_bridge.clone();
    let set = move || bridge.set_state(body.state, body.caused_by, expected.as_deref());
    let state = tokio::task::spawn_blocking(set).await.map_err(ApiError::internal)??;
    Ok(([(ETAG, header(&state.etag))], Json(StateWritten { ok: true, etag: state.etag })).into_response())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CommandBody {
    /// One of the kinds that `exec_ui` lists in `GET /api/v1/agent/catalog`.
    kind: String,
    /// Its parameters.
    #[serde(default)]
    #[schema(required = false, value_type = Object)]
    params: Value,
}

/// Answer of a command.
#[derive(Debug, Serialize, ToSchema)]
struct CommandAnswer {
    /// Number of the command; of one that was refused the number of the last one that was not.
    seq: u64,
    /// `ok`: handed on. `error`: refused, nothing was handed on.
    status: &'static str,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CommandFault>,
}

/// Why a command was refused.
#[derive(Debug, Serialize, ToSchema)]
struct CommandFault {
    /// Stable word.
    code: &'static str,
    /// For people and models.
    message: String,
}

/// Gives a command to every user interface.
#[utoipa::path(post, path = "/api/v1/ui/commands", tag = "ui", request_body = CommandBody, responses(
    (status = 200, body = CommandAnswer), (status = 400, body = ErrorBody)))]
async fn post_command(
    State(app): State<AppState>,
    JsonBody(body): JsonBody<CommandBody>,
) -> ApiResult<Json<CommandAnswer>> {
    let bridge = app.ui_bridge.clone();
    let post = move || bridge.post(&body.kind, body.params);
    Ok(Json(match tokio::task::spawn_blocking(post).await.map_err(ApiError::internal)?? {
        Ok(seq) => CommandAnswer { seq, status: "ok", error: None },
        Err(error) => {
            let error = CommandFault { code: error.code, message: error.message };
            CommandAnswer { seq: app.ui_bridge.last(), status: "error", error: Some(error) }
        }
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct NextQuery {
    /// Answer at once with what there is, as JSON, instead of a stream.
    #[serde(default)]
    #[param(required = false)]
    poll: bool,
    /// With `poll`: only commands after this number. Without it those that no interface was given yet.
    #[param(required = false)]
    after: Option<u64>,
}

/// A command as an interface gets it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandEvent {
    /// Version of this form.
    v: u8,
    /// Number.
    seq: u64,
    /// Kind.
    kind: String,
    /// Parameters.
    #[schema(value_type = Object)]
    params: Value,
}

impl CommandEvent {
    /// The form of a command.
    pub fn new(seq: u64, command: crate::ui_bridge::Command) -> Self {
        Self { v: 1, seq, kind: command.kind, params: command.params }
    }
}

/// Answer with `poll`.
#[derive(Debug, Serialize, ToSchema)]
struct CommandsAnswer {
    /// Oldest first.
    commands: Vec<CommandEvent>,
    /// Commands after `after` are not kept any more; read the state anew and go on after `seq`.
    resync: bool,
    /// Number to go on after.
    seq: u64,
}

/// Commands as events (`command`, id = number; `resync` when some were missed), or with `poll=true` as a list.
#[utoipa::path(get, path = "/api/v1/ui/commands/next", tag = "ui",
    params(NextQuery, ("Last-Event-ID" = Option<String>, Header, description = "number of the last command seen")),
    responses((status = 200, description = "Server-Sent Events; JSON with poll", content(
        (CommandEvent = "text/event-stream"), (CommandsAnswer = "application/json")))))]
async fn next_commands(State(app): State<AppState>, Query(query): Query<NextQuery>, headers: HeaderMap) -> Response {
    if !query.poll {
        return events::commands(&app, &headers);
    }
    let after = query.after.unwrap_or_else(|| app.ui_bridge.undelivered());
    let answer = match app.ui_bridge.after(after) {
        Ok(commands) => {
            let seq = commands.last().map_or(after, |(number, _)| *number);
            let commands = commands.into_iter().map(|(number, command)| CommandEvent::new(number, command)).collect();
            CommandsAnswer { commands, resync: false, seq }
        }
        Err(_) => CommandsAnswer { commands: vec![], resync: true, seq: app.ui_bridge.last() },
    };
    Json(answer).into_response()
}

impl From<UiBridgeError> for ApiError {
    fn from(error: UiBridgeError) -> Self {
        use std::io::ErrorKind;

        let message = error.to_string();
        match error {
            UiBridgeError::TooLarge => {
                Self::new(Code::PayloadTooLarge, message).with_field("state").with_extra("limit", MAX_STATE)
            }
            UiBridgeError::Conflict { current } => {
                Self::new(Code::Conflict, message).with_extra("currentEtag", current)
            }
            UiBridgeError::Storage(error) => match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::new(Code::StorageFull, message),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    Self::new(Code::VolumeNotWritable, message)
                }
                _ => Self::internal(message),
            },
        }
    }
}
