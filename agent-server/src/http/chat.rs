//! Chat: start a turn, stop it, read its history. The exact stream is described in `docs/chat.md`.
//!
//! Owns the routes and the mapping of session errors. Must not know how turns run or are stored.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{self, MAX_BODY, Path, Query};
use super::chat_body::{self, ChatBody};
use super::chat_stream;
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::harness::AbortReason;
use crate::llm::{KeyState, ThinkingLevel};
use crate::session::error::SessionError;
use crate::session::history::Window;
use crate::session::ids;
use crate::session::submit::{Choice, Submission, Trigger};
use crate::session::user_message::UserMessage;

/// Longest text that a chat appends to the system prompt.
const MAX_SYSTEM_PROMPT: usize = 64 * 1024;
/// Seconds after which a draining workspace or a rejected key may be worth another try.
const DRAINING_RETRY_SECONDS: u64 = 5;
const KEY_RETRY_SECONDS: u64 = 30;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(chat)).routes(routes!(stop)).routes(routes!(messages, put_messages))
}

/// Starts a turn and streams it. Standard UI message chunks; the last is `finish`, `abort` or `error`, then `[DONE]`.
#[utoipa::path(post, path = "/api/v1/agent/chat", tag = "chat", request_body = ChatRequest, responses(
    (status = 200, content_type = "text/event-stream", body = String),
    (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 423, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
async fn chat(State(app): State<AppState>, request: Request) -> ApiResult<Response> {
    let (parts, body) = request.into_parts();
    let submission = submission(&app, chat_body::read(&parts.headers, body).await?)?;
    let turn = app.sessions.submit(submission).await?;
    Ok(chat_stream::of_turn(&app, &turn.log, 0))
}

/// Body of a chat, for the document; applications may add members.
#[derive(ToSchema)]
#[schema(as = ChatRequest)]
#[allow(dead_code, reason = "read by its own parser; this is its description")]
#[serde(rename_all = "camelCase")]
struct ChatRequest {
    /// Session; `sessionId` means the same.
    id: String,
    /// UI messages; only the last counts, and it must be a user message.
    messages: Option<Vec<Object>>,
    /// One user message instead: a text or a UI message.
    message: Option<Object>,
    /// `submit-message` or `regenerate-message`.
    trigger: Option<String>,
    /// On a submit: the user message that is replaced.
    message_id: Option<String>,
    /// `{provider, id}` or a model id.
    model: Option<Object>,
    /// `off`, `low`, `medium` or `high`.
    thinking_level: Option<String>,
    /// More file parts for the message.
    attachments: Option<Vec<Object>>,
    /// Appended to the system prompt for this turn.
    system_prompt: Option<String>,
}

/// Any JSON value, for the document.
#[derive(Serialize, ToSchema)]
struct Object {}

fn submission(app: &AppState, chat: ChatBody) -> ApiResult<Submission> {
    let session_id = chat.session_id.unwrap_or_default();
    if !ids::is_session_id(&session_id) {
        let text = format!("a session id has 1 to {} characters of A-Z, a-z, 0-9, _ and -", ids::MAX_ID);
        return Err(ApiError::invalid_field("id", text));
    }
    let Some(message) = chat.message else {
        return Err(ApiError::invalid_field("message", "`message` or a list `messages` with a message is needed"));
    };
    let message = user_message(message, chat.attachments)?;
    let trigger = match chat.trigger.as_deref() {
        None | Some("submit-message") => Trigger::Submit,
        Some("regenerate-message") => Trigger::Regenerate,
        Some(_) => return Err(ApiError::invalid_field("trigger", "`submit-message` or `regenerate-message`")),
    };
    let system_prompt = chat.system_prompt.filter(|text| !text.trim().is_empty());
    if system_prompt.as_ref().is_some_and(|text| text.len() > MAX_SYSTEM_PROMPT) {
        return Err(ApiError::invalid_field("systemPrompt", format!("more than {MAX_SYSTEM_PROMPT} bytes")));
    }
    Ok(Submission {
        session_id,
        message,
        trigger,
        replaces: chat.message_id.filter(|_| trigger == Trigger::Submit),
        choice: Choice::Named { model: model(app, chat.model)?, thinking: thinking(chat.thinking_level)? },
        system_prompt,
    })
}

/// A message that is a text or a UI message.
pub(super) fn user_message(message: Value, attachments: Vec<Value>) -> ApiResult<UserMessage> {
    Ok(match message {
        Value::String(text) if attachments.is_empty() => UserMessage::text(text)?,
        Value::String(text) => {
            let message = json!({"role": "user", "parts": [{"type": "text", "text": text}]});
            UserMessage::parse(message, file_parts(attachments))?
        }
        message => UserMessage::parse(message, file_parts(attachments))?,
    })
}

fn thinking(level: Option<Value>) -> ApiResult<ThinkingLevel> {
    match level {
        None | Some(Value::Null) => Ok(ThinkingLevel::Off),
        Some(level) => serde_json::from_value(level)
            .map_err(|_| ApiError::invalid_field("thinkingLevel", "`off`, `low`, `medium` or `high`")),
    }
}

/// Attachments are file parts that stand beside the message.
fn file_parts(attachments: Vec<Value>) -> Vec<Value> {
    attachments
        .into_iter()
        .map(|mut attachment| {
            if let Value::Object(part) = &mut attachment {
                part.insert("type".into(), json!("file"));
            }
            attachment
        })
        .collect()
}

fn model(app: &AppState, model: Option<Value>) -> ApiResult<Option<String>> {
    let fault = |text: String| Err(ApiError::invalid_field("model", text));
    match model {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if !id.is_empty() && id.len() <= ids::MAX_ID => Ok(Some(id)),
        Some(Value::Object(model)) => {
            let provider = app.sessions.harness().provider();
            if model.get("provider").is_some_and(|asked| asked != provider) {
                return fault(format!("only models of {provider} are configured"));
            }
            match model.get("id").and_then(Value::as_str) {
                Some(id) if !id.is_empty() && id.len() <= ids::MAX_ID => Ok(Some(id.to_owned())),
                _ => fault("`{provider, id}` is needed".into()),
            }
        }
        Some(_) => fault("`{provider, id}` is needed".into()),
    }
}

/// Body of a stop; other members are ignored.
#[derive(Deserialize, Default, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct StopRequest {
    /// Only this turn.
    #[schema(required = false)]
    turn_id: Option<String>,
}

