//! `POST /api/v1/files/upload`: an image for a document, under a name that is free.
//!
//! Owns names and types of uploaded images.

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::JsonBody;
use super::error::{ApiError, ApiResult, Code};
use super::files::{decode_base64, path_of};
use super::openapi::ErrorBody;
use crate::workspace::{Workspace, WorkspaceError, WorkspacePath, WriteOptions};

/// Largest image, bytes.
const MAX_IMAGE: usize = 10 * 1024 * 1024;
/// Names tried before giving up: a folder with this many images of one name has other problems.
const MAX_NAMES: usize = 1000;
/// Names that begin so are never listed and never told as changes (`Workspace`'s own temporary files).
const PRIVATE_PREFIX: &str = crate::workspace::TEMPORARY_PREFIX;
/// Bytes of a name without its ending; leaves room for number and ending below the limit of 255.
const MAX_STEM: usize = 200;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(upload))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UploadBody {
    /// Name as the user knows it; cleaned, and numbered when taken.
    filename: String,
    /// The image in base64, 1 byte to 10 MiB.
    content_base64: String,
    /// Media type: PNG, JPEG, GIF, WebP, AVIF or SVG.
    content_type: String,
    /// Folder; the one of the workspace's settings when absent. It is made when missing.
    directory: Option<String>,
    /// Document that will show the image; `markdownUrl` is relative to it.
    source_path: Option<String>,
}

/// Answer of an upload.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct UploadAnswer {
    /// Always true.
    ok: bool,
    /// Path of the image.
    path: String,
    /// Link for Markdown, relative to `sourcePath` or to the root.
    markdown_url: String,
    /// Modification time, milliseconds since the Unix epoch.
    mtime_ms: i64,
}

/// Stores an image; an existing file is never replaced.
#[utoipa::path(post, path = "/api/v1/files/upload", tag = "files", request_body = UploadBody, responses(
    (status = 200, body = UploadAnswer), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody)))]
async fn upload(State(app): State<AppState>, JsonBody(body): JsonBody<UploadBody>) -> ApiResult<Json<UploadAnswer>> {
    let ending = ending(&body.content_type)?;
    let directory = match body.directory.as_deref() {
        Some(text) => path_of("directory", text)?,
        None => super::settings::image_folder(&app).await?,
    };
    let source = body.source_path.as_deref().map(|text| path_of("sourcePath", text)).transpose()?;
    let content = decode_base64("contentBase64", &body.content_base64)?;
    if content.is_empty() {
        return Err(ApiError::invalid_field("contentBase64", "is empty"));
    }
    if content.len() > MAX_IMAGE {
        return Err(ApiError::new(Code::PayloadTooLarge, format!("the image is larger than {MAX_IMAGE} bytes"))
            .with_field("contentBase64")
            .with_extra("size", content.len())
            .with_extra("limit", MAX_IMAGE));
    }
    if !looks_like(ending, &content) {
        return Err(ApiError::new(Code::UnsupportedMediaType, format!("the content is not {}", body.content_type))
            .with_field("contentBase64"));
    }
    let stem = stem(&body.filename);
    let (path, mtime_ms) = store(&*app.workspace, &directory, &stem, ending, content).await?;
    let markdown_url = relative_url(&path, source.as_ref());
    Ok(Json(UploadAnswer { ok: true, path: path.as_str().to_string(), markdown_url, mtime_ms }))
}

/// Writes under a private name, then renames to the first free one: the rename refuses a taken name by itself.
async fn store(
    workspace: &dyn Workspace,
    directory: &WorkspacePath,
    stem: &str,
    ending: &str,
    content: Bytes,
) -> ApiResult<(WorkspacePath, i64)> {
    let private = directory.join(&format!("{PRIVATE_PREFIX}{}", uuid::Uuid::new_v4().simple()))?;
    let options = WriteOptions { create_dirs: true, ..WriteOptions::default() };
    let written = workspace.write(&private, content, options).await?;
    for number in 0..MAX_NAMES {
        let name = if number == 0 { format!("{stem}.{ending}") } else { format!("{stem}-{number}.{ending}") };
        let path = directory.join(&name)?;
        match workspace.rename(&private, &path, false).await {
            Ok(()) => return Ok((path, written.mtime_ms)),
            Err(WorkspaceError::AlreadyExists(_)) => {}
            Err(error) => {
                discard(workspace, &private).await;
                return Err(error.into());
            }
        }
    }
    discard(workspace, &private).await;
    Err(ApiError::new(Code::AlreadyExists, format!("{directory}: {MAX_NAMES} images of this name exist")))
}

