//! The model: the trait, the conversation it sees and the events it streams.
//!
//! Owns provider-neutral model values. Must not know HTTP routes, sessions on disk, or how tools run.

pub mod anthropic;
pub mod key;
pub mod known;
pub mod models;
pub mod openai;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::catalog::ToolDefinition;

/// One block of a user message or tool result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum InputBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Image.
    #[serde(rename_all = "camelCase")]
    Image {
        /// Media type.
        mime_type: String,
        /// Standard base64.
        data: String,
    },
}

/// One block of an assistant message, in the order received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum AssistantBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Thinking; the signature must be replayed unchanged, `redacted` holds the provider's opaque data in `thinking_signature`.
    #[serde(rename_all = "camelCase")]
    Thinking {
        /// Shown text.
        thinking: String,
        /// Provider signature.
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking_signature: Option<String>,
        /// Provider withheld the text.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        redacted: bool,
    },
    /// Tool call.
    ToolCall {
        /// Id, unique in the session.
        id: String,
        /// Tool name.
        name: String,
        /// Parsed arguments.
        arguments: Value,
    },
}

/// One message of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelMessage {
    /// From the user.
    User(Vec<InputBlock>),
    /// From the model.
    Assistant(Vec<AssistantBlock>),
    /// Result of one tool call.
    ToolResult {
        /// Id of the call.
        tool_call_id: String,
        /// Content.
        content: Vec<InputBlock>,
        /// Failed.
        is_error: bool,
    },
}

/// Thinking budget, tokens: 0, 4,096, 16,384, 32,768.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingLevel {
    /// None.
    #[default]
    Off,
    /// 4,096.
    Low,
    /// 16,384.
    Medium,
    /// 32,768.
    High,
}

impl ThinkingLevel {
    /// Tokens the model may think before it answers.
    pub fn budget(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Low => 4_096,
            Self::Medium => 16_384,
            Self::High => 32_768,
        }
    }
}

/// One model call.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Model id.
    pub model: String,
    /// System prompt.
    pub system: String,
    /// Conversation; shared, as a long one holds megabytes of images.
    pub messages: Arc<Vec<ModelMessage>>,
    /// Tools on offer.
    pub tools: Vec<ToolDefinition>,
    /// Thinking.
    pub thinking: ThinkingLevel,
    /// Cancelled on stop.
    pub cancel: CancellationToken,
}

/// Token counts of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Input tokens that were neither read from nor written to the cache.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Read from the cache.
    pub cache_read: u64,
    /// Written to the cache.
    pub cache_write: u64,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Done.
    Stop,
    /// Token limit.
    Length,
    /// Wants tools.
    ToolUse,
    /// Refused.
    ContentFilter,
    /// Anything else.
    Other,
}

/// What a model call streams. Blocks are numbered by order of start; each is closed before `Done`. `Done` is last.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// Text begins.
    TextStart,
    /// More text.
    TextDelta(String),
    /// Text ends.
    TextEnd,
    /// Thinking begins.
    ThinkingStart,
    /// More thinking.
    ThinkingDelta(String),
    /// Thinking ends, with its signature; `redacted` means no text was shown.
    ThinkingEnd {
        /// Signature or opaque data.
        signature: Option<String>,
        /// Withheld.
        redacted: bool,
    },
    /// Tool call begins.
    ToolCallStart {
        /// Provider's id.
        id: String,
        /// Name.
        name: String,
    },
    /// More of the argument text.
    ToolCallDelta(String),
    /// Tool call ends; the argument text is complete.
    ToolCallEnd,
    /// Counts so far, replacing earlier ones, so that a call that is cut still has some.
    Usage(Usage),
    /// The call is over.
    Done {
        /// Why.
        reason: StopReason,
        /// Counts.
        usage: Usage,
    },
}

/// Classes of model failure; each has a stable word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// Key missing.
    #[error("no model key is configured")]
    KeyMissing,
    /// Key rejected.
    #[error("the model provider rejected the key")]
    Auth,
    /// Rate limit.
    #[error("the model provider limits the rate")]
    RateLimited {
        /// Asked pause.
        retry_after: Option<Duration>,
    },
    /// Overloaded.
    #[error("the model provider is overloaded")]
    Overloaded {
        /// Asked pause.
        retry_after: Option<Duration>,
    },
    /// Context too long.
    #[error("the conversation is longer than the model's context")]
    ContextTooLong,
    /// Request refused as invalid; the provider's message without secrets.
    #[error("the model provider refused the request: {0}")]
    Refused(String),
    /// No chunk within the idle timeout, or no connection.
    #[error("the model provider did not answer in time")]
    Timeout,
    /// Connection failed or broke.
    #[error("the connection to the model provider failed: {0}")]
    Connection(String),
    /// Not the agreed wire.
    #[error("the model provider sent something unexpected: {0}")]
    Protocol(String),
    /// Stopped by the caller.
    #[error("stopped")]
    Cancelled,
}

impl LlmError {
    /// Stable word for metrics, logs and the stream's `error.code`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::KeyMissing | Self::Auth => "model_unavailable",
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded { .. } => "model_overloaded",
            Self::ContextTooLong => "context_too_long",
            Self::Refused(_) => "model_refused",
            Self::Timeout => "model_timeout",
            Self::Connection(_) => "model_connection",
            Self::Protocol(_) => "model_protocol",
            Self::Cancelled => "stopped",
        }
    }

    /// The pause the provider asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after } | Self::Overloaded { retry_after } => *retry_after,
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Overloaded { .. } | Self::Timeout | Self::Connection(_))
    }
}

/// What is known about the key without touching the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// There is one, and the provider has not rejected it.
    Present,
    /// None is configured.
    Missing,
    /// The provider rejected the one there is.
    Rejected,
}

/// The events of one call, in order.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, LlmError>>;

/// A model provider.
#[async_trait::async_trait]
pub trait Llm: Send + Sync {
    /// Provider word, such as `anthropic`.
    fn provider(&self) -> &'static str;
    /// The wire's name in session files, such as `anthropic-messages`.
    fn api(&self) -> &'static str;
    /// What is known about the key; does not touch the network. Chat answers `model_unavailable` unless `Present`.
    fn key_state(&self) -> KeyState;
    /// Starts a call. Retries (4 attempts, `retry-after` honoured) happen only before the first event.
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, LlmError>;
}
