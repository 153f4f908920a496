//! One turn: the trait, what a turn gets, what it emits and how it ends.
//!
//! Owns the vocabulary between the turn loop and the session that runs it. Must not know HTTP, files of sessions or
//! numbering of chunks. The session closes open parts and writes the terminal chunk; a harness only returns its end.

pub mod chunk;
pub mod compaction;
mod emit;
pub mod metrics;
pub mod open_parts;
mod pace;
pub mod prompt;
pub mod sanitize;
mod step;
mod tools;
mod turn_loop;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::llm::known::Cost;
use crate::llm::models::Models;
use crate::llm::{AssistantBlock, KeyState, ModelMessage, StopReason, ThinkingLevel, Usage};

use self::chunk::Chunk;
use self::compaction::CompactionRecord;
pub use self::turn_loop::TurnLoop;

/// Chunks and records that may wait for the session; a full channel slows the model's reader down.
pub const EVENT_BUFFER: usize = 64;

/// Why a turn was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AbortReason {
    /// Somebody asked for it.
    User,
    /// The workspace is drained.
    Drain,
    /// The server shuts down.
    Shutdown,
    /// The server died while the turn ran.
    Crash,
}

impl AbortReason {
    /// What a stopped call says, to users and to the model.
    pub fn text(self) -> &'static str {
        match self {
            Self::User => "Stopped by the user.",
            Self::Drain | Self::Shutdown => "Stopped because the workspace was being stopped.",
            Self::Crash => "Interrupted because the server stopped unexpectedly.",
        }
    }
}

/// Tells a running turn to stop. The first reason counts.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<AbortReason>>,
}

impl StopSignal {
    /// Stops the turn.
    pub fn stop(&self, reason: AbortReason) {
        let _first_counts = self.reason.set(reason);
        self.token.cancel();
    }

    /// Why, once stopped.
    pub fn reason(&self) -> Option<AbortReason> {
        self.reason.get().copied()
    }

    /// Cancelled on stop.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

/// Keeps an image and returns the address under which clients find it. Blocking.
pub type StoreImage = Arc<dyn Fn(&str, &str) -> Result<String, String> + Send + Sync>;

/// What a turn gets.
pub struct TurnRequest {
    /// Model id.
    pub model: String,
    /// Thinking.
    pub thinking: ThinkingLevel,
    /// The system prompt.
    pub system: String,
    /// The conversation, the new user message last.
    pub history: Vec<ModelMessage>,
    /// What a provider counted for the beginning of it.
    pub counted: Option<Counted>,
    /// Text of this turn's request that stands at the end of the system prompt.
    pub appended: Option<String>,
    /// Paths that tools were given so far, as they were given.
    pub touched: Vec<String>,
    /// Ids of calls that the session holds already; a repeated one gets a suffix.
    pub used_call_ids: HashSet<String>,
    /// Tells the turn to stop.
    pub stop: StopSignal,
    /// Keeps images of tool results: media type and base64.
    pub store_image: StoreImage,
}

/// Tokens that a provider counted for the first messages of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// So many messages.
    pub messages: usize,
    /// So many tokens, the system prompt and the tools included.
    pub tokens: u64,
}

/// One model message as it goes into the session file.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantRecord {
    /// Blocks in order; calls with unusable arguments hold `{}`.
    pub blocks: Vec<AssistantBlock>,
    /// Counts.
    pub usage: Usage,
    /// Price, where known.
    pub cost: Option<Cost>,
    /// How the message ended.
    pub end: MessageEnd,
}

/// How a model message ended.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageEnd {
    /// The stream ended well.
    Whole(StopReason),
    /// Stopped in mid-stream.
    Aborted,
    /// Failed in mid-stream.
    Failed(String),
}

/// One tool result as it goes into the session file.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRecord {
    /// Id of the call.
    pub tool_call_id: String,
    /// Tool name.
    pub tool_name: String,
    /// For the model.
    pub content: Vec<crate::catalog::ToolContent>,
    /// For user interfaces.
    pub details: Option<Value>,
    /// Failed, stopped or could not run.
    pub is_error: bool,
}

/// What a running turn emits, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// For clients. Never `start`, never terminal.
    Chunk(Chunk),
    /// A model message is complete or cut.
    Assistant(AssistantRecord),
    /// A call has its result; in the order of the calls.
    ToolResult(ToolRecord),
    /// From here on a summary stands for the older messages.
    Compaction(CompactionRecord),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEnd {
    /// Normally.
    Finished(chunk::FinishReason),
    /// By the stop signal.
    Aborted,
    /// By a failure.
    Failed {
        /// Stable word.
        code: String,
        /// For the user.
        message: String,
        /// Pause that the provider asked for.
        retry_after: Option<Duration>,
    },
}

/// Runs turns.
#[async_trait::async_trait]
pub trait Harness: Send + Sync {
    /// Provider word.
    fn provider(&self) -> &str;
    /// Name of the provider's wire in session files.
    fn api(&self) -> &str;
    /// The models on offer and their prices.
    fn models(&self) -> &Models;
    /// Whether the model can be asked; without network.
    fn key_state(&self) -> KeyState;
    /// The tools on offer.
    fn tools(&self) -> Vec<crate::catalog::ToolDefinition>;
    /// The system prompt as a turn would get it now, after tools were given the paths `touched`.
    async fn system_prompt(&self, appended: Option<&str>, touched: &[String]) -> String;
    /// What is counted about turns.
    fn metrics(&self) -> &Arc<metrics::TurnMetrics>;
    /// Runs one turn to its end. Dropping the future abandons the turn without a trace.
    async fn run(&self, request: TurnRequest, events: mpsc::Sender<TurnEvent>) -> TurnEnd;
}
