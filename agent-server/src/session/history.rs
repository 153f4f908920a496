//! The two views of a session: messages as clients assembled them, and the conversation as the model gets it.
//!
//! Owns both mappings from entries. Must not touch a disk; images are asked for by a closure.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::entry::{Assistant, Block, Entry, KeptImage, Kind, ToolResult, TurnData, TurnStatus};
use super::transcript::Transcript;
use crate::harness::AbortReason;
use crate::llm::{AssistantBlock, InputBlock, ModelMessage};

/// Images sent along with one call, newest first: the provider takes 32 MB a request, base64 adds a third.
const MAX_IMAGE_BYTES: u64 = 16 * 1024 * 1024;

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

/// How many messages [`messages`] would give.
pub fn count(transcript: &Transcript) -> usize {
    let mut count = 0;
    let mut foreign = false;
    let mut begun = false;
    for entry in transcript.branch() {
        match &entry.kind {
            Kind::User { .. } => {
                count += 1 + usize::from(foreign);
                (foreign, begun) = (false, false);
            }
            Kind::Assistant(_) | Kind::ToolResult(_) => foreign = !begun,
            Kind::Turn(turn) if turn.status == TurnStatus::Running => {
                count += usize::from(foreign);
                (foreign, begun) = (false, true);
            }
            Kind::Turn(_) => {
                count += 1;
                (foreign, begun) = (false, false);
            }
            _ => {}
        }
    }
    count + usize::from(foreign)
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

/// Said to the model in the place of what stood before an unreadable line.
const LOST_BEGINNING: &str = "[The beginning of this conversation is lost.]";

/// The conversation for a model. Cut messages give their text only; thinking of another model is left out; every call
/// of a whole message has exactly one result, made up where it is missing.
pub fn conversation(
    transcript: &Transcript,
    provider: &str,
    model: &str,
    image: &dyn Fn(&KeptImage) -> Option<String>,
) -> Vec<ModelMessage> {
    let branch = after_compaction(transcript.branch());
    let kept = images_to_send(&branch);
    let input = |block: &Block| match block {
        Block::Text(text) => InputBlock::Text { text: text.clone() },
        Block::Inline { mime_type, data } => InputBlock::Image { mime_type: mime_type.clone(), data: data.clone() },
        Block::Kept(found) => match kept.contains(&*found.sha256).then(|| image(found)).flatten() {
            Some(data) => InputBlock::Image { mime_type: found.media_type.clone(), data },
            None => InputBlock::Text { text: found.placeholder() },
        },
    };
    let mut messages = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for entry in branch {
        match &entry.kind {
            Kind::User { content } => {
                settle(&mut waiting, &mut messages);
                messages.push(ModelMessage::User(content.iter().map(input).collect()));
            }
            Kind::Other { text: Some(text) } | Kind::Compaction { summary: text, .. } => {
                settle(&mut waiting, &mut messages);
                messages.push(ModelMessage::User(vec![InputBlock::Text { text: text.clone() }]));
            }
            Kind::Assistant(message) => {
                settle(&mut waiting, &mut messages);
                let blocks = blocks_for(message, provider, model);
                waiting.extend(blocks.iter().filter_map(|block| match block {
                    AssistantBlock::ToolCall { id, .. } => Some(id.clone()),
                    _ => None,
                }));
                messages.push(ModelMessage::Assistant(blocks));
            }
            Kind::ToolResult(result) => {
                if let Some(at) = waiting.iter().position(|id| *id == result.tool_call_id) {
                    waiting.remove(at);
                    messages.push(ModelMessage::ToolResult {
                        tool_call_id: result.tool_call_id.clone(),
                        content: result.content.iter().map(input).collect(),
                        is_error: result.is_error,
                    });
                }
            }
            _ => {}
        }
    }
    settle(&mut waiting, &mut messages);
    // Providers want the user to speak first. Behind a lost line the branch begins anywhere, and a session must not be
    // refused for ever because of it.
    if messages.first().is_some_and(|first| !matches!(first, ModelMessage::User(_))) {
        messages.insert(0, ModelMessage::User(vec![InputBlock::Text { text: LOST_BEGINNING.into() }]));
    }
    messages
}

/// A summary stands for everything before its first kept message.
fn after_compaction(branch: Vec<&Entry>) -> Vec<&Entry> {
    let Some((at, first_kept)) = branch.iter().enumerate().rev().find_map(|(at, entry)| match &entry.kind {
        Kind::Compaction { first_kept, .. } => Some((at, first_kept)),
        _ => None,
    }) else {
        return branch;
    };
    let kept = branch.iter().position(|entry| entry.id == *first_kept).filter(|kept| *kept < at).unwrap_or(at);
    std::iter::once(branch[at])
        .chain(branch[kept..at].iter().copied())
        .chain(branch[at + 1..].iter().copied())
        .collect()
}

fn images_to_send<'a>(branch: &[&'a Entry]) -> HashSet<&'a str> {
    let mut left = MAX_IMAGE_BYTES;
    let mut kept = HashSet::new();
    for entry in branch.iter().rev() {
        let (Kind::User { content } | Kind::ToolResult(ToolResult { content, .. })) = &entry.kind else { continue };
        for block in content.iter().rev() {
            let Block::Kept(image) = block else { continue };
            let Some(rest) = left.checked_sub(image.size) else { return kept };
            left = rest;
            kept.insert(image.sha256.as_str());
        }
    }
    kept
}

