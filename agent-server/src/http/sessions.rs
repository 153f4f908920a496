//! Sessions, attachments, models and the catalog of tools. Owns those routes; must not know how sessions are stored.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, ETAG};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{JsonBody, Path, Query};
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::llm::KeyState;
use crate::session::index::Record;
use crate::session::{export, ids};

/// Sessions of one page when the query names no number, and at most.
const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 200;
/// Longest title a client may give, in bytes; it is shortened to 80 characters.
const MAX_TITLE: usize = 1_000;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(detail, rename, delete))
        .routes(routes!(fork))
        .routes(routes!(changes))
        .routes(routes!(transcript))
        .routes(routes!(system_prompt))
        .routes(routes!(attachment))
        .routes(routes!(models))
        .routes(routes!(catalog))
}

/// What lists show of a session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Summary {
    id: String,
    title: String,
    created_at: String,
    updated_at: String,
    /// The same as `updatedAt`.
    last_modified: String,
    turn_count: u64,
    message_count: u64,
    /// `idle` or `running`.
    status: &'static str,
    /// Token counts and price over all turns.
    #[schema(value_type = UsageTotal)]
    usage: crate::harness::chunk::StepUsage,
}

/// Token counts and price, for the document.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "describes another type")]
struct UsageTotal {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    /// US dollars; absent when a model without a known price was used.
    cost_usd: Option<f64>,
}

fn summary(app: &AppState, record: Record) -> Summary {
    let status = if app.sessions.active(&record.id).is_some() { "running" } else { "idle" };
    Summary {
        status,
        title: record.title,
        created_at: record.created_at,
        last_modified: record.updated_at.clone(),
        updated_at: record.updated_at,
        turn_count: record.turn_count,
        message_count: record.message_count,
        usage: record.usage,
        id: record.id,
    }
}

/// Query of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// 1 to 200; default 50.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
    /// Only sessions whose title or id holds this, in any case.
    q: Option<String>,
}

/// A page of sessions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Page {
    sessions: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Sessions, newest change first.
#[utoipa::path(get, path = "/api/v1/agent/sessions", tag = "sessions", params(ListQuery),
    responses((status = 200, body = Page), (status = 400, body = ErrorBody)))]
async fn list(State(app): State<AppState>, Query(query): Query<ListQuery>) -> ApiResult<Json<Page>> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::invalid_field("limit", format!("1 to {MAX_PAGE}")));
    }
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let after = after.map(|(time, id)| (time.to_owned(), id.to_owned()));
    let words = query.q.unwrap_or_default().to_lowercase();
    let wanted = move |record: &Record| {
        after.as_ref().is_none_or(|(time, id)| (&record.updated_at, &record.id) < (time, id))
            && (words.is_empty()
                || record.title.to_lowercase().contains(&words)
                || record.id.to_lowercase().contains(&words))
    };
    // One more tells whether there is another page.
    let mut records = app.sessions.list(limit + 1, wanted).await?;
    let more = records.len() > limit;
    records.truncate(limit);
    let next_cursor = records.last().filter(|_| more).map(|last| format!("{}~{}", last.updated_at, last.id));
    Ok(Json(Page { sessions: records.into_iter().map(|record| summary(&app, record)).collect(), next_cursor }))
}

fn parse_cursor(cursor: &str) -> ApiResult<(&str, &str)> {
    cursor
        .split_once('~')
        .filter(|(time, id)| ids::milliseconds(time) > 0 && ids::is_session_id(id))
        .ok_or_else(|| ApiError::invalid_field("cursor", "not a cursor of this list"))
}

/// Body of a creation.
#[derive(Deserialize, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CreateRequest {
    /// Chosen by the client; made by the server when absent.
    #[schema(required = false)]
    id: Option<String>,
    /// Else the first line of the first message.
    #[schema(required = false)]
    title: Option<String>,
}

