//! The messages of a session as clients assembled them, made from its entries.
//!
//! Owns that mapping. Must not touch a disk or know what the model gets.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::entry::{Block, Entry, Kind, ToolResult, TurnData, TurnStatus};
use super::transcript::Transcript;
use crate::harness::AbortReason;
use crate::llm::AssistantBlock;

/// Address under which clients find a kept image.
pub fn attachment_url(sha256: &str) -> String {
    format!("/api/v1/agent/attachments/{sha256}")
}

/// A message and the line where it begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// `{id, role, metadata, parts}`.
    pub message: Value,
    /// Turn of an assistant message.
    pub turn_id: Option<String>,
}

/// Which messages are asked for; of an empty window all.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Only those before this message.
    pub before: Option<String>,
    /// At most this many, the newest.
    pub limit: Option<usize>,
}

/// Messages, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// UI messages.
    pub messages: Vec<Value>,
    /// Whether there are older ones.
    pub has_more: bool,
}

/// A message that is not made yet: a page of a long session makes only its own.
enum Outline<'a> {
    User { entry: &'a Entry, content: &'a [Block], turn: Option<&'a TurnData> },
    Assistant { entries: Vec<&'a Entry>, turn: Option<&'a TurnData> },
}

impl Outline<'_> {
    fn id(&self) -> &str {
        match self {
            Self::User { entry, turn, .. } => user_id(entry, *turn),
            Self::Assistant { entries, turn } => assistant_id(entries, *turn),
        }
    }

    /// Turn of an assistant message.
    fn turn_id(&self) -> Option<&str> {
        match self {
            Self::User { .. } => None,
            Self::Assistant { turn, .. } => turn.map(|turn| &*turn.turn_id),
        }
    }

    fn message(&self) -> Value {
        match self {
            Self::User { entry, content, turn } => user_message(entry, content, *turn),
            Self::Assistant { entries, turn } => assistant_message(entries, *turn),
        }
    }
}

/// The active branch as clients assembled it. A turn without an end is left out.
pub fn messages(transcript: &Transcript) -> Vec<Shown> {
    let shown =
        |outline: &Outline<'_>| Shown { message: outline.message(), turn_id: outline.turn_id().map(str::to_owned) };
    outlines(transcript).iter().map(shown).collect()
}

/// A part of [`messages`]. `running` is the message of the turn that runs; it comes last, unless the branch has it
/// already: between the end line and the release of a turn both are there. `None` when the window's message is unknown.
pub fn page(transcript: &Transcript, window: &Window, running: Option<Shown>) -> Option<Page> {
    let mut outlines = outlines(transcript);
    let mut running = running
        .filter(|running| outlines.iter().all(|outline| outline.turn_id() != running.turn_id.as_deref()))
        .map(|running| running.message);
    if let Some(before) = &window.before {
        match outlines.iter().position(|outline| outline.id() == before) {
            Some(end) => {
                outlines.truncate(end);
                running = None;
            }
            None => drop(running.take().filter(|message| message["id"] == **before)?),
        }
    }
    let count = outlines.len() + usize::from(running.is_some());
    let skipped = window.limit.map_or(0, |limit| count.saturating_sub(limit));
    let messages = outlines.iter().map(Outline::message);
    // With a limit of nothing the running message is left out too.
    let messages = if skipped > outlines.len() { Vec::new() } else { messages.skip(skipped).chain(running).collect() };
    Some(Page { messages, has_more: skipped > 0 })
}

#[derive(Default)]
struct Group<'a> {
    entries: Vec<&'a Entry>,
    begun: bool,
}

fn outlines(transcript: &Transcript) -> Vec<Outline<'_>> {
    let branch = transcript.branch();
    let starts: HashMap<&str, &TurnData> = branch
        .iter()
        .filter_map(|entry| match &entry.kind {
            Kind::Turn(turn) if turn.status == TurnStatus::Running => Some((&*turn.user_entry, &**turn)),
            _ => None,
        })
        .collect();
    let mut outlines = Vec::new();
    let mut group = Group::default();
    for entry in branch {
        match &entry.kind {
            Kind::User { content } => {
                flush(&mut group, &mut outlines);
                outlines.push(Outline::User { entry, content, turn: starts.get(&*entry.id).copied() });
            }
            Kind::Assistant(_) | Kind::ToolResult(_) => group.entries.push(entry),
            Kind::Turn(turn) if turn.status == TurnStatus::Running => {
                flush(&mut group, &mut outlines);
                group.begun = true;
            }
            Kind::Turn(turn) => {
                let entries = std::mem::take(&mut group).entries;
                outlines.push(Outline::Assistant { entries, turn: Some(turn) });
            }
            _ => {}
        }
    }
    flush(&mut group, &mut outlines);
    outlines
}