/// Stops the running turn and answers when it has ended; 204 also when nothing runs.
#[utoipa::path(post, path = "/api/v1/agent/chat/{session_id}/stop", tag = "chat", request_body = StopRequest,
    params(("session_id" = String, Path)), responses((status = 204)))]
async fn stop(State(app): State<AppState>, Path(session_id): Path<String>, request: Request) -> ApiResult<StatusCode> {
    let (parts, body) = request.into_parts();
    let bytes: Bytes = body::collect(&parts.headers, body, MAX_BODY).await?;
    let request: StopRequest = if bytes.is_empty() { StopRequest::default() } else { body::parse_json(&bytes)? };
    app.sessions.stop(&session_id, request.turn_id.as_deref(), AbortReason::User).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Query of the history.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct MessagesQuery {
    /// `1`: with the message of the running turn as far as it is.
    partial: Option<String>,
    /// At most this many, the newest.
    limit: Option<usize>,
    /// Only messages before this one.
    before: Option<String>,
}

/// Answer of the history.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Messages {
    /// UI messages, oldest first.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    /// Whether there are older ones.
    has_more: bool,
}

/// The messages as clients assembled them.
#[utoipa::path(get, path = "/api/v1/agent/chat/{session_id}/messages", tag = "chat",
    params(MessagesQuery, ("session_id" = String, Path)),
    responses((status = 200, body = Messages), (status = 404, body = ErrorBody)))]
async fn messages(
    State(app): State<AppState>,
    Path(session_id): Path<String>,
    Query(query): Query<MessagesQuery>,
) -> ApiResult<axum::Json<Messages>> {
    let partial = query.partial.is_some_and(|partial| partial == "1" || partial == "true");
    let window = Window { before: query.before, limit: query.limit };
    let page = app.sessions.page(&session_id, partial, window).await?;
    let page = page.ok_or_else(|| ApiError::invalid_field("before", "this session has no such message"))?;
    Ok(axum::Json(Messages { messages: page.messages, has_more: page.has_more }))
}

/// Accepts a client's own snapshot. The server keeps its own history, so nothing of it is stored.
#[utoipa::path(put, path = "/api/v1/agent/chat/{session_id}/messages", tag = "chat",
    params(("session_id" = String, Path)), request_body(content = Object),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn put_messages(
    State(app): State<AppState>,
    Path(session_id): Path<String>,
    body: Body,
) -> ApiResult<StatusCode> {
    app.sessions.summary(&session_id).await?;
    drain(body).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a body to its end without keeping it.
async fn drain(body: Body) -> ApiResult<()> {
    use futures::StreamExt as _;
    let mut stream = Box::pin(body::stream(body));
    let mut size = 0;
    while let Some(piece) = stream.next().await {
        size += piece.map_err(|_| ApiError::new(Code::ValidationError, "the body broke off"))?.len();
        if size > chat_body::MAX_CHAT_BODY {
            return Err(body::too_large(chat_body::MAX_CHAT_BODY));
        }
    }
    Ok(())
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::Invalid { field, .. } => Self::invalid_field(field, message),
            SessionError::NotFound(_) => Self::new(Code::NotFound, message),
            SessionError::AlreadyExists { turn_id: Some(turn_id), .. } => {
                Self::new(Code::AlreadyExists, message).with_extra("turnId", turn_id)
            }
            SessionError::AlreadyExists { turn_id: None, .. } => Self::new(Code::AlreadyExists, message),
            SessionError::TurnInProgress { turn_id } => {
                Self::new(Code::TurnInProgress, message).with_extra("turnId", turn_id)
            }
            SessionError::FollowUpBegun { turn_id } => Self::new(Code::Conflict, message).with_extra("turnId", turn_id),
            SessionError::QueueFull(_) => Self::new(Code::RateLimited, message),
            SessionError::Locked(_) => Self::new(Code::SessionLocked, message),
            SessionError::ModelUnavailable(KeyState::Rejected) => {
                Self::new(Code::ModelUnavailable, message).with_retry_after(KEY_RETRY_SECONDS)
            }
            SessionError::ModelUnavailable(_) => Self::new(Code::ModelUnavailable, message),
            SessionError::Draining => Self::new(Code::Draining, message).with_retry_after(DRAINING_RETRY_SECONDS),
            SessionError::NotWritable => Self::new(Code::VolumeNotWritable, message),
            SessionError::StorageFull => Self::new(Code::StorageFull, message),
            SessionError::Storage(detail) => Self::internal(detail),
        }
    }
}
