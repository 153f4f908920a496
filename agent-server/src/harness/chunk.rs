//! The chunks of the chat stream: the only kinds and keys that may reach a client.
//!
//! Owns names and keys of the AI SDK's stream protocol. Must not know frames, numbering or who reads.
//! Clients refuse a frame with any other key, so an absent option is left out, never null.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// One chunk. The serialised form is one JSON object on one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Chunk {
    /// First chunk of a turn.
    Start {
        /// Id of the assistant message.
        message_id: String,
        /// `turnId`, `createdAt`, `model`.
        message_metadata: Map<String, Value>,
    },
    /// A model call and the tool runs it asks for begin.
    StartStep {},
    /// The step is over; every part opened in it is closed.
    FinishStep {},
    /// Text begins.
    TextStart {
        /// Part id, unique in the turn.
        id: String,
    },
    /// More text.
    TextDelta {
        /// Part id.
        id: String,
        /// The text.
        delta: String,
    },
    /// Text ends.
    TextEnd {
        /// Part id.
        id: String,
    },
    /// Reasoning begins.
    ReasoningStart {
        /// Part id, unique in the turn.
        id: String,
    },
    /// More reasoning.
    ReasoningDelta {
        /// Part id.
        id: String,
        /// The text.
        delta: String,
    },
    /// Reasoning ends.
    ReasoningEnd {
        /// Part id.
        id: String,
    },
    /// The model begins to write a tool call.
    ToolInputStart {
        /// Id of the call, unique in the session.
        tool_call_id: String,
        /// Tool name.
        tool_name: String,
        /// Always true: clients run a call themselves without it.
        provider_executed: True,
    },
    /// More of the argument text.
    ToolInputDelta {
        /// Id of the call.
        tool_call_id: String,
        /// The text.
        input_text_delta: String,
    },
    /// The arguments are complete; `input` is the raw text where they are unusable.
    ToolInputAvailable {
        /// Id of the call.
        tool_call_id: String,
        /// Tool name.
        tool_name: String,
        /// Parsed arguments, or the raw text as a string.
        input: Value,
        /// Always true.
        provider_executed: True,
    },
    /// Output of a tool that ran.
    ToolOutputAvailable {
        /// Id of the call.
        tool_call_id: String,
        /// The output.
        output: ToolOutput,
        /// The view so far; a final one follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preliminary: Option<True>,
        /// Always true.
        provider_executed: True,
    },
    /// The tool could not run or was stopped.
    ToolOutputError {
        /// Id of the call.
        tool_call_id: String,
        /// Why.
        error_text: String,
        /// Always true.
        provider_executed: True,
    },
    /// How long a call has been running.
    DataStatus {
        /// Content.
        data: StatusData,
        /// Always true.
        transient: True,
    },
    /// A remark for the user.
    DataNotice {
        /// Content.
        data: NoticeData,
        /// Always true.
        transient: True,
    },
    /// Token counts of one step.
    DataUsage {
        /// `s<step>-usage`.
        id: String,
        /// Content.
        data: StepUsage,
    },
    /// A tool changed a file.
    DataFileChanged {
        /// `<toolCallId>-<n>`.
        id: String,
        /// Content: `op`, `path`, `oldPath?`, `size?`, `toolCallId`.
        data: Map<String, Value>,
    },
    /// A tool sent a command to the user interface.
    DataUiCommand {
        /// `<toolCallId>-<n>`.
        id: String,
        /// Content.
        data: Map<String, Value>,
    },
    /// Metadata to merge into the message.
    MessageMetadata {
        /// The keys to merge.
        message_metadata: Map<String, Value>,
    },
    /// Normal end.
    Finish {
        /// Why the model stopped.
        finish_reason: FinishReason,
        /// Total usage and duration.
        message_metadata: Map<String, Value>,
    },
    /// The turn was stopped.
    Abort {},
    /// The turn failed.
    Error {
        /// Text for the user.
        error_text: String,
    },
}

impl Chunk {
    /// Whether this ends the turn.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Finish { .. } | Self::Abort {} | Self::Error { .. })
    }

    /// Whether replay leaves it out and history never holds it.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::DataStatus { .. } | Self::DataNotice { .. })
    }

    /// The call whose preliminary output this is.
    pub fn preliminary_of(&self) -> Option<&str> {
        match self {
            Self::ToolOutputAvailable { tool_call_id, preliminary: Some(True), .. } => Some(tool_call_id),
            _ => None,
        }
    }

    /// A remark for the user.
    pub fn notice(level: NoticeLevel, text: impl Into<String>) -> Self {
        Self::DataNotice { data: NoticeData { level, text: text.into() }, transient: True }
    }
}

/// The JSON value `true`; anything else is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct True;

impl Serialize for True {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(true)
    }
}

impl<'de> Deserialize<'de> for True {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if bool::deserialize(deserializer)? { Ok(Self) } else { Err(serde::de::Error::custom("must be true")) }
    }
}

/// Why the model stopped, in the AI SDK's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// Done.
    Stop,
    /// Token limit or full window.
    Length,
    /// Refused by the provider.
    ContentFilter,
    /// The turn ended although the model asked for tools.
    ToolCalls,
    /// Failed.
    Error,
    /// Anything else.
    Other,
}

/// Content of `data-status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusData {
    /// Id of the call.
    pub tool_call_id: String,
    /// Milliseconds since it began.
    pub elapsed_ms: u64,
}

/// Weight of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    /// For information.
    Info,
    /// Something was changed or is about to happen.
    Warn,
}

/// Content of `data-notice`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeData {
    /// Weight.
    pub level: NoticeLevel,
    /// Text.
    pub text: String,
}

/// Token counts and price of one step; the step number is absent in totals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepUsage {
    /// One-based step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Input tokens outside the cache.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens read from the cache.
    pub cache_read_tokens: u64,
    /// Tokens written to the cache.
    pub cache_write_tokens: u64,
    /// US dollars; absent for models without a known price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// Output of a tool as clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolOutput {
    /// Pieces in order.
    pub content: Vec<OutputContent>,
    /// For user interfaces only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// The tool ran and failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<True>,
}

/// One piece of a tool's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum OutputContent {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Image.
    Image {
        /// Media type.
        media_type: String,
        /// Where the bytes are.
        url: String,
    },
}

/// Serialises any value of this module to a JSON object, for metadata and persistent data parts.
pub fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}
