//! Which parts of a turn are open, and the chunks that close them.
//!
//! Owns the rule that every part is closed before its step and every step before the end, whatever happened. Used for
//! turns that stop, fail or were found open after a crash. Must not know why.

use serde_json::Value;

use super::chunk::{Chunk, True};

/// What is open after the chunks seen so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenParts {
    in_step: bool,
    text: Option<OpenText>,
    calls: Vec<OpenCall>,
}

#[derive(Debug, Clone, PartialEq)]
enum OpenText {
    Text(String),
    Reasoning(String),
}

#[derive(Debug, Clone, PartialEq)]
struct OpenCall {
    id: String,
    name: String,
    raw: String,
    available: bool,
}

impl OpenParts {
    /// Takes the next chunk of the turn.
    pub fn apply(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::StartStep {} => self.in_step = true,
            Chunk::FinishStep {} => self.in_step = false,
            Chunk::TextStart { id } => self.text = Some(OpenText::Text(id.clone())),
            Chunk::ReasoningStart { id } => self.text = Some(OpenText::Reasoning(id.clone())),
            Chunk::TextEnd { .. } | Chunk::ReasoningEnd { .. } => self.text = None,
            Chunk::ToolInputStart { tool_call_id, tool_name, .. } => self.calls.push(OpenCall {
                id: tool_call_id.clone(),
                name: tool_name.clone(),
                raw: String::new(),
                available: false,
            }),
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.id == *tool_call_id) {
                    call.raw.push_str(input_text_delta);
                }
            }
            Chunk::ToolInputAvailable { tool_call_id, .. } => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.id == *tool_call_id) {
                    call.available = true;
                    call.raw = String::new();
                }
            }
            Chunk::ToolOutputAvailable { tool_call_id, preliminary: None, .. }
            | Chunk::ToolOutputError { tool_call_id, .. } => self.calls.retain(|call| call.id != *tool_call_id),
            _ => {}
        }
    }

    /// The chunks that close everything; calls end with `error_text`.
    pub fn close(&self, error_text: &str) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        match &self.text {
            Some(OpenText::Text(id)) => chunks.push(Chunk::TextEnd { id: id.clone() }),
            Some(OpenText::Reasoning(id)) => chunks.push(Chunk::ReasoningEnd { id: id.clone() }),
            None => {}
        }
        for call in self.calls.iter().filter(|call| !call.available) {
            chunks.push(Chunk::ToolInputAvailable {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                input: Value::String(call.raw.clone()),
                provider_executed: True,
            });
        }
        for call in &self.calls {
            chunks.push(Chunk::ToolOutputError {
                tool_call_id: call.id.clone(),
                error_text: error_text.to_owned(),
                provider_executed: True,
            });
        }
        if self.in_step {
            chunks.push(Chunk::FinishStep {});
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_reasoning_part_and_two_open_calls_are_closed_in_order() {
        let mut open = OpenParts::default();
        let start = |id: &str| Chunk::ToolInputStart {
            tool_call_id: id.into(),
            tool_name: "bash".into(),
            provider_executed: True,
        };
        for chunk in [
            Chunk::StartStep {},
            start("done"),
            Chunk::ToolOutputError { tool_call_id: "done".into(), error_text: "x".into(), provider_executed: True },
            start("whole"),
            Chunk::ToolInputAvailable {
                tool_call_id: "whole".into(),
                tool_name: "bash".into(),
                input: Value::Null,
                provider_executed: True,
            },
            start("cut"),
            Chunk::ToolInputDelta { tool_call_id: "cut".into(), input_text_delta: "{\"a".into() },
            Chunk::ReasoningStart { id: "r".into() },
        ] {
            open.apply(&chunk);
        }
        let closing = open.close("Stopped.");
        assert_eq!(
            serde_json::to_value(&closing).expect("serialises"),
            serde_json::json!([
                {"type": "reasoning-end", "id": "r"},
                {"type": "tool-input-available", "toolCallId": "cut", "toolName": "bash", "input": "{\"a",
                 "providerExecuted": true},
                {"type": "tool-output-error", "toolCallId": "whole", "errorText": "Stopped.", "providerExecuted": true},
                {"type": "tool-output-error", "toolCallId": "cut", "errorText": "Stopped.", "providerExecuted": true},
                {"type": "finish-step"},
            ])
        );
        for chunk in &closing {
            open.apply(chunk);
        }
        assert_eq!(open.close("Stopped."), []);
    }
}
