//! Stream events of the Anthropic Messages API to model events.
//!
//! Owns the order rules of that stream. Must not know transport or retries.

use serde::Deserialize;

use crate::llm::transport::Decode;
use crate::llm::{LlmError, ModelEvent, StopReason, Usage};

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireEvent {
    MessageStart {
        message: WireMessage,
    },
    ContentBlockStart {
        index: u64,
        content_block: WireBlock,
    },
    ContentBlockDelta {
        index: u64,
        delta: WireDelta,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: WireMessageDelta,
        usage: Option<WireUsage>,
    },
    MessageStop,
    Error {
        error: WireError,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct WireMessage {
    usage: Option<WireUsage>,
}

#[derive(Deserialize, Default)]
struct WireUsage {
    #[serde(rename = "input_tokens")]
    input: Option<u64>,
    #[serde(rename = "output_tokens")]
    output: Option<u64>,
    #[serde(rename = "cache_read_input_tokens")]
    cache_read: Option<u64>,
    #[serde(rename = "cache_creation_input_tokens")]
    cache_write: Option<u64>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireBlock {
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireDelta {
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct WireMessageDelta {
    stop_reason: Option<String>,
}

/// An error as the API words it, in a stream event or an HTTP body.
#[derive(Deserialize)]
pub struct WireError {
    /// Kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people.
    #[serde(default)]
    pub message: String,
}

enum Open {
    Text,
    Thinking { signature: String },
    Redacted { data: String },
    ToolUse,
    Unknown,
}

/// State of one stream.
#[derive(Default)]
pub struct Decoder {
    started: bool,
    open: Option<(u64, Open)>,
    usage: Usage,
    stop: Option<StopReason>,
    done: bool,
}

impl Decode for Decoder {
    /// Takes the data of one server-sent event; unknown kinds are skipped, as the API asks of its clients.
    fn take(&mut self, data: &str, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        let event: WireEvent =
            serde_json::from_str(data).map_err(|error| LlmError::Protocol(format!("unreadable event: {error}")))?;
        if let WireEvent::Error { error } = &event {
            return Err(classify(error, None));
        }
        if self.done {
            return protocol("an event after message_stop");
        }
        match event {
            WireEvent::MessageStart { message } => {
                if std::mem::replace(&mut self.started, true) {
                    return protocol("a second message_start");
                }
                self.count(&message.usage.unwrap_or_default());
                emit(ModelEvent::Usage(self.usage));
            }
            WireEvent::Unknown | WireEvent::Error { .. } => {}
            _ if !self.started => return protocol("an event before message_start"),
            WireEvent::ContentBlockStart { index, content_block } => self.start_block(index, content_block, emit)?,
            WireEvent::ContentBlockDelta { index, delta } => self.delta(index, delta, emit)?,
            WireEvent::ContentBlockStop { index } => self.stop_block(index, emit)?,
            WireEvent::MessageDelta { delta, usage } => {
                self.count(&usage.unwrap_or_default());
                if let Some(reason) = delta.stop_reason {
                    self.stop = Some(stop_reason(&reason));
                }
            }
            WireEvent::MessageStop => {
                if self.open.is_some() {
                    return protocol("message_stop inside a block");
                }
                self.done = true;
                emit(ModelEvent::Done { reason: self.stop.unwrap_or(StopReason::Other), usage: self.usage });
            }
        }
        Ok(())
    }

    fn end(&mut self, _: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        Err(LlmError::Connection("the stream ended early".into()))
    }

    /// Whether `message_stop` has come.
    fn is_done(&self) -> bool {
        self.done
    }
}

impl Decoder {
    fn start_block(&mut self, index: u64, block: WireBlock, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        if self.open.is_some() {
            return protocol("a block inside a block");
        }
        let open = match block {
            WireBlock::Text { text } => {
                emit(ModelEvent::TextStart);
                if !text.is_empty() {
                    emit(ModelEvent::TextDelta(text));
                }
                Open::Text
            }
            WireBlock::Thinking { thinking, signature } => {
                emit(ModelEvent::ThinkingStart);
                if !thinking.is_empty() {
                    emit(ModelEvent::ThinkingDelta(thinking));
                }
                Open::Thinking { signature }
            }
            WireBlock::RedactedThinking { data } => {
                emit(ModelEvent::ThinkingStart);
                Open::Redacted { data }
            }
            WireBlock::ToolUse { id, name } => {
                emit(ModelEvent::ToolCallStart { id, name });
                Open::ToolUse
            }
            WireBlock::Unknown => Open::Unknown,
        };
        self.open = Some((index, open));
        Ok(())
    }

    fn delta(&mut self, index: u64, delta: WireDelta, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        let Some((open_index, open)) = &mut self.open else { return protocol("a delta outside a block") };
        if *open_index != index {
            return protocol("a delta for another block");
        }
        match (open, delta) {
            (Open::Text, WireDelta::TextDelta { text }) => emit(ModelEvent::TextDelta(text)),
            (Open::Thinking { .. }, WireDelta::ThinkingDelta { thinking }) => emit(ModelEvent::ThinkingDelta(thinking)),
            (Open::Thinking { signature }, WireDelta::SignatureDelta { signature: more }) => signature.push_str(&more),
            (Open::ToolUse, WireDelta::InputJsonDelta { partial_json }) => {
                if !partial_json.is_empty() {
                    emit(ModelEvent::ToolCallDelta(partial_json));
                }
            }
            (Open::Unknown, _) | (_, WireDelta::Unknown) => {}
            _ => return protocol("a delta of another kind than its block"),
        }
        Ok(())
    }

    fn stop_block(&mut self, index: u64, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError> {
        match self.open.take() {
            Some((open_index, open)) if open_index == index => {
                match open {
                    Open::Text => emit(ModelEvent::TextEnd),
                    Open::Thinking { signature } => emit(ModelEvent::ThinkingEnd {
                        signature: (!signature.is_empty()).then_some(signature),
                        redacted: false,
                    }),
                    Open::Redacted { data } => emit(ModelEvent::ThinkingEnd { signature: Some(data), redacted: true }),
                    Open::ToolUse => emit(ModelEvent::ToolCallEnd),
                    Open::Unknown => {}
                }
                Ok(())
            }
            _ => protocol("the end of a block that is not open"),
        }
    }

    /// Later counts are totals and replace earlier ones; a missing or zero count says nothing new.
    fn count(&mut self, usage: &WireUsage) {
        let newer = |old: &mut u64, new: Option<u64>| *old = new.filter(|count| *count > 0).unwrap_or(*old);
        newer(&mut self.usage.input, usage.input);
        newer(&mut self.usage.output, usage.output);
        newer(&mut self.usage.cache_read, usage.cache_read);
        newer(&mut self.usage.cache_write, usage.cache_write);
    }
}

fn protocol<T>(what: &str) -> Result<T, LlmError> {
    Err(LlmError::Protocol(what.to_owned()))
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "end_turn" | "stop_sequence" => StopReason::Stop,
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "tool_use" => StopReason::ToolUse,
        "refusal" => StopReason::ContentFilter,
        _ => StopReason::Other,
    }
}

/// The class of an error; `retry_after` comes from the HTTP header.
pub fn classify(error: &WireError, retry_after: Option<std::time::Duration>) -> LlmError {
    let message = || error.message.chars().take(500).collect::<String>();
    match error.kind.as_str() {
        "authentication_error" | "permission_error" => LlmError::Auth,
        "rate_limit_error" => LlmError::RateLimited { retry_after },
        "overloaded_error" | "api_error" | "timeout_error" => LlmError::Overloaded { retry_after },
        "request_too_large" => LlmError::ContextTooLong,
        "invalid_request_error" if is_too_long(&error.message) => LlmError::ContextTooLong,
        _ => LlmError::Refused(message()),
    }
}

fn is_too_long(message: &str) -> bool {
    message.contains("prompt is too long") || message.contains("exceed context limit")
}
