//! The fold from chunks to the UI message that clients assemble from the same chunks.
//!
//! Owns the message's shape while it grows and when it is done. Must not know the session file, the network or the model.

use serde_json::{Map, Value, json};

use crate::harness::chunk::{Chunk, object};

/// An assistant message under assembly.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fold {
    id: String,
    metadata: Map<String, Value>,
    parts: Vec<Value>,
}

impl Fold {
    /// Takes the next chunk of the turn.
    pub fn apply(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::Start { message_id, message_metadata } => {
                self.id.clone_from(message_id);
                merge(&mut self.metadata, message_metadata);
            }
            Chunk::StartStep {} => self.parts.push(json!({"type": "step-start"})),
            Chunk::TextStart { .. } => self.parts.push(json!({"type": "text", "text": "", "state": "streaming"})),
            Chunk::ReasoningStart { id } => {
                self.parts.push(json!({"type": "reasoning", "id": id, "text": "", "state": "streaming"}));
            }
            Chunk::TextDelta { delta, .. } => self.append_text("text", delta),
            Chunk::ReasoningDelta { delta, .. } => self.append_text("reasoning", delta),
            Chunk::TextEnd { .. } => self.close_text("text"),
            Chunk::ReasoningEnd { .. } => self.close_text("reasoning"),
            Chunk::ToolInputStart { .. }
            | Chunk::ToolInputDelta { .. }
            | Chunk::ToolInputAvailable { .. }
            | Chunk::ToolOutputAvailable { .. }
            | Chunk::ToolOutputError { .. } => self.apply_tool(chunk),
            Chunk::DataUsage { id, data } => self.put_data("data-usage", id, object(data)),
            Chunk::DataFileChanged { id, data } => self.put_data("data-file-changed", id, data.clone()),
            Chunk::DataUiCommand { id, data } => self.put_data("data-ui-command", id, data.clone()),
            Chunk::MessageMetadata { message_metadata } | Chunk::Finish { message_metadata, .. } => {
                merge(&mut self.metadata, message_metadata);
            }
            Chunk::FinishStep {}
            | Chunk::DataStatus { .. }
            | Chunk::DataNotice { .. }
            | Chunk::Abort {}
            | Chunk::Error { .. } => {}
        }
    }

    fn apply_tool(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::ToolInputStart { tool_call_id, tool_name, .. } => self.parts.push(json!({
                "type": format!("tool-{tool_name}"), "toolCallId": tool_call_id,
                "state": "input-streaming", "providerExecuted": true,
            })),
            Chunk::ToolInputAvailable { tool_call_id, tool_name, input, .. } => {
                if self.tool(tool_call_id).is_none() {
                    self.parts.push(json!({
                        "type": format!("tool-{tool_name}"), "toolCallId": tool_call_id, "providerExecuted": true,
                    }));
                }
                if let Some(part) = self.tool(tool_call_id) {
                    part.insert("state".into(), json!("input-available"));
                    part.insert("input".into(), input.clone());
                }
            }
            Chunk::ToolOutputAvailable { tool_call_id, output, preliminary, .. } => {
                if let Some(part) = self.tool(tool_call_id) {
                    part.insert("state".into(), json!("output-available"));
                    part.insert("output".into(), Value::Object(object(output)));
                    if preliminary.is_some() {
                        part.insert("preliminary".into(), json!(true));
                    } else {
                        part.remove("preliminary");
                    }
                }
            }
            Chunk::ToolOutputError { tool_call_id, error_text, .. } => {
                if let Some(part) = self.tool(tool_call_id) {
                    part.remove("preliminary");
                    part.remove("output");
                    part.insert("state".into(), json!("output-error"));
                    part.insert("errorText".into(), json!(error_text));
                }
            }
            _ => {}
        }
    }

    fn tool(&mut self, tool_call_id: &str) -> Option<&mut Map<String, Value>> {
        self.parts
            .iter_mut()
            .rev()
            .filter_map(Value::as_object_mut)
            .find(|part| part.get("toolCallId").and_then(Value::as_str) == Some(tool_call_id))
    }

    /// At most one text or reasoning part is open at a time, and it is the last of its kind.
    fn append_text(&mut self, kind: &str, delta: &str) {
        let part = self.parts.iter_mut().rev().find(|part| part["type"] == kind);
        if let Some(Value::String(text)) = part.and_then(|part| part.get_mut("text")) {
            text.push_str(delta);
        }
    }

    fn close_text(&mut self, kind: &str) {
        if let Some(part) = self.parts.iter_mut().rev().find(|part| part["type"] == kind) {
            part["state"] = json!("done");
        }
    }

    fn put_data(&mut self, kind: &str, id: &str, data: Map<String, Value>) {
        match self.parts.iter_mut().find(|part| part["type"] == kind && part["id"] == id) {
            Some(part) => part["data"] = Value::Object(data),
            None => self.parts.push(json!({"type": kind, "id": id, "data": data})),
        }
    }

    /// Message id; empty before `start`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Metadata so far.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// Parts so far.
    pub fn parts(&self) -> &[Value] {
        &self.parts
    }

    /// The persistent data parts, each with the number of other parts before it.
    pub fn data_parts(&self) -> Vec<DataPart> {
        let mut after = 0;
        let mut found = Vec::new();
        for part in &self.parts {
            if part["type"].as_str().is_some_and(|kind| kind.starts_with("data-")) {
                found.push(DataPart { after, part: part.clone() });
            } else {
                after += 1;
            }
        }
        found
    }

    /// The message as clients hold it.
    pub fn message(&self) -> Value {
        json!({"id": self.id, "role": "assistant", "metadata": self.metadata, "parts": self.parts})
    }
}

