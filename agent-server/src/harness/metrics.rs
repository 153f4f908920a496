//! What is counted about turns. Owns names and labels of these families; labels come from enums and the catalog's own
//! tool names only. Must not know where metrics are shown.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// One label that is a fixed word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// `finished`, `aborted` or `error`.
    pub outcome: &'static str,
}

/// Kind of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TokenKind {
    /// `input`, `output`, `cache_read` or `cache_write`.
    pub kind: &'static str,
}

/// A tool and how its call went.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ToolOutcome {
    /// Name in the catalog; `unknown` for everything else.
    pub tool: String,
    /// `ok`, `error` (it ran and failed) or `not_run` (bad arguments, stopped).
    pub outcome: &'static str,
}

/// A tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ToolName {
    /// Name in the catalog; `unknown` for everything else.
    pub tool: String,
}

/// 10 ms to an hour in factors of about 4: 10 buckets per tool. Seconds of `bash` are those of commands.
fn tool_seconds() -> Histogram {
    Histogram::new([0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 40.0, 160.0, 640.0, 3600.0])
}

/// Everything that is counted.
#[derive(Debug)]
pub struct TurnMetrics {
    /// Turns by how they ended.
    pub turns: Family<Outcome, Counter>,
    /// Tokens by kind, summaries included.
    pub tokens: Family<TokenKind, Counter>,
    /// Calls of tools.
    pub tool_calls: Family<ToolOutcome, Counter>,
    /// Seconds that calls took.
    pub tool_seconds: Family<ToolName, Histogram, fn() -> Histogram>,
    /// Seconds from a turn's begin to the first thing that the model says.
    pub first_chunk_seconds: Histogram,
    /// Readers of chat streams.
    pub stream_readers: Gauge,
    /// Conversations that were summarised.
    pub compactions: Counter,
}

impl Default for TurnMetrics {
    fn default() -> Self {
        Self {
            turns: Family::default(),
            tokens: Family::default(),
            tool_calls: Family::default(),
            tool_seconds: Family::new_with_constructor(tool_seconds as fn() -> Histogram),
            first_chunk_seconds: Histogram::new([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0]),
            stream_readers: Gauge::default(),
            compactions: Counter::default(),
        }
    }
}

impl TurnMetrics {
    /// Registers all families.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("turns", "Turns by how they ended", self.turns.clone());
        registry.register("model_tokens", "Tokens by kind", self.tokens.clone());
        registry.register("tool_calls", "Calls of tools by outcome", self.tool_calls.clone());
        let seconds = self.tool_seconds.clone();
        registry.register_with_unit("tool_call", "Seconds that calls of tools took", Unit::Seconds, seconds);
        let first = self.first_chunk_seconds.clone();
        registry.register_with_unit("turn_first_chunk", "Seconds to the model's first chunk", Unit::Seconds, first);
        registry.register("chat_stream_readers", "Readers of chat streams", self.stream_readers.clone());
        registry.register("compactions", "Conversations that were summarised", self.compactions.clone());
    }

    /// One more reader, until the value is dropped.
    pub fn reader(&self) -> Reader {
        self.stream_readers.inc();
        Reader(self.stream_readers.clone())
    }
}

/// A reader that is counted.
#[derive(Debug)]
pub struct Reader(Gauge);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.dec();
    }
}