async fn discard(workspace: &dyn Workspace, private: &WorkspacePath) {
    if let Err(error) = workspace.remove(private, false).await {
        tracing::warn!(path = ?private, %error, "an upload stays behind");
    }
}

fn ending(content_type: &str) -> ApiResult<&'static str> {
    match content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "image/png" => Ok("png"),
        "image/jpeg" => Ok("jpg"),
        "image/gif" => Ok("gif"),
        "image/webp" => Ok("webp"),
        "image/avif" => Ok("avif"),
        "image/svg+xml" => Ok("svg"),
        _ => Err(ApiError::new(Code::UnsupportedMediaType, "only PNG, JPEG, GIF, WebP, AVIF and SVG images are taken")
            .with_field("contentType")),
    }
}

/// The first bytes that every image of the type has.
fn looks_like(ending: &str, content: &[u8]) -> bool {
    match ending {
        "png" => content.starts_with(b"\x89PNG\r\n\x1a\n"),
        "jpg" => content.starts_with(b"\xff\xd8\xff"),
        "gif" => content.starts_with(b"GIF87a") || content.starts_with(b"GIF89a"),
        "webp" => content.starts_with(b"RIFF") && content.get(8..12) == Some(b"WEBP"),
        "avif" => content.get(4..8) == Some(b"ftyp"),
        _ => std::str::from_utf8(content).is_ok_and(|text| text.contains("<svg")),
    }
}

/// The user's name without folder and ending, in letters, digits, `-`, `_` and `.`.
fn stem(filename: &str) -> String {
    let name = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    let name = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut clean = String::new();
    for character in name.chars() {
        let kept = if character.is_alphanumeric() || matches!(character, '-' | '_' | '.') { character } else { '-' };
        if clean.len() + kept.len_utf8() > MAX_STEM {
            break;
        }
        clean.push(kept);
    }
    let clean = clean.trim_matches(['-', '.']);
    if clean.is_empty() { "image".into() } else { clean.into() }
}

/// A relative link, percent-encoded where Markdown or a URL needs it.
fn relative_url(path: &WorkspacePath, source: Option<&WorkspacePath>) -> String {
    let parent = source.and_then(WorkspacePath::parent).filter(|parent| !parent.is_root());
    let source_names: Vec<&str> =
        parent.as_ref().map(|parent| parent.as_str().split('/').collect()).unwrap_or_default();
    let names: Vec<&str> = path.as_str().split('/').collect();
    let common = names.iter().zip(&source_names).take_while(|(left, right)| left == right).count();
    let common = common.min(names.len() - 1);
    let up = std::iter::repeat_n("..".to_string(), source_names.len() - common);
    up.chain(names[common..].iter().map(|name| encode(name))).collect::<Vec<_>>().join("/")
}

fn encode(name: &str) -> String {
    use std::fmt::Write as _;
    name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            text.push(char::from(byte));
        } else {
            let _infallible = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{relative_url, stem};
    use crate::workspace::WorkspacePath;

    #[test]
    fn names_are_cleaned_and_never_empty() {
        for (given, expected) in [
            ("a b.png", "a-b"),
            ("../../etc/passwd", "passwd"),
            ("C:\\x\\Bild ü.jpeg", "Bild-ü"),
            ("...", "image"),
            ("", "image"),
            (".htaccess.png", "htaccess"),
        ] {
            assert_eq!(stem(given), expected, "{given}");
        }
        assert_eq!(stem(&"ü".repeat(300)).len(), 200);
    }

    #[test]
    fn links_are_relative_to_the_document() {
        let path = |text| WorkspacePath::parse(text).expect("path");
        let image = path("assets/my images/x.png");
        assert_eq!(relative_url(&image, None), "assets/my%20images/x.png");
        assert_eq!(relative_url(&image, Some(&path("README.md"))), "assets/my%20images/x.png");
        assert_eq!(relative_url(&image, Some(&path("docs/a/b.md"))), "../../assets/my%20images/x.png");
        assert_eq!(relative_url(&image, Some(&path("assets/notes.md"))), "my%20images/x.png");
        assert_eq!(relative_url(&image, Some(&path("assets/my images/n.md"))), "x.png");
    }
}