/// Makes an empty session.
#[utoipa::path(post, path = "/api/v1/agent/sessions", tag = "sessions", request_body = CreateRequest,
    responses((status = 201, body = Summary), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn create(
    State(app): State<AppState>,
    JsonBody(request): JsonBody<CreateRequest>,
) -> ApiResult<(StatusCode, Json<Summary>)> {
    let title = request.title.as_deref().map(check_title).transpose()?;
    let record = app.sessions.create(request.id, title).await?;
    Ok((StatusCode::CREATED, Json(summary(&app, record))))
}

fn check_title(title: &str) -> ApiResult<String> {
    let one_line = title.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.is_empty() || title.len() > MAX_TITLE {
        return Err(ApiError::invalid_field("title", format!("1 to {MAX_TITLE} bytes of text")));
    }
    Ok(one_line)
}

/// One session.
#[utoipa::path(get, path = "/api/v1/agent/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = Summary), (status = 404, body = ErrorBody)))]
async fn detail(State(app): State<AppState>, Path(id): Path<String>) -> ApiResult<Json<Summary>> {
    let record = app.sessions.summary(&id).await?;
    Ok(Json(summary(&app, record)))
}

/// Body of a change.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RenameRequest {
    /// New title.
    title: String,
}

/// Names a session.
#[utoipa::path(patch, path = "/api/v1/agent/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    request_body = RenameRequest,
    responses((status = 200, body = Summary), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn rename(
    State(app): State<AppState>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<RenameRequest>,
) -> ApiResult<Json<Summary>> {
    let record = app.sessions.rename(&id, check_title(&request.title)?).await?;
    Ok(Json(summary(&app, record)))
}

/// Deletes a session with everything that belongs to it; a running turn is stopped first.
#[utoipa::path(delete, path = "/api/v1/agent/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn delete(State(app): State<AppState>, Path(id): Path<String>) -> ApiResult<StatusCode> {
    app.sessions.delete(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Body of a fork.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForkRequest {
    /// The last message of the new session, of the user or of the agent; the newest one when absent.
    #[schema(required = false)]
    message_id: Option<String>,
}

/// Makes a session that holds this one up to a message.
#[utoipa::path(post, path = "/api/v1/agent/sessions/{id}/fork", tag = "sessions", params(("id" = String, Path)),
    request_body = ForkRequest, responses((status = 201, body = Summary), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn fork(
    State(app): State<AppState>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<ForkRequest>,
) -> ApiResult<(StatusCode, Json<Summary>)> {
    let record = app.sessions.fork(&id, request.message_id).await?;
    Ok((StatusCode::CREATED, Json(summary(&app, record))))
}

/// What the session's tools did to files, oldest first.
#[utoipa::path(get, path = "/api/v1/agent/sessions/{id}/changes", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = Changes), (status = 404, body = ErrorBody)))]
async fn changes(State(app): State<AppState>, Path(id): Path<String>) -> ApiResult<Json<Changes>> {
    let mut files = app.sessions.read(&id, export::changes).await?;
    if let Some(turn) = app.sessions.active(&id) {
        files.extend(export::changes_in(&turn.message(), &ids::now()));
    }
    Ok(Json(Changes { files }))
}

/// Answer of the changes: `{op, path, oldPath?, size?, timestamp}` each.
#[derive(Serialize, ToSchema)]
struct Changes {
    #[schema(value_type = Vec<FileChangeRecord>)]
    files: Vec<Value>,
}

/// One change, for the document.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "describes a JSON value")]
struct FileChangeRecord {
    /// `write`, `unlink`, `rename` or `mkdir`.
    op: String,
    path: String,
    old_path: Option<String>,
    size: Option<u64>,
    timestamp: String,
}

/// Query of the transcript.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct TranscriptQuery {
    /// `md` (default), `json` or `jsonl`.
    format: Option<String>,
}

/// The whole conversation as a document; `jsonl` is the session file itself.
#[utoipa::path(get, path = "/api/v1/agent/sessions/{id}/transcript", tag = "sessions",
    params(TranscriptQuery, ("id" = String, Path)),
    responses((status = 200, content_type = "text/markdown", body = String), (status = 404, body = ErrorBody)))]
