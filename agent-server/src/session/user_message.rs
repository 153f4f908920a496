//! The user message of a chat: what a client sent, what may enter a session, what the model gets of it.
//!
//! Owns checks of parts and attachments. Nothing is stored before everything was checked. Must not know HTTP.

use serde_json::{Map, Value, json};

use super::attachments::{self, Attachments, MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES};
use super::entry::Block;
use super::error::SessionError;
use super::history::attachment_url;
use super::ids::MAX_ID;

/// Text of an attached text file that is put into the message; the rest is kept and named.
const MAX_INLINE_TEXT: usize = 64 * 1024;
/// Parts of one message.
const MAX_PARTS: usize = 1_000;
/// Title characters.
const MAX_TITLE: usize = 80;

/// A checked user message.
#[derive(Debug, Clone, PartialEq)]
pub struct UserMessage {
    /// The client's id.
    pub id: Option<String>,
    /// The client's metadata.
    pub metadata: Option<Value>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    File {
        name: String,
        source: Source,
        part: Map<String, Value>,
    },
    /// Shown again as it came, not for the model.
    Other(Value),
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    Bytes(Vec<u8>),
    Kept(String),
}

/// What goes into the session.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// For the file and the model.
    pub content: Vec<Block>,
    /// For clients, with kept addresses; `None` when it is one text alone.
    pub parts: Option<Vec<Value>>,
}

impl Prepared {
    /// The parts as clients see them, also where they are one text alone.
    pub fn into_parts(self) -> Vec<Value> {
        let texts = |content: Vec<Block>| {
            let text =
                |block| if let Block::Text(text) = block { Some(json!({"type": "text", "text": text})) } else { None };
            content.into_iter().filter_map(text).collect()
        };
        self.parts.unwrap_or_else(|| texts(self.content))
    }
}

fn invalid<T>(field: &'static str, message: impl Into<String>) -> Result<T, SessionError> {
    Err(SessionError::Invalid { field, message: message.into() })
}

impl UserMessage {
    /// A message that is one text.
    pub fn text(text: String) -> Result<Self, SessionError> {
        if text.trim().is_empty() {
            return invalid("message", "the message is empty");
        }
        Ok(Self { id: None, metadata: None, pieces: vec![Piece::Text(text)] })
    }

    /// Checks a UI message and additional attachments.
    pub fn parse(message: Value, extra: Vec<Value>) -> Result<Self, SessionError> {
        let Value::Object(mut message) = message else {
            return invalid("message", "a message is a string or an object");
        };
        if message.get("role").and_then(Value::as_str) != Some("user") {
            return invalid("message", "the last message is not a user message");
        }
        let id = match message.remove("id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) if id.is_empty() => None,
            Some(Value::String(id)) if id.len() <= MAX_ID => Some(id),
            Some(_) => return invalid("message", format!("a message id is a string of at most {MAX_ID} bytes")),
        };
        let mut parts = match (message.remove("parts"), message.remove("content")) {
            (Some(Value::Array(parts)), _) => parts,
            // The form of older clients.
            (None, Some(Value::String(text))) => vec![json!({"type": "text", "text": text})],
            _ => return invalid("message", "a user message has an array `parts`"),
        };
        parts.extend(extra);
        if parts.len() > MAX_PARTS {
            return invalid("message", format!("a message has at most {MAX_PARTS} parts"));
        }
        let pieces = parts.into_iter().map(piece).collect::<Result<Vec<_>, _>>()?;
        check_files(&pieces)?;
        let speaks = pieces.iter().any(|piece| match piece {
            Piece::Text(text) => !text.trim().is_empty(),
            Piece::File { .. } => true,
            Piece::Other(_) => false,
        });
        if !speaks {
            return invalid("message", "the message has neither text nor a file");
        }
        let metadata = message.remove("metadata").filter(|metadata| !metadata.is_null());
        Ok(Self { id, metadata, pieces })
    }

    /// The first line of its text, for a title.
    pub fn title(&self) -> String {
        let text = self.pieces.iter().find_map(|piece| match piece {
            Piece::Text(text) => text.lines().map(str::trim).find(|line| !line.is_empty()),
            _ => None,
        });
        shorten(text.unwrap_or("Attachment"))
    }

    /// Keeps the files and gives both forms of the content. Blocks.
    pub fn prepare(self, store: &Attachments, session_id: &str) -> Result<Prepared, SessionError> {
        if let [Piece::Text(text)] = &self.pieces[..] {
            return Ok(Prepared { content: vec![Block::Text(text.clone())], parts: None });
        }
        let mut content = Vec::new();
        let mut parts = Vec::new();
        for piece in self.pieces {
            match piece {
                Piece::Text(text) => {
                    parts.push(json!({"type": "text", "text": text}));
                    content.push(Block::Text(text));
                }
                Piece::Other(part) => parts.push(part),
                Piece::File { name, source, mut part } => {
                    let bytes = match source {
                        Source::Bytes(bytes) => bytes,
                        Source::Kept(hash) => match store.read(&hash)? {
                            Some(found) => found.bytes,
                            None => return invalid("message", format!("attachment {hash} does not exist")),
                        },
                    };
                    let kept = store.keep(session_id, &name, &bytes)?;
                    part.insert("url".into(), json!(attachment_url(&kept.sha256)));
                    part.insert("mediaType".into(), json!(kept.media_type));
                    parts.push(Value::Object(part));
                    content.push(block(kept, &bytes));
                }
            }
        }
        Ok(Prepared { content, parts: Some(parts) })
    }
}