/// The message of an ended turn on any branch, with the line that ends it.
pub fn turn_message(transcript: &Transcript, turn_id: &str) -> Option<(Value, TurnData)> {
    let (_, end) =
        transcript.turns().find(|(_, turn)| turn.turn_id == turn_id && turn.status != TurnStatus::Running)?;
    let entries: Vec<&Entry> = end.entries.iter().filter_map(|id| transcript.get(id)).collect();
    Some((assistant_message(&entries, Some(end)), end.clone()))
}

/// Ends a group without a turn line: messages of other programs. A turn of ours that runs has no message yet.
fn flush<'a>(group: &mut Group<'a>, outlines: &mut Vec<Outline<'a>>) {
    let Group { entries, begun } = std::mem::take(group);
    if !begun && !entries.is_empty() {
        outlines.push(Outline::Assistant { entries, turn: None });
    }
}

fn user_id<'a>(entry: &'a Entry, turn: Option<&'a TurnData>) -> &'a str {
    turn.map_or(&entry.id, |turn| &turn.user_message_id)
}

fn assistant_id<'a>(entries: &[&'a Entry], turn: Option<&'a TurnData>) -> &'a str {
    let first = entries.first().map(|entry| entry.id.as_str()).unwrap_or_default();
    turn.map_or(first, |turn| &turn.message_id)
}

fn user_message(entry: &Entry, content: &[Block], turn: Option<&TurnData>) -> Value {
    let parts = turn.and_then(|turn| turn.user_parts.clone()).unwrap_or_else(|| {
        content
            .iter()
            .map(|block| match block {
                Block::Text(text) => json!({"type": "text", "text": text}),
                Block::Kept(image) => json!({
                    "type": "file", "mediaType": image.media_type, "filename": image.name,
                    "url": attachment_url(&image.sha256),
                }),
                Block::Inline { mime_type, data } => json!({
                    "type": "file", "mediaType": mime_type, "url": format!("data:{mime_type};base64,{data}"),
                }),
            })
            .collect()
    });
    let mut message = json!({"id": user_id(entry, turn), "role": "user", "parts": parts});
    if let Some(metadata) = turn.and_then(|turn| turn.user_metadata.clone()) {
        message["metadata"] = metadata;
    }
    message
}

/// The same message that the fold over the turn's chunks gives, but for ids of reasoning parts of other programs.
pub fn assistant_message(entries: &[&Entry], turn: Option<&TurnData>) -> Value {
    let results: HashMap<&str, &ToolResult> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            Kind::ToolResult(result) => Some((&*result.tool_call_id, result)),
            _ => None,
        })
        .collect();
    let mut parts = Vec::new();
    let mut step = 0;
    for entry in entries {
        let Kind::Assistant(message) = &entry.kind else { continue };
        step += 1;
        parts.push(json!({"type": "step-start"}));
        for (index, block) in message.blocks.iter().enumerate() {
            parts.extend(assistant_part(block, step, index, &results, turn));
        }
    }
    for data in turn.map(|turn| &turn.data_parts[..]).unwrap_or_default() {
        place(&mut parts, data.after, data.part.clone());
    }
    json!({
        "id": assistant_id(entries, turn),
        "role": "assistant",
        "metadata": turn.map(|turn| turn.metadata.clone()).unwrap_or_default(),
        "parts": parts,
    })
}

fn assistant_part(
    block: &AssistantBlock,
    step: usize,
    index: usize,
    results: &HashMap<&str, &ToolResult>,
    turn: Option<&TurnData>,
) -> Option<Value> {
    match block {
        AssistantBlock::Text { text } if text.is_empty() => None,
        AssistantBlock::Text { text } => Some(json!({"type": "text", "text": text, "state": "done"})),
        AssistantBlock::Thinking { thinking, .. } if thinking.is_empty() => None,
        AssistantBlock::Thinking { thinking, .. } => {
            Some(json!({"type": "reasoning", "id": format!("s{step}-r{index}"), "text": thinking, "state": "done"}))
        }
        AssistantBlock::ToolCall { id, name, arguments } => {
            let mut part = json!({
                "type": format!("tool-{name}"), "toolCallId": id, "input": arguments, "providerExecuted": true,
            });
            let fault = turn.and_then(|turn| turn.tool_errors.get(id));
            match (fault, results.get(id.as_str())) {
                (Some(fault), _) => {
                    part["state"] = json!("output-error");
                    part["errorText"] = json!(fault.error_text);
                    if let Some(input) = &fault.input {
                        part["input"] = input.clone();
                    }
                }
                (None, Some(result)) => {
                    part["state"] = json!("output-available");
                    part["output"] = output(result);
                }
                (None, None) => {
                    part["state"] = json!("output-error");
                    part["errorText"] = json!(AbortReason::Crash.text());
                }
            }
            Some(part)
        }
    }
}