async fn transcript(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<TranscriptQuery>,
) -> ApiResult<Response> {
    let record = app.sessions.summary(&id).await?;
    let (kind, extension, text) = match query.format.as_deref().unwrap_or("md") {
        "md" => {
            let messages = app.sessions.messages(&id, false).await?;
            ("text/markdown; charset=utf-8", "md", export::markdown(&record.title, &messages).into_bytes())
        }
        "json" => {
            let messages = app.sessions.messages(&id, false).await?;
            let document =
                json!({"id": id, "title": record.title, "createdAt": record.created_at, "messages": messages});
            ("application/json", "json", document.to_string().into_bytes())
        }
        "jsonl" => ("application/x-ndjson", "jsonl", app.sessions.raw(&id).await?),
        _ => return Err(ApiError::invalid_field("format", "`md`, `json` or `jsonl`")),
    };
    let name = format!("attachment; filename=\"{id}.{extension}\"");
    Ok(([(CONTENT_TYPE, kind), (CONTENT_DISPOSITION, name.as_str())], text).into_response())
}

/// The system prompt as the next turn would get it.
#[utoipa::path(get, path = "/api/v1/agent/sessions/{id}/system-prompt", tag = "sessions",
    params(("id" = String, Path)),
    responses((status = 200, body = SystemPrompt), (status = 404, body = ErrorBody)))]
async fn system_prompt(State(app): State<AppState>, Path(id): Path<String>) -> ApiResult<Json<SystemPrompt>> {
    Ok(Json(SystemPrompt { system_prompt: app.sessions.system_prompt(&id).await? }))
}

/// Answer of the system prompt.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SystemPrompt {
    system_prompt: String,
}

/// A file of a message. The address names the content, so it never changes.
#[utoipa::path(get, path = "/api/v1/agent/attachments/{sha256}", tag = "chat", params(("sha256" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = String), (status = 404, body = ErrorBody)))]
async fn attachment(State(app): State<AppState>, Path(sha256): Path<String>) -> ApiResult<Response> {
    let store = app.sessions.attachments().clone();
    let tag = format!("\"{sha256}\"");
    let found = tokio::task::spawn_blocking(move || store.read(&sha256)).await.map_err(ApiError::internal)?;
    let found = found.map_err(ApiError::internal)?;
    let Some(found) = found else { return Err(ApiError::new(Code::NotFound, "no such attachment")) };
    let headers = [
        (CONTENT_TYPE, found.media_type),
        (CACHE_CONTROL, "private, max-age=31536000, immutable"),
        (ETAG, tag.as_str()),
    ];
    Ok((headers, found.bytes).into_response())
}

/// Models on offer.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Models {
    models: Vec<Model>,
    default_model: ModelName,
}

/// One model.
#[derive(Serialize, ToSchema)]
struct Model {
    provider: String,
    id: String,
    /// For people.
    label: String,
    /// A key is there and was not rejected.
    available: bool,
}

/// Provider and id.
#[derive(Serialize, ToSchema)]
struct ModelName {
    provider: String,
    id: String,
}

/// Configured and known models; no network.
#[utoipa::path(get, path = "/api/v1/agent/models", tag = "chat", responses((status = 200, body = Models)))]
async fn models(State(app): State<AppState>) -> Json<Models> {
    let harness = app.sessions.harness();
    let provider = harness.provider().to_owned();
    let available = harness.key_state() == KeyState::Present;
    let default = app.sessions.default_model().to_owned();
    let models = harness
        .models()
        .offered()
        .into_iter()
        .map(|(id, label)| Model { provider: provider.clone(), id, label, available })
        .collect();
    Json(Models { models, default_model: ModelName { provider, id: default } })
}

/// The tools with their schemas.
#[derive(Serialize, ToSchema)]
struct CatalogAnswer {
    #[schema(value_type = Vec<ToolDescription>)]
    tools: Vec<crate::catalog::ToolDefinition>,
}

/// One tool, for the document.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "describes another type")]
struct ToolDescription {
    name: String,
    description: String,
    /// JSON schema of the arguments.
    #[schema(value_type = std::collections::HashMap<String, String>)]
    input_schema: Value,
}

/// The tools that the model may call.
#[utoipa::path(get, path = "/api/v1/agent/catalog", tag = "chat", responses((status = 200, body = CatalogAnswer)))]
async fn catalog(State(app): State<AppState>) -> Json<CatalogAnswer> {
    Json(CatalogAnswer { tools: app.sessions.harness().tools() })
}
