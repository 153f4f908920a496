//! The last chunks of a turn and the line that says how it ended. Owns both; must not touch a disk.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::entry::{ToolErrorData, TurnData, TurnStatus};
use super::fold::Fold;
use crate::harness::AbortReason;
use crate::harness::chunk::{Chunk, FinishReason};

/// Chunks that end a stopped turn, behind its closed parts.
pub(super) fn aborted(reason: AbortReason, usage: Option<&Value>) -> Vec<Chunk> {
    let mut metadata = Map::new();
    metadata.insert("status".into(), json!("aborted"));
    metadata.insert("reason".into(), json!(reason));
    if let Some(usage) = usage {
        metadata.insert("usage".into(), usage.clone());
    }
    vec![Chunk::MessageMetadata { message_metadata: metadata }, Chunk::Abort {}]
}

/// Chunks that end a failed turn.
pub(super) fn failed(code: &str, message: String, retry_after: Option<u64>) -> Vec<Chunk> {
    let mut error = json!({ "code": code });
    if let Some(seconds) = retry_after {
        error["retryAfter"] = json!(seconds);
    }
    let mut metadata = Map::new();
    metadata.insert("status".into(), json!("error"));
    metadata.insert("error".into(), error);
    vec![Chunk::MessageMetadata { message_metadata: metadata }, Chunk::Error { error_text: message }]
}

/// Chunks that end a turn normally.
pub(super) fn finished(finish_reason: FinishReason, usage: Value, duration_ms: u64) -> Vec<Chunk> {
    let mut message_metadata = Map::new();
    message_metadata.insert("usage".into(), usage);
    message_metadata.insert("durationMs".into(), json!(duration_ms));
    vec![Chunk::Finish { finish_reason, message_metadata }]
}

/// The line behind a turn's last message.
pub(super) fn end_data(start: &TurnData, status: TurnStatus, fold: &Fold, entries: Vec<String>) -> TurnData {
    TurnData {
        status,
        metadata: fold.metadata().clone(),
        entries,
        data_parts: fold.data_parts(),
        tool_errors: tool_errors(fold.parts()),
        user_parts: None,
        user_metadata: None,
        ..start.clone()
    }
}

/// Calls that could not run or were stopped; the input is kept where it is the raw text.
fn tool_errors(parts: &[Value]) -> BTreeMap<String, ToolErrorData> {
    parts
        .iter()
        .filter(|part| part["state"] == "output-error")
        .filter_map(|part| {
            let id = part["toolCallId"].as_str()?.to_owned();
            let error_text = part["errorText"].as_str()?.to_owned();
            let input = part.get("input").filter(|input| !input.is_object()).cloned();
            Some((id, ToolErrorData { error_text, input }))
        })
        .collect()
}
