//! The tool `read`: lines of a text file or an artifact, or an image.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{optional_count, parse, required_path, schema};
use super::artifacts::{Artifacts, SCHEME};
use super::line_window::{LineWindow, Window};
use super::results::{append_notice, failed, refused, text};
use super::truncation::{MAX_BYTES, size};
use super::{Access, Tool, ToolContent, ToolContext, ToolDefinition, ToolFailure, ToolResult};
use crate::workspace::{Workspace, WorkspaceError, WorkspacePath};

/// What is looked at to tell text from binary: as git does it, a NUL byte in the first 8,000 bytes or so.
const SNIFF_BYTES: usize = 8192;
/// Providers take images up to 5 MiB of base64, that is 3.75 MiB of bytes.
const MAX_IMAGE_BYTES: u64 = 5 * 1024 * 1024 / 4 * 3;
/// How far a file is read to count its lines. At 1 GB/s this is 64 ms.
const COUNT_BYTES: u64 = 64 << 20;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// File to read, relative to the workspace or absolute inside it, or an artifact:// name from an earlier result
    path: String,
    /// First line, counted from 1 (default 1)
    #[serde(default, deserialize_with = "optional_count")]
    offset: Option<u64>,
    /// Most lines (default and maximum 2000)
    #[serde(default, deserialize_with = "optional_count")]
    limit: Option<u64>,
}

/// Reads a file.
pub struct Read {
    artifacts: Artifacts,
}

impl Read {
    /// Also reads what is in this store.
    pub fn new(artifacts: Artifacts) -> Self {
        Self { artifacts }
    }
}

type Content = BoxStream<'static, Result<Bytes, WorkspaceError>>;

#[async_trait::async_trait]
impl Tool for Read {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "read".into(),
            description:
                "Read a text file or an image (png, jpeg, gif, webp). Text is cut after 2000 lines or 50 KiB; \
                          use offset and limit for the rest."
                    .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        let read = async {
            if arguments.path.starts_with(SCHEME) {
                return Ok(match self.artifacts.read(&arguments.path).await {
                    Ok(bytes) => read_text(&arguments, Vec::new(), stream::iter([Ok(bytes)]).boxed()).await,
                    Err(error) => refused(format!("{}: {error}", arguments.path)),
                });
            }
            let path = required_path(&arguments.path, &*context.workspace)?;
            Ok(read_file(&arguments, &path, &*context.workspace).await.unwrap_or_else(|error| failed(&error)))
        };
        context.cancel.run_until_cancelled(read).await.unwrap_or_else(|| Err(ToolFailure("stopped".into())))
    }
}

async fn read_file(
    arguments: &Arguments,
    path: &WorkspacePath,
    workspace: &dyn Workspace,
) -> Result<ToolResult, WorkspaceError> {
    let mut file = workspace.open(path, None).await?;
    let mut begin = Vec::new();
    while begin.len() < SNIFF_BYTES {
        match file.content.next().await {
            Some(bytes) => begin.extend_from_slice(&bytes?),
            None => break,
        }
    }
    if let Some(media_type) = image_type(&begin) {
        return read_image(path, media_type, file.stat.size, workspace).await;
    }
    if begin[..begin.len().min(SNIFF_BYTES)].contains(&0) {
        let kind = binary_type(&begin, path.name());
        return Ok(refused(format!(
            "{path} is a binary file ({kind}, {}); it cannot be shown as text",
            size(file.stat.size)
        )));
    }
    Ok(read_text(arguments, begin, file.content).await)
}

async fn read_image(
    path: &WorkspacePath,
    media_type: &str,
    bytes: u64,
    workspace: &dyn Workspace,
) -> Result<ToolResult, WorkspaceError> {
    if bytes > MAX_IMAGE_BYTES {
        let (is, most) = (size(bytes), size(MAX_IMAGE_BYTES));
        return Ok(refused(format!(
            "{path} is an image ({media_type}) of {is}; at most {most} can be shown, scale it down"
        )));
    }
    let (stat, content) = workspace.read(path, MAX_IMAGE_BYTES).await?;
    let image = ToolContent::Image { media_type: media_type.into(), data: STANDARD.encode(content) };
    let title = ToolContent::Text(format!("{path} ({media_type}, {})", size(stat.size)));
    let details = Some(json!({"mediaType": media_type, "size": stat.size}));
    Ok(ToolResult { content: vec![title, image], details, is_error: false })
}

async fn read_text(arguments: &Arguments, begin: Vec<u8>, mut rest: Content) -> ToolResult {
    let first = arguments.offset.unwrap_or(1);
    let mut window = LineWindow::new(first, arguments.limit);
    let mut counted = begin.len() as u64;
    window.push(&begin);
    let mut is_whole = true;
    while let Some(bytes) = rest.next().await {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => return failed(&error),
        };
        counted += bytes.len() as u64;
        window.push(&bytes);
        if counted > COUNT_BYTES && window.is_done() {
            is_whole = false;
            break;
        }
    }
    shown(arguments, first, &window.finish(), is_whole)
}

fn shown(arguments: &Arguments, first: u64, window: &Window, is_whole: bool) -> ToolResult {
    let total = if is_whole { window.total.to_string() } else { format!("more than {}", window.total) };
    if let Some((line, bytes)) = window.too_long {
        let (is, most) = (size(bytes), size(MAX_BYTES as u64));
        return refused(format!(
            "line {line} alone has {is}, more than the {most} that can be shown. \
             Use bash: sed -n '{line}p' FILE | head -c {MAX_BYTES}"
        ));
    }
    if window.taken == 0 && first > 1 {
        return refused(format!("offset {first} is after the end: the file has {total} lines"));
    }
    if window.total == 0 {
        return text("(empty file)".into(), Some(json!({"lines": 0})));
    }
    let decoded = String::from_utf8_lossy(&window.text);
    let is_utf8 = matches!(decoded, std::borrow::Cow::Borrowed(_));
    let mut shown = decoded.into_owned();
    let last = first + window.taken - 1;
    if last < window.total || !is_whole {
        append_notice(&mut shown, &format!("lines {first}-{last} of {total}; use offset={} for the rest", last + 1));
    }
    if !is_utf8 {
        append_notice(&mut shown, "not all of this is UTF-8; other bytes are shown as \u{fffd}");
    }
    let asked = arguments.limit.map(|limit| json!(limit));
    text(shown, Some(json!({"firstLine": first, "lastLine": last, "totalLines": window.total, "limit": asked})))
}

/// The image types that models take, by their first bytes.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// A name for what the bytes are: by their beginning where that is telling, else by the file's name.
fn binary_type(bytes: &[u8], name: &str) -> String {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "text in UTF-16, convert it with iconv".into(),
        [0x7f, b'E', b'L', b'F', ..] => "ELF program".into(),
        _ => mime_guess::from_path(name).first_or_octet_stream().to_string(),
    }
}