fn output(result: &ToolResult) -> Value {
    let content: Vec<Value> = result
        .content
        .iter()
        .map(|block| match block {
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Kept(image) => {
                json!({"type": "image", "mediaType": image.media_type, "url": attachment_url(&image.sha256)})
            }
            Block::Inline { mime_type, data } => {
                json!({"type": "image", "mediaType": mime_type, "url": format!("data:{mime_type};base64,{data}")})
            }
        })
        .collect();
    let mut output = Map::new();
    output.insert("content".into(), json!(content));
    if let Some(details) = &result.details {
        output.insert("details".into(), details.clone());
    }
    if result.is_error {
        output.insert("isError".into(), json!(true));
    }
    Value::Object(output)
}

/// Puts a data part behind `after` other parts and behind the data parts already there.
fn place(parts: &mut Vec<Value>, after: usize, part: Value) {
    let is_data = |part: &Value| part["type"].as_str().is_some_and(|kind| kind.starts_with("data-"));
    let mut others = 0;
    let mut at = 0;
    while at < parts.len() && (is_data(&parts[at]) || others < after) {
        others += usize::from(!is_data(&parts[at]));
        at += 1;
    }
    parts.insert(at, part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimal_file_gives_two_shown_messages() {
        let read = Transcript::read(include_bytes!("../../tests/fixtures/minimal-session.jsonl"));
        let shown: Vec<Value> = messages(&read.transcript).into_iter().map(|shown| shown.message).collect();
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[1]["id"], "msg_01J9ZK3QW8");
        assert_eq!(
            shown[1]["parts"],
            json!([
                {"type": "step-start"},
                {"type": "reasoning", "id": "s1-r0", "text": "Look at the tests.", "state": "done"},
                {"type": "text", "text": "I run the tests.", "state": "done"},
                {"type": "tool-bash", "toolCallId": "toolu_A", "state": "output-available",
                 "input": {"command": "make test"}, "providerExecuted": true,
                 "output": {"content": [{"type": "text", "text": "2 passed\n"}], "details": {"exitCode": 0}}},
                {"type": "step-start"},
                {"type": "text", "text": "All tests pass.", "state": "done"},
            ])
        );
    }

    /// What a page is made of, taken from all messages.
    fn part(mut all: Vec<Value>, before: Option<&str>, limit: Option<usize>) -> Option<Page> {
        if let Some(before) = before {
            all.truncate(all.iter().position(|message| message["id"] == before)?);
        }
        let skipped = limit.map_or(0, |limit| all.len().saturating_sub(limit));
        Some(Page { messages: all.split_off(skipped), has_more: skipped > 0 })
    }

    #[test]
    fn a_page_is_the_same_part_of_all_messages_for_every_window() {
        let minimal = include_str!("../../tests/fixtures/minimal-session.jsonl");
        let foreign =
            r#"{"type":"message","id":"f1","parentId":"e5f6a7b8","message":{"role":"assistant","content":[]}}"#;
        let open =
            r#"{"type":"custom","id":"f2","parentId":"f1","customType":"boring-agent/turn","data":{"turnId":"t2",
            "messageId":"m2","userMessageId":"u2","status":"running"}}"#
                .replace('\n', "");
        let read = Transcript::read(format!("{minimal}{foreign}\n{open}\n").as_bytes());
        let all: Vec<Value> = messages(&read.transcript).into_iter().map(|shown| shown.message).collect();
        assert_eq!(all.len(), 3);
        let running = Shown { message: json!({"id": "m2", "parts": []}), turn_id: Some("t2".into()) };
        let known = Shown { message: json!({"id": "other"}), turn_id: Some("turn_01J9ZK3QW7".into()) };
        let mut ids: Vec<Option<String>> =
            all.iter().map(|message| message["id"].as_str().map(str::to_owned)).collect();
        ids.extend([None, Some("m2".into()), Some("unknown".into())]);
        for running in [None, Some(running), Some(known)] {
            let mut shown = all.clone();
            shown.extend(
                running.iter().filter(|shown| shown.turn_id.as_deref() == Some("t2")).map(|s| s.message.clone()),
            );
            for before in &ids {
                for limit in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(9)] {
                    let window = Window { before: before.clone(), limit };
                    let expected = part(shown.clone(), before.as_deref(), limit);
                    assert_eq!(page(&read.transcript, &window, running.clone()), expected, "{window:?} {running:?}");
                }
            }
        }
    }
}