/// A persistent data part and its place in the message.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DataPart {
    /// How many parts other than data parts stand before it.
    pub after: usize,
    /// The part itself.
    pub part: Value,
}

/// Merges metadata as clients do: objects key by key, everything else replaced.
pub fn merge(target: &mut Map<String, Value>, source: &Map<String, Value>) {
    for (key, value) in source {
        match (target.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(more)) => merge(inner, more),
            _ => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str) -> Vec<Chunk> {
        text.lines().map(|line| serde_json::from_str(line).expect("fixture chunk")).collect()
    }

    #[test]
    fn the_whole_turn_folds_to_the_message_that_clients_assemble() {
        let mut fold = Fold::default();
        for chunk in chunks(include_str!("../../tests/fixtures/whole-turn.chunks.jsonl")) {
            fold.apply(&chunk);
        }
        let expected: Value =
            serde_json::from_str(include_str!("../../tests/fixtures/whole-turn.message.json")).expect("fixture");
        assert_eq!(fold.message(), expected);
    }

    #[test]
    fn every_fixture_chunk_survives_a_round_trip_unchanged() {
        for text in [
            include_str!("../../tests/fixtures/whole-turn.chunks.jsonl"),
            include_str!("../../tests/fixtures/stopped-turn.chunks.jsonl"),
        ] {
            for line in text.lines() {
                let chunk: Chunk = serde_json::from_str(line).expect("fixture chunk");
                let expected: Value = serde_json::from_str(line).expect("fixture");
                assert_eq!(serde_json::to_value(&chunk).expect("serialises"), expected);
            }
        }
    }

    #[test]
    fn a_stopped_call_keeps_its_input_and_the_error_text() {
        let mut fold = Fold::default();
        for chunk in chunks(include_str!("../../tests/fixtures/stopped-turn.chunks.jsonl")) {
            fold.apply(&chunk);
        }
        assert_eq!(
            fold.message(),
            json!({
                "id": "msg_2", "role": "assistant",
                "metadata": {"turnId": "turn_2", "status": "aborted", "reason": "user", "usage": {"inputTokens": 5}},
                "parts": [
                    {"type": "step-start"},
                    {"type": "tool-bash", "toolCallId": "toolu_C", "state": "output-error",
                     "input": {"command": "sleep 99"}, "errorText": "Stopped by the user.", "providerExecuted": true},
                ],
            })
        );
    }

    #[test]
    fn a_data_part_with_a_known_id_is_replaced_in_place() {
        let mut fold = Fold::default();
        let part = |n: u64| Chunk::DataFileChanged {
            id: "a-0".into(),
            data: [("n".to_owned(), json!(n))].into_iter().collect(),
        };
        fold.apply(&part(1));
        fold.apply(&Chunk::StartStep {});
        fold.apply(&part(2));
        assert_eq!(
            fold.parts(),
            [json!({"type": "data-file-changed", "id": "a-0", "data": {"n": 2}}), json!({"type": "step-start"})]
        );
    }
}
