//! Lines of the session file: what they hold.
//!
//! Owns the file's vocabulary. Must not touch a disk or know how a line is written (`line`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fold::DataPart;
use crate::harness::{AssistantRecord, MessageEnd};
use crate::llm::known::Cost;
use crate::llm::{AssistantBlock, StopReason, Usage};

/// `customType` of our own lines.
pub const TURN_TYPE: &str = "boring-agent/turn";
/// `customType` of lines about follow-ups.
pub const FOLLOW_UP_TYPE: &str = "boring-agent/follow-up";

/// A line after the header.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Eight hex digits.
    pub id: String,
    /// The line before it on its branch.
    pub parent: Option<String>,
    /// When.
    pub timestamp: String,
    /// What.
    pub kind: Kind,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A user message.
    User {
        /// Blocks in order.
        content: Vec<Block>,
    },
    /// A model message.
    Assistant(Assistant),
    /// A tool result.
    ToolResult(ToolResult),
    /// Begin or end of one of our turns.
    Turn(Box<TurnData>),
    /// A follow-up was queued or cancelled.
    FollowUp(Box<FollowUpData>),
    /// A new name.
    Name(String),
    /// Another model from here on.
    Model {
        /// Provider word.
        provider: String,
        /// Model id.
        model: String,
    },
    /// Another thinking level from here on.
    Thinking(String),
    /// Older messages were summarised for the model.
    Compaction {
        /// The summary.
        summary: String,
        /// The first message that is still sent as it was.
        first_kept: String,
        /// Estimated tokens before.
        tokens_before: u64,
    },
    /// Something else that another program wrote; `text` is what its model saw as a user message, if anything.
    Other {
        /// Text for the model.
        text: Option<String>,
    },
}

/// A block of a user message or tool result. Images stay in the attachment store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Text.
    Text(String),
    /// Kept image; the file holds `[image NAME, SIZE, sha256:…]`.
    Kept(KeptImage),
    /// Image in the file itself, as other programs write it.
    Inline {
        /// Media type.
        mime_type: String,
        /// Base64.
        data: String,
    },
}

/// An image in the attachment store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptImage {
    /// Hex digest of the bytes.
    pub sha256: String,
    /// Media type.
    pub media_type: String,
    /// File name for people.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// A model message.
#[derive(Debug, Clone, PartialEq)]
pub struct Assistant {
    /// Blocks in order.
    pub blocks: Vec<AssistantBlock>,
    /// Name of the wire.
    pub api: String,
    /// Provider word.
    pub provider: String,
    /// Model id.
    pub model: String,
    /// Counts.
    pub usage: Usage,
    /// Price; zero where unknown, as the format demands a number.
    pub cost: Cost,
    /// `stop`, `length`, `toolUse`, `error`, `aborted`.
    pub stop: String,
    /// Message of an error.
    pub error: Option<String>,
}

impl Assistant {
    /// From a harness's record.
    pub fn new(record: AssistantRecord, api: &str, provider: &str, model: &str) -> Self {
        let (stop, error) = match record.end {
            MessageEnd::Whole(StopReason::ToolUse) => ("toolUse", None),
            MessageEnd::Whole(StopReason::Length) => ("length", None),
            MessageEnd::Whole(_) => ("stop", None),
            MessageEnd::Aborted => ("aborted", None),
            MessageEnd::Failed(message) => ("error", Some(message)),
        };
        Self {
            blocks: record.blocks,
            api: api.into(),
            provider: provider.into(),
            model: model.into(),
            usage: record.usage,
            cost: record.cost.unwrap_or_default(),
            stop: stop.into(),
            error,
        }
    }

    /// Cut in mid-stream, so that its calls have no results.
    pub fn is_cut(&self) -> bool {
        matches!(self.stop.as_str(), "aborted" | "error")
    }
}

/// A tool result.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// Id of the call.
    pub tool_call_id: String,
    /// Tool name.
    pub tool_name: String,
    /// Blocks in order.
    pub content: Vec<Block>,
    /// For user interfaces.
    pub details: Option<Value>,
    /// Failed, stopped or could not run.
    pub is_error: bool,
}

/// State of a turn in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnStatus {
    /// Begun; a later line of the same turn says how it ended.
    Running,
    /// Ended normally.
    Finished,
    /// Stopped.
    Aborted,
    /// Failed.
    Error,
}

/// A call that could not run or was stopped, as the user saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolErrorData {
    /// Text.
    pub error_text: String,
    /// The shown input, where it is not the call's arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// Content of our own lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnData {
    /// Turn.
    pub turn_id: String,
    /// Its assistant message.
    pub message_id: String,
    /// The user message that it answers.
    pub user_message_id: String,
    /// The line of that user message.
    #[serde(default)]
    pub user_entry: String,
    /// State.
    pub status: TurnStatus,
    /// Metadata of the assistant message.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Lines of the turn's messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<String>,
    /// Persistent data parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_parts: Vec<DataPart>,
    /// Calls that could not run or were stopped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_errors: BTreeMap<String, ToolErrorData>,
    /// Parts of the user message, where they are more than one text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_parts: Option<Vec<Value>>,
    /// Metadata of the user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Value>,
}

impl KeptImage {
    /// What stands in the file and what models without the image see.
    pub fn placeholder(&self) -> String {
        format!("[image {}, {} bytes, sha256:{}]", self.name, self.size, self.sha256)
    }
}

/// What a line says about a follow-up. It begins with the first line of a turn that answers its user message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum FollowUpData {
    /// It waits from here on.
    Queued(QueuedMessage),
    /// It is not to run, whether or not it was queued before.
    #[serde(rename_all = "camelCase")]
    Cancelled {
        /// The client's name of the follow-up.
        client_nonce: String,
    },
}

/// A user message that waits for its turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedMessage {
    /// The client's name of the follow-up.
    pub client_nonce: String,
    /// Its place: smaller ones first, equal ones in order of arrival.
    pub client_seq: u64,
    /// Id of the user message.
    pub user_message_id: String,
    /// The UI message; its files are kept already.
    pub message: Value,
}
