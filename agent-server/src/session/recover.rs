//! Closing a turn that a crash left open, from its chunk log and the entries that reached the file.
//!
//! Owns what such a session looks like afterwards: every call has a result, the turn is marked as aborted by a crash,
//! the chunk log ends. Blocks on reading the log.

use serde_json::{Map, Value, json};

use super::entry::{Assistant, Block, Entry, Kind, ToolResult, TurnData, TurnStatus};
use super::error::SessionError;
use super::fold::Fold;
use super::in_use::{Places, Writer};
use super::transcript::Transcript;
use super::turn_end;
use super::turn_log::{CRASH_GAP, TurnLog};
use crate::harness::chunk::Chunk;
use crate::harness::open_parts::OpenParts;
use crate::harness::{AbortReason, AssistantRecord, MessageEnd};
use crate::llm::{AssistantBlock, StopReason, Usage};

/// The lines that close the open turn; none when no turn is open.
pub(super) fn close_open_turn(
    transcript: &Transcript,
    session_id: &str,
    places: &Places,
) -> Result<Vec<Entry>, SessionError> {
    let Some((start_line, turn)) = transcript.open_turn() else { return Ok(Vec::new()) };
    tracing::warn!(session = session_id, turn = turn.turn_id, "closing a turn that a crash left open");
    let (fold, status) = close_log(turn, &places.turn_log(session_id, &turn.turn_id))?;
    let recorded: Vec<&Entry> = transcript
        .branch()
        .into_iter()
        .skip_while(|entry| entry.id != start_line)
        .filter(|entry| matches!(entry.kind, Kind::Assistant(_) | Kind::ToolResult(_)))
        .collect();
    let mut ids: Vec<String> = recorded.iter().map(|entry| entry.id.clone()).collect();
    let mut writer = Writer::new(transcript);
    let steps = steps(fold.parts());
    for missing in missing_results(&recorded, &steps) {
        ids.push(writer.add(Kind::ToolResult(missing)));
    }
    let known = recorded.iter().filter(|entry| matches!(entry.kind, Kind::Assistant(_))).count();
    for step in steps.iter().skip(known) {
        for kind in step_entries(step, &turn.metadata) {
            ids.push(writer.add(kind));
        }
    }
    writer.add(Kind::Turn(Box::new(turn_end::end_data(turn, status, &fold, ids))));
    Ok(writer.finish())
}

/// Ends the chunk log; returns the message that its readers assembled and how the turn ended.
fn close_log(turn: &TurnData, path: &std::path::Path) -> Result<(Fold, TurnStatus), SessionError> {
    let mut fold = Fold::default();
    let mut open = OpenParts::default();
    let loaded = TurnLog::load(&turn.turn_id, path.to_path_buf())?.filter(|(_, chunks)| !chunks.is_empty());
    let (log, chunks) = loaded.map_or_else(
        || {
            let start = Chunk::Start { message_id: turn.message_id.clone(), message_metadata: turn.metadata.clone() };
            (None, vec![start])
        },
        |(log, chunks)| (Some(log), chunks),
    );
    for chunk in &chunks {
        fold.apply(chunk);
        open.apply(chunk);
    }
    // The log was whole; only the line in the session file is missing.
    match chunks.last() {
        Some(Chunk::Finish { .. }) => return Ok((fold, TurnStatus::Finished)),
        Some(Chunk::Abort {}) => return Ok((fold, TurnStatus::Aborted)),
        Some(Chunk::Error { .. }) => return Ok((fold, TurnStatus::Error)),
        _ => {}
    }
    if let Some(log) = &log {
        log.skip_numbers(CRASH_GAP);
    }
    let mut closing = open.close(AbortReason::Crash.text());
    closing.extend(turn_end::aborted(AbortReason::Crash, fold.metadata().get("usage")));
    for chunk in &closing {
        fold.apply(chunk);
        if let Some(log) = &log {
            log.push(chunk);
        }
    }
    if let Some(log) = log {
        log.end();
        log.flush()?;
    }
    Ok((fold, TurnStatus::Aborted))
}

