//! Reading the lines that this server writes most: messages and turns, straight from their bytes into entries.
//!
//! Owns the strict form of these lines. A line that differs in anything is not read here but by `line`, which takes what
//! other programs wrote too; both say the same of every line that is read here. Must not touch a disk.

use serde::Deserialize;
use serde_json::Value;

use super::entry::{Assistant, Block, Entry, Kind, TURN_TYPE, ToolResult, TurnData};
use crate::llm::known::Cost;
use crate::llm::{AssistantBlock, Usage};

/// A line of our own form; `None` for every other one, sound or not.
pub(super) fn parse(line: &[u8]) -> Option<Entry> {
    if line.starts_with(br#"{"type":"message","#) {
        let line: MessageLine<'_> = serde_json::from_slice(line).ok()?;
        let kind = line.message.kind()?;
        return (line.kind == "message").then_some(entry(line.id, line.parent_id, line.timestamp, kind));
    }
    if line.starts_with(br#"{"type":"custom","#) {
        let line: TurnLine<'_> = serde_json::from_slice(line).ok()?;
        let kind = Kind::Turn(Box::new(line.data));
        let ours = line.kind == "custom" && line.custom_type == TURN_TYPE;
        return ours.then_some(entry(line.id, line.parent_id, line.timestamp, kind));
    }
    None
}

fn entry(id: String, parent: Option<String>, timestamp: String, kind: Kind) -> Entry {
    Entry { id, parent, timestamp, kind }
}

/// Members that are unknown or there twice are refused, so that nothing is passed over which the other reader sees.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MessageLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: String,
    parent_id: Option<String>,
    timestamp: String,
    #[serde(borrow)]
    message: Message<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TurnLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    custom_type: &'a str,
    id: String,
    parent_id: Option<String>,
    timestamp: String,
    data: TurnData,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Message<'a> {
    role: &'a str,
    #[serde(borrow)]
    content: Vec<Piece<'a>>,
    /// The line has its own.
    #[serde(rename = "timestamp")]
    _at: i64,
    api: Option<String>,
    provider: Option<String>,
    model: Option<String>,
    stop_reason: Option<String>,
    #[serde(rename = "errorMessage")]
    error: Option<String>,
    usage: Option<UsageLine>,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    is_error: Option<bool>,
    details: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Piece<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    text: Option<String>,
    thinking: Option<String>,
    thinking_signature: Option<String>,
    #[serde(default)]
    redacted: bool,
    id: Option<String>,
    name: Option<String>,
    arguments: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct UsageLine {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    /// The sum of the others.
    #[serde(rename = "totalTokens")]
    _total: u64,
    cost: CostLine,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CostLine {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
    total: f64,
}

impl Message<'_> {
    fn kind(self) -> Option<Kind> {
        match self.role {
            "user" => Some(Kind::User { content: texts(self.content)? }),
            "assistant" => self.assistant().map(Kind::Assistant),
            "toolResult" => Some(Kind::ToolResult(ToolResult {
                tool_call_id: self.tool_call_id?,
                tool_name: self.tool_name?,
                content: texts(self.content)?,
                details: self.details,
                is_error: self.is_error?,
            })),
            _ => None,
        }
    }

    fn assistant(self) -> Option<Assistant> {
        let UsageLine { input, output, cache_read, cache_write, cost, .. } = self.usage?;
        Some(Assistant {
            blocks: self.content.into_iter().map(Piece::block).collect::<Option<_>>()?,
            api: self.api?,
            provider: self.provider?,
            model: self.model?,
            usage: Usage { input, output, cache_read, cache_write },
            cost: Cost {
                input: cost.input,
                output: cost.output,
                cache_read: cost.cache_read,
                cache_write: cost.cache_write,
                total: cost.total,
            },
            stop: self.stop_reason?,
            error: self.error,
        })
    }
}

/// Blocks of a message that holds text alone. An image has more members and a member beside the message.
fn texts(content: Vec<Piece<'_>>) -> Option<Vec<Block>> {
    let text = |piece: Piece<'_>| (piece.kind == "text").then_some(piece.text).flatten().map(Block::Text);
    content.into_iter().map(text).collect()
}

impl Piece<'_> {
    fn block(self) -> Option<AssistantBlock> {
        match self.kind {
            "text" => Some(AssistantBlock::Text { text: self.text? }),
            "thinking" => Some(AssistantBlock::Thinking {
                thinking: self.thinking?,
                thinking_signature: self.thinking_signature,
                redacted: self.redacted,
            }),
            "toolCall" => Some(AssistantBlock::ToolCall { id: self.id?, name: self.name?, arguments: self.arguments? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = include_str!("../../tests/fixtures/minimal-session.jsonl");

    fn both(line: &[u8]) -> (Option<Entry>, Option<Entry>) {
        let general = serde_json::from_slice::<Value>(line).ok().and_then(|line| Entry::parse(&line));
        (parse(line), general)
    }

    #[test]
    fn what_is_written_is_read_here_and_means_the_same() {
        let mut kinds = 0;
        for line in MINIMAL.lines() {
            let Some(entry) = serde_json::from_str(line).ok().and_then(|line| Entry::parse(&line)) else { continue };
            let own =
                matches!(entry.kind, Kind::User { .. } | Kind::Assistant(_) | Kind::ToolResult(_) | Kind::Turn(_));
            let (strict, general) = both(entry.to_line().as_bytes());
            assert_eq!(general.as_ref(), Some(&entry));
            assert_eq!(strict, own.then_some(entry));
            kinds += usize::from(own);
        }
        assert_eq!(kinds, 5, "a user message, two of the model, a result and a turn");
    }

    #[test]
    fn a_line_with_any_byte_changed_or_cut_anywhere_means_the_same_to_both_readers() {
        for line in MINIMAL.lines().filter_map(|line| Entry::parse(&serde_json::from_str(line).ok()?)) {
            let line = line.to_line().into_bytes();
            for at in 0..line.len() {
                for byte in [0, b'"', b'}', b']', b',', b':', b'\\', b'-', b'9', b'n', b'u', b'x', 0xff] {
                    let mut changed = line.clone();
                    changed[at] = byte;
                    let (strict, general) = both(&changed);
                    assert!(strict.is_none() || strict == general, "{:?}", String::from_utf8_lossy(&changed));
                }
                assert_eq!(both(&line[..at]), (None, None));
            }
        }
    }

    #[test]
    fn what_the_general_reader_judges_by_itself_is_left_to_it() {
        let line = |message: &str| {
            format!(r#"{{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{message}}}"#)
        };
        for message in [
            r#"{"role":"user","content":"as one text","timestamp":1}"#,
            r#"{"role":"user","content":[{"type":"image","mimeType":"image/png","data":"aGk="}],"timestamp":1}"#,
            r#"{"role":"user","content":[{"type":"text","text":null}],"timestamp":1}"#,
            r#"{"role":"user","role":"assistant","content":[],"timestamp":1}"#,
            r#"{"role":"user","content":[],"timestamp":1,"more":1}"#,
            r#"{"role":{"user":null},"content":[],"timestamp":1}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"x"}],"timestamp":1}"#,
            r#"{"role":"toolResult","content":[],"timestamp":1}"#,
            r#"{"role":"bashExecution","content":[],"timestamp":1}"#,
        ] {
            let (strict, general) = both(line(message).as_bytes());
            assert_eq!(strict, None, "{message}");
            assert!(general.is_some(), "{message}");
        }
        let twice = br#"{"type":"message","type":"label","id":"a","parentId":null,"timestamp":"t"}"#;
        assert_eq!(parse(twice), None);
    }
}