/// What the model gets of a file.
fn block(kept: super::entry::KeptImage, bytes: &[u8]) -> Block {
    if attachments::is_image(&kept.media_type) {
        return Block::Kept(kept);
    }
    let head = format!("[file {}, {} bytes, sha256:{}]", kept.name, kept.size, kept.sha256);
    match std::str::from_utf8(bytes) {
        Ok(text) if kept.media_type.starts_with("text/") => {
            let end = text.floor_char_boundary(MAX_INLINE_TEXT);
            let mark = if end < text.len() { format!("\n[cut after {end} bytes]") } else { String::new() };
            Block::Text(format!("{head}\n{}{mark}", &text[..end]))
        }
        _ => Block::Text(format!("{head} (type {}; the content is not shown to the model)", kept.media_type)),
    }
}

fn piece(part: Value) -> Result<Piece, SessionError> {
    let Value::Object(part) = part else { return invalid("message", "a part is an object") };
    match part.get("type").and_then(Value::as_str) {
        None => invalid("message", "a part has a `type`"),
        Some("text") => match part.get("text") {
            // Only the text is kept; `state` and the like belong to the client.
            Some(Value::String(text)) => Ok(Piece::Text(text.clone())),
            _ => invalid("message", "a text part has a string `text`"),
        },
        Some("file") => {
            let mut part = part;
            // The address may be the whole file; it is set anew when the file is kept.
            let url = part.remove("url");
            let url = url.as_ref().and_then(Value::as_str).unwrap_or_default();
            let name = part.get("filename").and_then(Value::as_str).unwrap_or("attachment").to_owned();
            let prefix = attachment_url("");
            let source = if let Some(hash) = url.strip_prefix(&prefix) {
                if !attachments::is_hash(hash) {
                    return invalid("message", "the attachment's address is not valid");
                }
                Source::Kept(hash.to_owned())
            } else if let Some(bytes) = attachments::decode_data_url(url) {
                Source::Bytes(bytes)
            } else {
                return invalid(
                    "message",
                    format!("a file's `url` is a base64 `data:` address or begins with {prefix}"),
                );
            };
            Ok(Piece::File { name, source, part })
        }
        Some(_) => Ok(Piece::Other(Value::Object(part))),
    }
}

fn check_files(pieces: &[Piece]) -> Result<(), SessionError> {
    let sizes: Vec<usize> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::File { source: Source::Bytes(bytes), .. } => Some(bytes.len()),
            Piece::File { .. } => Some(0),
            _ => None,
        })
        .collect();
    if sizes.len() > MAX_FILES {
        return invalid("message", format!("a message has at most {MAX_FILES} files"));
    }
    if sizes.iter().any(|size| *size > MAX_FILE_BYTES) {
        return invalid("message", format!("a file has at most {MAX_FILE_BYTES} bytes"));
    }
    if sizes.iter().sum::<usize>() > MAX_TOTAL_BYTES {
        return invalid("message", format!("the files of a message have at most {MAX_TOTAL_BYTES} bytes together"));
    }
    Ok(())
}

/// At most 80 characters of one line.
pub fn shorten(line: &str) -> String {
    let line = line.trim();
    if line.chars().count() <= MAX_TITLE {
        return line.to_owned();
    }
    let short: String = line.chars().take(MAX_TITLE - 1).collect();
    format!("{}…", short.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(message: Value) -> String {
        UserMessage::parse(message, Vec::new()).expect_err("is refused").to_string()
    }

    #[test]
    fn what_is_no_user_message_or_names_a_foreign_file_is_refused() {
        let parts = json!([{"type": "text", "text": "hi"}]);
        assert_eq!(fault(json!({"role": "assistant", "parts": parts})), "the last message is not a user message");
        assert_eq!(fault(json!({"role": "user"})), "a user message has an array `parts`");
        assert_eq!(
            fault(json!({"role": "user", "parts": [{"type": "text", "text": " "}]})),
            "the message has neither text nor a file"
        );
        for url in ["https://example.com/a.png", "file:///etc/passwd", "/api/v1/agent/attachments/../x", ""] {
            let message = json!({"role": "user", "parts": [{"type": "file", "url": url}]});
            assert!(fault(message).contains("addres"), "{url}");
        }
        let many = vec![json!({"type": "file", "url": "data:text/plain;base64,aGk="}); 21];
        assert_eq!(fault(json!({"role": "user", "parts": many})), "a message has at most 20 files");
    }

    #[test]
    fn files_are_kept_and_their_address_and_type_are_the_servers_own() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Attachments::new(folder.path().to_path_buf());
        let message = json!({"id": "m1", "role": "user", "metadata": {"a": 1}, "parts": [
            {"type": "text", "text": "Look\nhere", "state": "done"},
            {"type": "file", "mediaType": "image/png", "filename": "n.txt", "url": "data:image/png;base64,aGk="},
            {"type": "data-mine", "data": 1},
        ]});
        let message = UserMessage::parse(message, Vec::new()).expect("fits");
        assert_eq!((message.id.as_deref(), message.title().as_str()), (Some("m1"), "Look"));
        let hash = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4";
        let prepared = message.prepare(&store, "s").expect("kept");
        assert_eq!(
            prepared,
            Prepared {
                content: vec![
                    Block::Text("Look\nhere".into()),
                    Block::Text(format!("[file n.txt, 2 bytes, sha256:{hash}]\nhi")),
                ],
                parts: Some(vec![
                    json!({"type": "text", "text": "Look\nhere"}),
                    json!({"type": "file", "mediaType": "text/plain; charset=utf-8", "filename": "n.txt",
                           "url": format!("/api/v1/agent/attachments/{hash}")}),
                    json!({"type": "data-mine", "data": 1}),
                ]),
            }
        );
    }
}
