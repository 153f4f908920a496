//! `/api/v1/files`: reading, writing and deleting one file as JSON.
//!
//! Owns the JSON shapes of a file's content. The rules of files are the workspace's.

use std::borrow::Cow;

use axum::Json;
use axum::extract::State;
use axum::http::header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{JsonBody, MAX_BODY, Query};
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::workspace::{Precondition, WorkspaceError, WorkspacePath, WriteOptions, Written};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(read_file, write_file, delete_file))
}

/// Parses the path of a query or body; the fault names the field.
pub fn path_of(field: &str, text: &str) -> ApiResult<WorkspacePath> {
    WorkspacePath::parse(text).map_err(|error| ApiError::from(error).with_field(field))
}

/// How a file's bytes stand in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As text.
    #[default]
    Utf8,
    /// As standard base64.
    Base64,
}

/// Query of `GET /files`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ReadQuery {
    /// File.
    path: String,
    /// How to return the bytes.
    #[serde(default)]
    #[param(required = false)]
    encoding: Encoding,
}

/// Content of a file.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FileContent<'a> {
    /// Text or base64.
    content: Cow<'a, str>,
    /// How `content` is written.
    encoding: Encoding,
    /// Modification time, milliseconds since the Unix epoch.
    mtime_ms: i64,
    /// Size in bytes.
    size: u64,
    /// Validator for `If-Match`, `If-None-Match` and `expectedEtag`.
    etag: &'a str,
}

/// Reads a file, at most 16 MiB; larger ones are for `/files/raw`.
#[utoipa::path(get, path = "/api/v1/files", tag = "files", params(ReadQuery), responses(
    (status = 200, body = FileContent), (status = 304, description = "unchanged"),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 415, body = ErrorBody)))]
async fn read_file(
    State(app): State<AppState>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let path = path_of("path", &query.path)?;
    let (stat, bytes) = app.workspace.read(&path, MAX_BODY as u64).await?;
    let etag = stat.etag.unwrap_or_default();
    if not_modified(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, header(&etag))]).into_response());
    }
    let content = match query.encoding {
        Encoding::Utf8 => Cow::Borrowed(as_text(&bytes, &path)?),
        Encoding::Base64 => Cow::Owned(STANDARD.encode(&bytes)),
    };
    let answer =
        FileContent { content, encoding: query.encoding, mtime_ms: stat.mtime_ms, size: stat.size, etag: &etag };
    Ok(([(ETAG, header(&etag))], Json(answer)).into_response())
}

/// Text without NUL; anything else would come back changed when it is saved.
fn as_text<'a>(bytes: &'a Bytes, path: &WorkspacePath) -> ApiResult<&'a str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(ApiError::new(
            Code::UnsupportedMediaType,
            format!("{path}: is a binary file; ask with encoding=base64 or use /api/v1/files/raw"),
        )
        .with_extra("size", bytes.len())
        .with_extra("type", media_type(path.name()))),
    }
}

/// Media type by name.
pub fn media_type(name: &str) -> String {
    mime_guess::from_path(name).first_or_octet_stream().essence_str().to_string()
}

/// An `ETag` as header value; ours are always ASCII.
pub fn header(etag: &str) -> HeaderValue {
    HeaderValue::from_str(etag).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether `If-None-Match` names the validator.
pub fn not_modified(headers: &HeaderMap, etag: &str) -> bool {
    let Some(value) = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()) else { return false };
    value.split(',').map(str::trim).any(|item| item == "*" || item.strip_prefix("W/").unwrap_or(item) == etag)
}

/// The precondition of `If-Match`, at most one validator or `*`.
pub fn if_match(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = value.to_str().map(str::trim).unwrap_or_default();
    let quoted =
        text.len() >= 2 && text.starts_with('"') && text.ends_with('"') && !text[1..text.len() - 1].contains('"');
    if text == "*" || quoted {
        return Ok(Some(text.to_string()));
    }
    Err(ApiError::invalid_field("If-Match", "needs one strong validator in quotes, or `*`"))
}

