//! Stream events of chat completions to model events.
//!
//! Owns the order rules of that stream and what servers of this wire do differently. Must not know transport or retries.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::{ReasoningField, refusal};
use crate::llm::transport::Decode;
use crate::llm::{LlmError, ModelEvent, StopReason, Usage};

/// What stands in place of the last event.
const END: &str = "[DONE]";

#[derive(Deserialize)]
struct WireChunk {
    choices: Option<Vec<WireChoice>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WireChoice {
    #[serde(default)]
    index: u64,
    delta: Option<WireDelta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct WireDelta {
    content: Option<String>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<WireCall>>,
}

#[derive(Deserialize)]
struct WireCall {
    index: Option<u64>,
    id: Option<String>,
    function: Option<WireFunction>,
}

#[derive(Deserialize)]
struct WireFunction {
    name: Option<String>,
    /// Text; some servers send the object itself.
    arguments: Option<Value>,
}

/// `prompt_tokens` counts cached ones too.
#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<WirePromptDetails>,
    /// The same count in another place.
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct WirePromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Default)]
enum Open {
    #[default]
    Nothing,
    Text,
    Thinking(ReasoningField),
    Call {
        index: u64,
        id: String,
    },
}

/// State of one stream.
#[derive(Default)]
pub struct Decoder {
    open: Open,
    /// Indexes of the calls so far.
    calls: HashSet<u64>,
    usage: Usage,
    stop: Option<StopReason>,
    refused: bool,
    done: bool,
}

impl Decode for Decoder {
    fn take(&mut self, data: &str, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        if self.done {
            return protocol("an event after the end");
        }
        if data.trim() == END {
            self.finish(emit);
            return Ok(());
        }
        let chunk: WireChunk =
            serde_json::from_str(data).map_err(|error| LlmError::Protocol(format!("unreadable event: {error}")))?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(refusal::of_event(&error));
        }
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta, emit)?;
            }
            if let Some(word) = choice.finish_reason.filter(|word| !word.is_empty()) {
                self.close(emit);
                self.stop = Some(stop_reason(&word));
            }
        }
        if let Some(usage) = chunk.usage {
            self.count(&usage);
            emit(ModelEvent::Usage(self.usage));
        }
        Ok(())
    }

    /// Some servers leave the last event out; an answer that said why it stopped is whole.
    fn end(&mut self, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        if self.stop.is_none() {
            return Err(LlmError::Connection("the stream ended early".into()));
        }
        self.finish(emit);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

impl Decoder {
    /// One delta may hold several kinds; they are taken in the order in which a model makes them.
    fn delta(&mut self, delta: WireDelta, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        // A server that sends both sends the same text twice.
        let reasoning = filled(delta.reasoning_content)
            .map(|text| (ReasoningField::Content, text))
            .or_else(|| Some((ReasoningField::Plain, filled(delta.reasoning)?)));
        if let Some((field, text)) = reasoning {
            self.reason(field, text, emit);
        }
        let refusal = filled(delta.refusal);
        self.refused |= refusal.is_some();
        for text in [filled(delta.content), refusal].into_iter().flatten() {
            if !matches!(self.open, Open::Text) {
                self.close(emit);
                emit(ModelEvent::TextStart);
                self.open = Open::Text;
            }
            emit(ModelEvent::TextDelta(text));
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, emit)?;
        }
        Ok(())
    }

    fn reason(&mut self, field: ReasoningField, text: String, emit: &mut dyn FnMut(ModelEvent)) {
        if !matches!(self.open, Open::Thinking(open) if open == field) {
            self.close(emit);
            emit(ModelEvent::ThinkingStart);
            self.open = Open::Thinking(field);
        }
        emit(ModelEvent::ThinkingDelta(text));
    }

    /// Calls come one after the other. A new one has an index of its own; servers that count wrongly at least give it an
    /// id of its own.
    fn call(&mut self, call: WireCall, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        let id = call.id.filter(|id| !id.is_empty());
        let (name, arguments) = call.function.map_or((None, None), |function| (function.name, function.arguments));
        let goes_on = match &self.open {
            Open::Call { index, id: open_id } => {
                call.index.is_none_or(|own| own == *index) && id.as_ref().is_none_or(|id| id == open_id)
            }
            _ => false,
        };
        if !goes_on {
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                return protocol("a part of a tool call that is not open");
            };
            let next = || self.calls.len() as u64;
            let index = call.index.unwrap_or_else(next);
            if !self.calls.insert(index) && id.is_none() {
                return protocol("two tool calls with one index");
            }
            self.close(emit);
            let id = id.unwrap_or_default();
            emit(ModelEvent::ToolCallStart { id: id.clone(), name });
            self.open = Open::Call { index, id };
        }
        match arguments {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::String(text)) => emit(ModelEvent::ToolCallDelta(text)),
            Some(whole) => emit(ModelEvent::ToolCallDelta(whole.to_string())),
        }
        Ok(())
    }

    fn close(&mut self, emit: &mut dyn FnMut(ModelEvent)) {
        match std::mem::take(&mut self.open) {
            Open::Nothing => {}
            Open::Text => emit(ModelEvent::TextEnd),
            Open::Thinking(field) => {
                emit(ModelEvent::ThinkingEnd { signature: Some(field.name().to_owned()), redacted: false });
            }
            Open::Call { .. } => emit(ModelEvent::ToolCallEnd),
        }
    }

    fn finish(&mut self, emit: &mut dyn FnMut(ModelEvent)) {
        self.close(emit);
        let reason = if self.refused { StopReason::ContentFilter } else { self.stop.unwrap_or(StopReason::Other) };
        self.done = true;
        emit(ModelEvent::Done { reason, usage: self.usage });
    }

    fn count(&mut self, usage: &WireUsage) {
        let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let cached = cached.or(usage.prompt_cache_hit_tokens).unwrap_or(0);
        self.usage = Usage {
            input: usage.prompt_tokens.unwrap_or(0).saturating_sub(cached),
            output: usage.completion_tokens.unwrap_or(0),
            cache_read: cached,
            cache_write: 0,
        };
    }
}

fn protocol<T>(what: &str) -> Result<T, LlmError> {
    Err(LlmError::Protocol(what.to_owned()))
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "stop" => StopReason::Stop,
        "length" => StopReason::Length,
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "content_filter" => StopReason::ContentFilter,
        _ => StopReason::Other,
    }
}
