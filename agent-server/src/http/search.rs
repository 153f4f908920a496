//! `/api/v1/files/search` and `/api/v1/files/grep`: names and contents.
//!
//! Owns the JSON shapes of results.

use axum::Json;
use axum::extract::State;
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
use super::tree::limit_of;
use crate::workspace::{GrepRequest, WalkRequest, WorkspaceError, WorkspacePath};

/// Paths of one answer: default and most, about 1 MiB of JSON.
const SEARCH_LIMIT: (usize, usize) = (200, 10_000);
/// Lines of one answer: default and most, at 500 characters each about 10 MiB.
const GREP_LIMIT: (usize, usize) = (200, 5_000);
/// Words of one search: each is looked for in every path.
const MAX_WORDS: usize = 16;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(grep))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// A glob when it holds `*`, `?`, `[` or `{`; else words that the path must hold, upper and lower case alike.
    q: String,
    /// Results, 1 to 10,000; 200 when absent.
    #[param(required = false, minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
    /// Also ignored files and names that begin with a dot.
    #[serde(default)]
    #[param(required = false)]
    hidden: bool,
}

/// Answer of a search by name.
#[derive(Debug, Serialize, ToSchema)]
struct SearchAnswer {
    /// Paths of files and links.
    results: Vec<String>,
    /// More were found, or a bound of the walk was met.
    truncated: bool,
}

/// Finds files by name. Ignore rules are respected; `.git` is never searched.
#[utoipa::path(get, path = "/api/v1/files/search", tag = "files", params(SearchQuery), responses(
    (status = 200, body = SearchAnswer), (status = 400, body = ErrorBody)))]
async fn search(State(app): State<AppState>, Query(query): Query<SearchQuery>) -> ApiResult<Json<SearchAnswer>> {
    let limit = limit_of(query.limit, SEARCH_LIMIT.0, SEARCH_LIMIT.1)?;
    let mut request = WalkRequest {
        include_ignored: query.hidden,
        include_hidden: query.hidden,
        without_directories: true,
        ..WalkRequest::new(WorkspacePath::root(), limit)
    };
    if query.q.contains(['*', '?', '[', '{']) {
        request.glob = Some(query.q);
    } else {
        request.words = query.q.split_whitespace().map(str::to_string).collect();
        if request.words.is_empty() || request.words.len() > MAX_WORDS {
            return Err(ApiError::invalid_field("q", format!("needs a glob or 1 to {MAX_WORDS} words")));
        }
    }
    let found = app.workspace.walk(request, CancellationToken::new()).await.map_err(|error| pattern(error, "q"))?;
    let results = found.items.into_iter().map(|entry| entry.path.as_str().to_string()).collect();
    Ok(Json(SearchAnswer { results, truncated: found.truncated }))
}

fn pattern(error: WorkspaceError, field: &str) -> ApiError {
    let is_pattern = matches!(error, WorkspaceError::Pattern(_));
    let error = ApiError::from(error);
    if is_pattern { error.with_field(field) } else { error }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
struct GrepQuery {
    /// Text, or a regular expression with `regex`.
    q: String,
    /// File or directory to search.
    #[param(required = false)]
    path: Option<String>,
    /// Only files that match this glob.
    #[param(required = false)]
    glob: Option<String>,
    /// Upper and lower case alike.
    #[serde(default)]
    #[param(required = false)]
    ignore_case: bool,
    /// Take `q` as a regular expression.
    #[serde(default)]
    #[param(required = false)]
    regex: bool,
    /// Lines, 1 to 5,000; 200 when absent.
    #[param(required = false, minimum = 1, maximum = 5_000)]
    limit: Option<usize>,
}

/// A line that matched.
#[derive(Debug, Serialize, ToSchema)]
struct GrepMatch {
    /// File.
    path: String,
    /// Number, from 1.
    line: u64,
    /// Text, at most 500 characters and then `…`.
    text: String,
}

/// Answer of a search in contents.
#[derive(Debug, Serialize, ToSchema)]
struct GrepAnswer {
    /// In order of paths.
    matches: Vec<GrepMatch>,
    /// More were found, or a bound of the search was met.
    truncated: bool,
}

/// Finds lines. Ignore rules are respected; binary files and `.git` are never searched.
#[utoipa::path(get, path = "/api/v1/files/grep", tag = "files", params(GrepQuery), responses(
    (status = 200, body = GrepAnswer), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn grep(State(app): State<AppState>, Query(query): Query<GrepQuery>) -> ApiResult<Json<GrepAnswer>> {
    if query.q.is_empty() {
        return Err(ApiError::invalid_field("q", "is empty"));
    }
    let request = GrepRequest {
        path: path_of("path", query.path.as_deref().unwrap_or("."))?,
        pattern: query.q,
        literal: !query.regex,
        ignore_case: query.ignore_case,
        glob: query.glob,
        context: 0,
        limit: limit_of(query.limit, GREP_LIMIT.0, GREP_LIMIT.1)?,
    };
    let found = app.workspace.grep(request, CancellationToken::new()).await.map_err(|error| pattern(error, "q"))?;
    let matches = found
        .items
        .into_iter()
        .map(|line| GrepMatch { path: line.path.as_str().to_string(), line: line.line, text: line.text })
        .collect();
    Ok(Json(GrepAnswer { matches, truncated: found.truncated }))
}
