//! `/api/v1/files/move` and `/api/v1/dirs`: renaming and making directories.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::JsonBody;
use super::error::ApiResult;
use super::files::{Done, path_of};
use super::openapi::ErrorBody;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(move_file)).routes(routes!(make_dir))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    /// Present path.
    from: String,
    /// New path.
    to: String,
    /// Replace an existing target.
    #[serde(default)]
    #[schema(required = false)]
    overwrite: bool,
}

/// Renames a file, link or directory. Without `overwrite` an existing target is refused in the same step.
#[utoipa::path(post, path = "/api/v1/files/move", tag = "files", request_body = MoveBody, responses(
    (status = 200, body = Done), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn move_file(State(app): State<AppState>, JsonBody(body): JsonBody<MoveBody>) -> ApiResult<Json<Done>> {
    let (from, to) = (path_of("from", &body.from)?, path_of("to", &body.to)?);
    app.workspace.rename(&from, &to, body.overwrite).await?;
    Ok(Done::OK)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DirBody {
    /// Directory to make.
    path: String,
    /// Also its parents; an existing one is fine.
    #[serde(default)]
    #[schema(required = false)]
    recursive: bool,
}

/// Makes a directory.
#[utoipa::path(post, path = "/api/v1/dirs", tag = "files", request_body = DirBody, responses(
    (status = 200, body = Done), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn make_dir(State(app): State<AppState>, JsonBody(body): JsonBody<DirBody>) -> ApiResult<Json<Done>> {
    let path = path_of("path", &body.path)?;
    app.workspace.make_dir(&path, body.recursive).await?;
    Ok(Done::OK)
}
