//! `/api/v1/tree` and `/api/v1/stat`: what is there.
//!
//! Owns the JSON shapes of entries and the paging of listings.

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::Query;
use super::error::{ApiError, ApiResult};
use super::files::path_of;
use super::openapi::ErrorBody;
use crate::workspace::{Entry, Kind, WalkPosition, WalkRequest, WorkspacePath};

/// Entries of one answer unless told otherwise.
const DEFAULT_LIMIT: usize = 1000;
/// Entries of one answer at most: about 1.5 MiB of JSON.
const MAX_LIMIT: usize = 10_000;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(tree)).routes(routes!(stat))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct TreeQuery {
    /// Directory.
    #[param(required = false)]
    path: Option<String>,
    /// Also what is below.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
    /// With `recursive`: levels, 1 = direct children.
    #[param(required = false, minimum = 1)]
    depth: Option<usize>,
    /// Entries of this answer, 1 to 10,000; 1,000 when absent.
    #[param(required = false, minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
    /// `nextCursor` of the answer before.
    #[param(required = false)]
    cursor: Option<String>,
    /// With `recursive`: also ignored entries. `.git` is never walked into.
    #[serde(default)]
    #[param(required = false)]
    hidden: bool,
}

/// One entry.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TreeEntry<'a> {
    /// Name.
    name: &'a str,
    /// Path relative to the workspace.
    path: &'a str,
    /// What it is; `other` is a FIFO, socket or device.
    #[schema(value_type = KindWord)]
    kind: Kind,
    /// Size in bytes.
    size: u64,
    /// Modification time, milliseconds since the Unix epoch.
    mtime_ms: i64,
    /// Hidden by an ignore rule, or `.git`; absent when not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    ignored: bool,
}

/// Kinds of entries.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "shown in the document only; the workspace's own enum is what is written")]
enum KindWord {
    /// Directory.
    Dir,
    /// Regular file.
    File,
    /// Symbolic link.
    Symlink,
    /// FIFO, socket or device.
    Other,
}

/// Answer of `GET /tree`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Tree<'a> {
    /// Directories first, then by name; with `recursive` depth first.
    entries: Vec<TreeEntry<'a>>,
    /// Entries were left out.
    truncated: bool,
    /// Where the next answer goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists a directory, or the tree below it.
#[utoipa::path(get, path = "/api/v1/tree", tag = "files", params(TreeQuery), responses(
    (status = 200, body = Tree), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn tree(State(app): State<AppState>, Query(query): Query<TreeQuery>) -> ApiResult<axum::response::Response> {
    let path = path_of("path", query.path.as_deref().unwrap_or("."))?;
    let limit = limit_of(query.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    if query.depth == Some(0) {
        return Err(ApiError::invalid_field("depth", "must be at least 1"));
    }
    let after = query.cursor.as_deref().map(|cursor| parse_cursor(cursor, &path)).transpose()?;
    let (entries, truncated) = if query.recursive {
        let request = WalkRequest {
            include_ignored: query.hidden,
            include_hidden: true,
            max_depth: query.depth,
            after,
            ..WalkRequest::new(path, limit)
        };
        let found = app.workspace.walk(request, CancellationToken::new()).await?;
        (found.items, found.truncated)
    } else {
        page(app.workspace.list(&path).await?, after.as_ref(), limit)
    };
    let next_cursor = if truncated { entries.last().map(cursor_of) } else { None };
    let entries = entries.iter().map(shown).collect();
    Ok(axum::response::IntoResponse::into_response(Json(Tree { entries, truncated, next_cursor })))
}

/// Checks a `limit`.
pub fn limit_of(given: Option<usize>, default: usize, most: usize) -> ApiResult<usize> {
    match given {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(ApiError::invalid_field("limit", format!("must be from 1 to {most}"))),
    }
}

fn shown(entry: &Entry) -> TreeEntry<'_> {
    TreeEntry {
        name: entry.path.name(),
        path: entry.path.as_str(),
        kind: entry.kind,
        size: entry.size,
        mtime_ms: entry.mtime_ms,
        ignored: entry.ignored,
    }
}

/// One page of a whole listing, which is sorted with directories first.
fn page(mut entries: Vec<Entry>, after: Option<&WalkPosition>, limit: usize) -> (Vec<Entry>, bool) {
    if let Some(after) = after {
        let key = |directory: bool, path: &WorkspacePath| (!directory, path.name().to_string());
        let position = key(after.directory, &after.path);
        entries.retain(|entry| key(entry.kind == Kind::Dir, &entry.path) > position);
    }
    let truncated = entries.len() > limit;
    entries.truncate(limit);
    (entries, truncated)
}

/// A cursor is the last entry's kind and path: it stays good when other entries come and go.
fn cursor_of(entry: &Entry) -> String {
    let kind = if entry.kind == Kind::Dir { 'd' } else { 'f' };
    URL_SAFE_NO_PAD.encode(format!("{kind}{}", entry.path))
}

fn parse_cursor(text: &str, start: &WorkspacePath) -> ApiResult<WalkPosition> {
    let fault = || ApiError::invalid_field("cursor", "is not a cursor of this listing");
    let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|_| fault())?;
    let decoded = String::from_utf8(decoded).map_err(|_| fault())?;
    let directory = decoded.starts_with('d');
    let path = decoded.strip_prefix(['d', 'f']).ok_or_else(fault)?;
    let path = WorkspacePath::parse(path).map_err(|_| fault())?;
    let below = start.is_root() || path.as_str().strip_prefix(start.as_str()).is_some_and(|rest| rest.starts_with('/'));
    if below { Ok(WalkPosition { path, directory }) } else { Err(fault()) }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct StatQuery {
    /// Path.
    path: String,
}

/// Answer of `GET /stat`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StatAnswer {
    /// What it is.
    #[schema(value_type = KindWord)]
    kind: Kind,
    /// Size in bytes.
    size: u64,
    /// Modification time, milliseconds since the Unix epoch.
    mtime_ms: i64,
    /// Validator of a regular file.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// Target of a symbolic link, as it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Metadata of one path; a link is not followed.
#[utoipa::path(get, path = "/api/v1/stat", tag = "files", params(StatQuery), responses(
    (status = 200, body = StatAnswer), (status = 404, body = ErrorBody)))]
async fn stat(State(app): State<AppState>, Query(query): Query<StatQuery>) -> ApiResult<Json<StatAnswer>> {
    let stat = app.workspace.stat(&path_of("path", &query.path)?).await?;
    Ok(Json(StatAnswer {
        kind: stat.kind,
        size: stat.size,
        mtime_ms: stat.mtime_ms,
        etag: stat.etag,
        target: stat.target,
    }))
}