/// Whether `If-None-Match: *` asks for a new file. A list of validators has no use in a write, and a precondition is
/// never passed over.
pub fn must_be_absent(headers: &HeaderMap) -> ApiResult<bool> {
    match headers.get(IF_NONE_MATCH).map(|value| value.as_bytes().trim_ascii()) {
        None => Ok(false),
        Some(b"*") => Ok(true),
        Some(_) => Err(ApiError::invalid_field("If-None-Match", "a write takes only `*`")),
    }
}

/// Body of `POST /files`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WriteBody {
    /// File.
    path: String,
    /// New content.
    content: String,
    /// How `content` is written.
    #[serde(default)]
    #[schema(required = false)]
    encoding: Encoding,
    /// Write only if the file has this modification time, milliseconds.
    expected_mtime_ms: Option<i64>,
    /// Write only if the file has this validator; the same as `If-Match`.
    expected_etag: Option<String>,
    /// Make missing directories.
    #[serde(default)]
    #[schema(required = false)]
    create_dirs: bool,
}

/// Answer of a write.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteAnswer {
    /// Always true.
    ok: bool,
    /// Modification time after the write, milliseconds.
    mtime_ms: i64,
    /// Validator after the write.
    etag: String,
    /// Size in bytes.
    size: u64,
}

/// The answer to a write, with the `ETag` header.
pub fn written_answer(written: Written) -> Response {
    let tag = header(&written.etag);
    let answer = WriteAnswer { ok: true, mtime_ms: written.mtime_ms, etag: written.etag, size: written.size };
    ([(ETAG, tag)], Json(answer)).into_response()
}

/// Replaces or makes a file atomically; the precondition is checked under the path's lock.
#[utoipa::path(post, path = "/api/v1/files", tag = "files", request_body = WriteBody, responses(
    (status = 200, body = WriteAnswer), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn write_file(
    State(app): State<AppState>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<WriteBody>,
) -> ApiResult<Response> {
    let path = path_of("path", &body.path)?;
    let content = match body.encoding {
        Encoding::Utf8 => Bytes::from(body.content),
        Encoding::Base64 => decode_base64("content", &body.content)?,
    };
    let etag = match (body.expected_etag, if_match(&headers)?) {
        (Some(expected), Some(matched)) if expected != matched => {
            return Err(ApiError::invalid_field("expectedEtag", "differs from the If-Match header"));
        }
        (expected, matched) => expected.or(matched),
    };
    let options = WriteOptions {
        create_dirs: body.create_dirs,
        precondition: Precondition { mtime_ms: body.expected_mtime_ms, etag, absent: must_be_absent(&headers)? },
    };
    Ok(written_answer(app.workspace.write(&path, content, options).await?))
}

/// Decodes standard base64, padded or not.
pub fn decode_base64(field: &str, text: &str) -> ApiResult<Bytes> {
    let lenient = base64::engine::GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        base64::engine::GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    );
    let decoded = lenient.decode(text).map_err(|_| ApiError::invalid_field(field, "is not base64"))?;
    Ok(decoded.into())
}

/// Query of `DELETE /files`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DeleteQuery {
    /// File, link or directory.
    path: String,
    /// Also what is in the directory.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
}

/// Answer of a change without a value.
#[derive(Debug, Serialize, ToSchema)]
pub struct Done {
    /// Always true.
    ok: bool,
}

impl Done {
    /// The answer.
    pub const OK: Json<Self> = Json(Self { ok: true });
}

/// Deletes a file, a link (never its target) or a directory. The root is refused.
#[utoipa::path(delete, path = "/api/v1/files", tag = "files", params(DeleteQuery), responses(
    (status = 200, body = Done), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn delete_file(State(app): State<AppState>, Query(query): Query<DeleteQuery>) -> ApiResult<Json<Done>> {
    let path = path_of("path", &query.path)?;
    app.workspace.remove(&path, query.recursive).await?;
    Ok(Done::OK)
}

/// The error of an upload: a client that stalls is told so, everything else is the workspace's.
pub fn upload_error(error: WorkspaceError) -> ApiError {
    match error {
        WorkspaceError::Cancelled => super::body::stalled(),
        error => error.into(),
    }
}

/// Headers of raw content that a browser could run.
pub const CONTENT_SECURITY_POLICY: HeaderName = HeaderName::from_static("content-security-policy");
