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

#[derive(Default)]
struct Group<'a> {
    entries: Vec<&'a Entry>,
    begun: Option<&'a TurnData>,
}

/// The active branch as clients assembled it. A turn without an end is left out.
pub fn messages(transcript: &Transcript) -> Vec<Shown> {
    let branch = transcript.branch();
    let starts: HashMap<&str, &TurnData> = branch
        .iter()
        .filter_map(|entry| match &entry.kind {
            Kind::Turn(turn) if turn.status == TurnStatus::Running => Some((&*turn.user_entry, &**turn)),
            _ => None,
        })
        .collect();
    let mut shown = Vec::new();
    let mut group = Group::default();
    for entry in &branch {
        match &entry.kind {
            Kind::User { content } => {
                flush(&mut group, &mut shown);
                shown.push(user_message(entry, content, starts.get(&*entry.id).copied()));
            }
            Kind::Assistant(_) | Kind::ToolResult(_) => group.entries.push(entry),
            Kind::Turn(turn) if turn.status == TurnStatus::Running => {
                flush(&mut group, &mut shown);
                group.begun = Some(turn);
            }
            Kind::Turn(turn) => {
                let message = assistant_message(&group.entries, Some(turn));
                shown.push(Shown { message, turn_id: Some(turn.turn_id.clone()) });
                group = Group::default();
            }
            _ => {}
        }
    }
    flush(&mut group, &mut shown);
    shown
}

/// The message of an ended turn on any branch, with the line that ends it.
pub fn turn_message(transcript: &Transcript, turn_id: &str) -> Option<(Value, TurnData)> {
    let (_, end) =
        transcript.turns().find(|(_, turn)| turn.turn_id == turn_id && turn.status != TurnStatus::Running)?;
    let entries: Vec<&Entry> = end.entries.iter().filter_map(|id| transcript.get(id)).collect();
    Some((assistant_message(&entries, Some(end)), end.clone()))
}

/// Ends a group without a turn line: messages of other programs. A turn of ours that runs has no message yet.
fn flush(group: &mut Group<'_>, shown: &mut Vec<Shown>) {
    let group = std::mem::take(group);
    if group.begun.is_none() && !group.entries.is_empty() {
        shown.push(Shown { message: assistant_message(&group.entries, None), turn_id: None });
    }
}

fn user_message(entry: &Entry, content: &[Block], turn: Option<&TurnData>) -> Shown {
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
    let id = turn.map_or(&entry.id, |turn| &turn.user_message_id);
    let mut message = json!({"id": id, "role": "user", "parts": parts});
    if let Some(metadata) = turn.and_then(|turn| turn.user_metadata.clone()) {
        message["metadata"] = metadata;
    }
    Shown { message, turn_id: None }
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
    let first = entries.first().map(|entry| entry.id.as_str()).unwrap_or_default();
    json!({
        "id": turn.map_or(first, |turn| &turn.message_id),
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
}