/// The parts of each step.
fn steps(parts: &[Value]) -> Vec<Vec<&Value>> {
    let mut steps: Vec<Vec<&Value>> = Vec::new();
    for part in parts {
        if part["type"] == "step-start" {
            steps.push(Vec::new());
        } else if let Some(step) = steps.last_mut() {
            step.push(part);
        }
    }
    steps
}

/// Results for the calls of the last whole message that have none in the file.
fn missing_results(recorded: &[&Entry], steps: &[Vec<&Value>]) -> Vec<ToolResult> {
    let have = |id: &str| {
        recorded.iter().any(|entry| matches!(&entry.kind, Kind::ToolResult(result) if result.tool_call_id == id))
    };
    let Some(Kind::Assistant(last)) =
        recorded.iter().rev().map(|entry| &entry.kind).find(|kind| matches!(kind, Kind::Assistant(_)))
    else {
        return Vec::new();
    };
    if last.is_cut() {
        return Vec::new();
    }
    last.blocks
        .iter()
        .filter_map(|block| match block {
            AssistantBlock::ToolCall { id, name, .. } if !have(id) => {
                let part = steps.iter().flatten().copied().find(|part| part["toolCallId"] == **id);
                Some(result_of(id, name, part))
            }
            _ => None,
        })
        .collect()
}

fn result_of(id: &str, name: &str, part: Option<&Value>) -> ToolResult {
    let output = part.filter(|part| part["state"] == "output-available").map(|part| &part["output"]);
    let error_text = part.and_then(|part| part["errorText"].as_str()).unwrap_or(AbortReason::Crash.text());
    ToolResult {
        tool_call_id: id.to_owned(),
        tool_name: name.to_owned(),
        content: output.map_or_else(
            || vec![Block::Text(error_text.to_owned())],
            |output| {
                let pieces = output["content"].as_array().into_iter().flatten();
                pieces.map(|piece| Block::Text(piece["text"].as_str().unwrap_or("[image]").to_owned())).collect()
            },
        ),
        details: output.and_then(|output| output.get("details").cloned()),
        is_error: output.is_none_or(|output| output["isError"] == true),
    }
}

/// The message of a step that did not reach the file. With results of its calls it is whole, else cut.
fn step_entries(step: &[&Value], metadata: &Map<String, Value>) -> Vec<Kind> {
    let calls: Vec<&&Value> = step.iter().filter(|part| part["toolCallId"].is_string()).collect();
    let whole = calls.iter().any(|part| part["state"] == "output-available");
    let blocks: Vec<AssistantBlock> = step.iter().filter_map(|part| block_of(part)).collect();
    let record = AssistantRecord {
        blocks,
        usage: Usage::default(),
        cost: None,
        end: if whole { MessageEnd::Whole(StopReason::ToolUse) } else { MessageEnd::Aborted },
    };
    let provider = metadata.get("model").and_then(|model| model["provider"].as_str()).unwrap_or_default();
    let model = metadata.get("model").and_then(|model| model["id"].as_str()).unwrap_or_default();
    let api = if provider == "anthropic" { "anthropic-messages" } else { "openai-completions" };
    let mut kinds = vec![Kind::Assistant(Assistant::new(record, api, provider, model))];
    if whole {
        kinds.extend(calls.iter().map(|part| {
            let id = part["toolCallId"].as_str().unwrap_or_default();
            Kind::ToolResult(result_of(id, tool_name(part), Some(part)))
        }));
    }
    kinds
}

fn tool_name(part: &Value) -> &str {
    part["type"].as_str().and_then(|kind| kind.strip_prefix("tool-")).unwrap_or_default()
}

fn block_of(part: &Value) -> Option<AssistantBlock> {
    match part["type"].as_str()? {
        "text" => Some(AssistantBlock::Text { text: part["text"].as_str()?.to_owned() }),
        "reasoning" => Some(AssistantBlock::Thinking {
            thinking: part["text"].as_str()?.to_owned(),
            thinking_signature: None,
            redacted: false,
        }),
        kind if kind.starts_with("tool-") => Some(AssistantBlock::ToolCall {
            id: part["toolCallId"].as_str()?.to_owned(),
            name: tool_name(part).to_owned(),
            arguments: if part["input"].is_object() { part["input"].clone() } else { json!({}) },
        }),
        _ => None,
    }
}
