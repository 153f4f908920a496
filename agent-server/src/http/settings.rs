//! `/api/v1/workspace-settings`: settings that travel with the workspace, in its file `.boring/settings`.
//!
//! Owns the file's form. It belongs to the user: keys that are not known here stay as they are, and a damaged file is
//! an error, never a reason to begin anew.

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::JsonBody;
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::workspace::{Precondition, Workspace, WorkspaceError, WorkspacePath, WriteOptions};

const FILE: &str = ".boring/settings";
/// Bytes of the file at most: a few settings of a few bytes.
const MAX_FILE: u64 = 256 * 1024;
/// Tries when somebody else writes the file at the same time.
const MAX_TRIES: usize = 5;
/// The field in faults.
const IMAGE_FIELD: &str = "settings.markdown.imageUploadDir";

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(read_settings, write_settings))
}

/// Body and answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettingsBody {
    /// The settings.
    settings: Settings,
}

/// Settings of the workspace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Of Markdown documents.
    markdown: MarkdownSettings,
}

/// Settings of Markdown documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MarkdownSettings {
    /// Folder of uploaded images, relative to the workspace.
    image_upload_dir: String,
}

impl SettingsBody {
    fn new(image_folder: &WorkspacePath) -> Self {
        let markdown = MarkdownSettings { image_upload_dir: image_folder.as_str().into() };
        Self { settings: Settings { markdown } }
    }
}

/// The settings in effect.
#[utoipa::path(get, path = "/api/v1/workspace-settings", tag = "files",
    responses((status = 200, body = SettingsBody), (status = 409, body = ErrorBody)))]
async fn read_settings(State(app): State<AppState>) -> ApiResult<Json<SettingsBody>> {
    Ok(Json(SettingsBody::new(&image_folder(&app).await?)))
}

/// Changes the settings in the file; its other keys stay.
#[utoipa::path(put, path = "/api/v1/workspace-settings", tag = "files", request_body = SettingsBody,
    responses((status = 200, body = SettingsBody), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn write_settings(
    State(app): State<AppState>,
    JsonBody(body): JsonBody<SettingsBody>,
) -> ApiResult<Json<SettingsBody>> {
    let folder = parse_folder(&body.settings.markdown.image_upload_dir)
        .map_err(|message| ApiError::new(Code::InvalidPath, message).with_field(IMAGE_FIELD))?;
    for _ in 0..MAX_TRIES {
        let (mut file, etag) = read_file(&*app.workspace).await?;
        let markdown = file.entry("markdown").or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(markdown) = markdown else { return Err(damaged("`markdown` is not an object")) };
        markdown.insert("imageUploadDir".into(), folder.as_str().into());
        let text = serde_json::to_string_pretty(&file).map_err(ApiError::internal)? + "\n";
        let precondition = Precondition { absent: etag.is_none(), etag, mtime_ms: None };
        let options = WriteOptions { create_dirs: true, precondition };
        match app.workspace.write(&path()?, Bytes::from(text), options).await {
            Ok(_) => return Ok(Json(SettingsBody::new(&folder))),
            Err(WorkspaceError::Conflict { .. } | WorkspaceError::AlreadyExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::new(Code::Conflict, format!("{FILE}: is written by others all the time")))
}

/// Folder of uploaded images: what the workspace's own file says, else what is configured.
pub async fn image_folder(app: &AppState) -> ApiResult<WorkspacePath> {
    let default_folder = || WorkspacePath::parse(&app.config.settings.image_upload_dir).map_err(ApiError::from);
    let (file, _) = read_file(&*app.workspace).await?;
    let Some(markdown) = file.get("markdown") else { return default_folder() };
    let Value::Object(markdown) = markdown else { return Err(damaged("`markdown` is not an object")) };
    match markdown.get("imageUploadDir") {
        None => default_folder(),
        Some(Value::String(text)) => parse_folder(text).map_err(|fault| damaged(&format!("`imageUploadDir`: {fault}"))),
        Some(_) => Err(damaged("`imageUploadDir` is not a text")),
    }
}

fn path() -> ApiResult<WorkspacePath> {
    WorkspacePath::parse(FILE).map_err(ApiError::from)
}

fn parse_folder(text: &str) -> Result<WorkspacePath, String> {
    let path = WorkspacePath::parse(text).map_err(|error| error.to_string())?;
    if path.as_str().split('/').any(|name| name == ".git") {
        return Err("is inside `.git`".into());
    }
    Ok(path)
}

/// The file's object and validator; nothing when there is no file.
async fn read_file(workspace: &dyn Workspace) -> ApiResult<(Map<String, Value>, Option<String>)> {
    match workspace.read(&path()?, MAX_FILE).await {
        Ok((stat, bytes)) => match serde_json::from_slice(&bytes) {
            Ok(Value::Object(file)) => Ok((file, stat.etag)),
            Ok(_) => Err(damaged("is not a JSON object")),
            Err(error) => Err(damaged(&error.to_string())),
        },
        Err(WorkspaceError::NotFound(_)) => Ok((Map::new(), None)),
        Err(error) => Err(error.into()),
    }
}

fn damaged(fault: &str) -> ApiError {
    ApiError::new(Code::Conflict, format!("{FILE}: {fault}; repair or remove the file"))
}