fn blocks_for(message: &Assistant, provider: &str, model: &str) -> Vec<AssistantBlock> {
    let same_model = message.provider == provider && message.model == model;
    message
        .blocks
        .iter()
        .filter(|block| match block {
            AssistantBlock::Text { .. } => true,
            AssistantBlock::Thinking { .. } => same_model && !message.is_cut(),
            AssistantBlock::ToolCall { .. } => !message.is_cut(),
        })
        .cloned()
        .collect()
}

fn settle(waiting: &mut Vec<String>, messages: &mut Vec<ModelMessage>) {
    for tool_call_id in waiting.drain(..) {
        messages.push(ModelMessage::ToolResult {
            tool_call_id,
            content: vec![InputBlock::Text { text: AbortReason::Crash.text().into() }],
            is_error: true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimal_file_gives_four_model_messages_and_two_shown_ones() {
        let read = Transcript::read(include_bytes!("../../tests/fixtures/minimal-session.jsonl"));
        let conversation = conversation(&read.transcript, "anthropic", "claude-x", &|_| None);
        let kinds: Vec<&str> = conversation
            .iter()
            .map(|message| match message {
                ModelMessage::User(_) => "user",
                ModelMessage::Assistant(_) => "assistant",
                ModelMessage::ToolResult { .. } => "toolResult",
            })
            .collect();
        assert_eq!(kinds, ["user", "assistant", "toolResult", "assistant"]);
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

    #[test]
    fn a_session_with_a_damaged_line_still_begins_with_the_user() {
        let text = include_str!("../../tests/fixtures/minimal-session.jsonl");
        for damaged in 0..text.lines().count() {
            let lines = text.lines().enumerate().map(|(at, line)| if at == damaged { "{broken" } else { line });
            let read = Transcript::read((lines.collect::<Vec<_>>().join("\n") + "\n").as_bytes());
            let conversation = conversation(&read.transcript, "anthropic", "claude-x", &|_| None);
            assert!(
                matches!(conversation.first(), None | Some(ModelMessage::User(_))),
                "line {damaged}: {conversation:?}"
            );
        }
    }

    #[test]
    fn a_call_without_a_result_gets_one_and_thinking_of_another_model_is_left_out() {
        let text = include_str!("../../tests/fixtures/minimal-session.jsonl");
        let without_result: String = text.split_inclusive('\n').take(3).collect();
        let read = Transcript::read(without_result.as_bytes());
        assert_eq!(
            conversation(&read.transcript, "anthropic", "other", &|_| None)[1..],
            [
                ModelMessage::Assistant(vec![
                    AssistantBlock::Text { text: "I run the tests.".into() },
                    AssistantBlock::ToolCall {
                        id: "toolu_A".into(),
                        name: "bash".into(),
                        arguments: json!({"command": "make test"})
                    },
                ]),
                ModelMessage::ToolResult {
                    tool_call_id: "toolu_A".into(),
                    content: vec![InputBlock::Text { text: AbortReason::Crash.text().into() }],
                    is_error: true,
                },
            ]
        );
    }
}
