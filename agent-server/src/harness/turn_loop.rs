//! The turn loop: call the model, run the tools it asks for, until it asks for none.
//!
//! Owns the order of one turn. Must not know sessions, numbering, files or HTTP.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::chunk::{Chunk, FinishReason, NoticeLevel, StepUsage, object};
use super::compaction::{self, CompactionRecord};
use super::emit::Emitter;
use super::metrics::TurnMetrics;
use super::prompt::{self, PromptSettings};
use super::step::{Call, Step, StepOutcome};
use super::tools::ToolRunner;
use super::{AssistantRecord, Counted, Harness, MessageEnd, ToolRecord, TurnEnd, TurnEvent, TurnRequest};
use crate::catalog::{Catalog, ToolContent, ToolDefinition};
use crate::llm::models::Models;
use crate::llm::{InputBlock, KeyState, Llm, LlmError, ModelMessage, ModelRequest, StopReason, Usage};
use crate::sandbox::Sandbox;
use crate::workspace::Workspace;

/// Model calls of one turn; a model that still asks for tools then has to be told to go on by the user.
const MAX_STEPS: u32 = 200;

/// The built-in harness.
pub struct TurnLoop {
    /// The model.
    pub llm: Arc<dyn Llm>,
    /// The models on offer and their prices.
    pub models: Models,
    /// The tools.
    pub catalog: Arc<Catalog>,
    /// Files.
    pub workspace: Arc<dyn Workspace>,
    /// Commands.
    pub sandbox: Arc<dyn Sandbox>,
    /// What the prompt says about this server.
    pub prompt: PromptSettings,
    /// Tokens of the model's context that are used before older messages are summarised.
    pub context_tokens: u64,
    /// What is counted.
    pub metrics: Arc<TurnMetrics>,
}

/// Counts of the turn so far; the price is absent once one call had none.
#[derive(Default)]
struct Totals {
    calls: u32,
    usage: Usage,
    cost: Option<f64>,
}

impl Totals {
    fn add(&mut self, usage: Usage, cost: Option<f64>) {
        self.cost = match (self.calls, self.cost, cost) {
            (0, _, cost) => cost,
            (_, Some(sum), Some(cost)) => Some(sum + cost),
            _ => None,
        };
        self.calls += 1;
        self.usage.input += usage.input;
        self.usage.output += usage.output;
        self.usage.cache_read += usage.cache_read;
        self.usage.cache_write += usage.cache_write;
    }
}

/// How full the model's context is.
struct Context {
    counted: Option<Counted>,
    /// Counts of summaries since the last step, shown with the next one.
    summaries: Totals,
}

fn shown_usage(step: Option<u32>, usage: Usage, cost_usd: Option<f64>) -> StepUsage {
    StepUsage {
        step,
        input_tokens: usage.input,
        output_tokens: usage.output,
        cache_read_tokens: usage.cache_read,
        cache_write_tokens: usage.cache_write,
        cost_usd: cost_usd.map(|cost| (cost * 1e8).round() / 1e8),
    }
}

#[async_trait::async_trait]
impl Harness for TurnLoop {
    fn provider(&self) -> &str {
        self.llm.provider()
    }

    fn api(&self) -> &str {
        self.llm.api()
    }

    fn models(&self) -> &Models {
        &self.models
    }

    fn key_state(&self) -> KeyState {
        self.llm.key_state()
    }

    fn tools(&self) -> Vec<crate::catalog::ToolDefinition> {
        self.catalog.definitions()
    }

    async fn system_prompt(&self, appended: Option<&str>, touched: &[String]) -> String {
        prompt::build(&self.prompt, self.workspace.as_ref(), &self.sandbox.isolation(), appended, touched).await
    }

    fn metrics(&self) -> &Arc<TurnMetrics> {
        &self.metrics
    }

    async fn run(&self, request: TurnRequest, events: mpsc::Sender<TurnEvent>) -> TurnEnd {
        Turn::new(self, request, Emitter(events)).run().await
    }
}

/// One running turn.
struct Turn<'a> {
    harness: &'a TurnLoop,
    request: TurnRequest,
    emitter: Emitter,
    conversation: Arc<Vec<ModelMessage>>,
    tools: Vec<ToolDefinition>,
    known_tools: HashSet<String>,
    totals: Totals,
    context: Context,
    /// Cancelled when this value goes, whatever the reason.
    over: DropGuard,
}

impl<'a> Turn<'a> {
    fn new(harness: &'a TurnLoop, mut request: TurnRequest, emitter: Emitter) -> Self {
        let tools = harness.catalog.definitions();
        let known_tools = tools.iter().map(|tool| tool.name.clone()).collect();
        let conversation = Arc::new(std::mem::take(&mut request.history));
        let over = request.stop.token().child_token().drop_guard();
        let context = Context { counted: request.counted.take(), summaries: Totals::default() };
        Self { harness, request, emitter, conversation, tools, known_tools, totals: Totals::default(), context, over }
    }

    async fn run(mut self) -> TurnEnd {
        for number in 1..=MAX_STEPS {
            if self.needs_room()
                && let Err(error) = self.make_room().await
            {
                return failed(&error);
            }
            self.emitter.chunk(Chunk::StartStep {}).await;
            let outcome = self.call_model_with_room(number).await;
            if let Some(end) = self.take_outcome(number, outcome).await {
                return end;
            }
            self.emitter.chunk(Chunk::FinishStep {}).await;
            if self.request.stop.reason().is_some() {
                return TurnEnd::Aborted;
            }
        }
        let text = format!("The turn ended after {MAX_STEPS} steps; say \"go on\" to continue.");
        self.emitter.chunk(Chunk::notice(NoticeLevel::Warn, text)).await;
        TurnEnd::Finished(FinishReason::ToolCalls)
    }

    /// A conversation that the provider finds too long is summarised once, and the call made once more.
    async fn call_model_with_room(&mut self, number: u32) -> StepOutcome {
        let mut outcome = self.call_model(number).await;
        if outcome.end == Err(LlmError::ContextTooLong) && outcome.blocks.is_empty() {
            match self.make_room().await {
                Ok(true) => outcome = self.call_model(number).await,
                Ok(false) => {}
                Err(error) => outcome.end = Err(error),
            }
        }
        outcome
    }

    async fn call_model(&mut self, number: u32) -> StepOutcome {
        let request = ModelRequest {
            model: self.request.model.clone(),
            system: self.request.system.clone(),
            messages: Arc::clone(&self.conversation),
            tools: self.tools.clone(),
            thinking: self.request.thinking,
            cancel: self.request.stop.token().child_token(),
        };
        let step = Step::new(number, &self.emitter, &mut self.request.used_call_ids, &self.known_tools);
        step.run(self.harness.llm.as_ref(), request, &self.request.stop).await
    }

    /// Records the message and runs its calls; `Some` ends the turn.
    async fn take_outcome(&mut self, number: u32, outcome: StepOutcome) -> Option<TurnEnd> {
        let StepOutcome { blocks, calls, usage, end } = outcome;
        let cost = self.harness.models.cost(&self.request.model, usage);
        let counted = usage != Usage::default();
        if counted || end.is_ok() {
            let mut step = std::mem::take(&mut self.context.summaries);
            step.add(usage, cost.map(|cost| cost.total));
            self.totals.add(step.usage, step.cost);
            let data = shown_usage(Some(number), step.usage, step.cost);
            self.emitter.chunk(Chunk::DataUsage { id: format!("s{number}-usage"), data }).await;
        }
        let message_end = match &end {
            Ok(_) if !calls.is_empty() => MessageEnd::Whole(StopReason::ToolUse),
            Ok(reason) => MessageEnd::Whole(*reason),
            Err(LlmError::Cancelled) => MessageEnd::Aborted,
            Err(error) => MessageEnd::Failed(error.to_string()),
        };
        let record = AssistantRecord { blocks: blocks.clone(), usage, cost, end: message_end };
        self.emitter.event(TurnEvent::Assistant(record)).await;
        if counted && (end.is_err() || !calls.is_empty()) {
            self.show_totals().await;
        }
        match end {
            Err(error) => Some(failed(&error)),
            Ok(reason) if calls.is_empty() => {
                self.emitter.chunk(Chunk::FinishStep {}).await;
                Some(TurnEnd::Finished(finish_reason(reason)))
            }
            Ok(_) => {
                // The provider's adapter has let its share go by now, so nothing is copied.
                let conversation = Arc::make_mut(&mut self.conversation);
                conversation.push(ModelMessage::Assistant(blocks));
                self.context.counted = Some(Counted { messages: conversation.len(), tokens: prompt_tokens(usage) });
                let touched = touched_paths(&calls);
                let runner = ToolRunner {
                    catalog: Arc::clone(&self.harness.catalog),
                    workspace: Arc::clone(&self.harness.workspace),
                    sandbox: Arc::clone(&self.harness.sandbox),
                    emitter: self.emitter.clone(),
                    stop: self.request.stop.clone(),
                    turn_over: self.over.token().clone(),
                    store_image: Arc::clone(&self.request.store_image),
                    metrics: Arc::clone(&self.harness.metrics),
                };
                let records = runner.run(calls).await;
                Arc::make_mut(&mut self.conversation).extend(records.into_iter().map(tool_message));
                self.look_at(touched).await;
                None
            }
        }
    }

    /// Instructions of folders that were touched for the first time go into the prompt of the next call.
    async fn look_at(&mut self, paths: Vec<String>) {
        let before = self.request.touched.len();
        for path in paths {
            if !self.request.touched.contains(&path) {
                self.request.touched.push(path);
            }
        }
        if self.request.touched.len() > before {
            let (appended, touched) = (self.request.appended.as_deref(), &self.request.touched);
            self.request.system = self.harness.system_prompt(appended, touched).await;
        }
    }

    /// Whether the next call needs room and a summary would make some: one of an eighth of the context at least, else a
    /// single huge message would be summarised around at every step.
    fn needs_room(&self) -> bool {
        let context = self.harness.context_tokens;
        let older = || {
            compaction::cut(&self.conversation, context)
                .map_or(0, |first| compaction::estimate(&self.conversation[..first]))
        };
        compaction::is_full(self.next_tokens(), context) && older() > context / 8
    }

    /// Tokens of the next call: what the provider counted for the last one, and an estimate for what came since.
    fn next_tokens(&self) -> u64 {
        match self.context.counted {
            Some(Counted { messages, tokens }) => {
                tokens + compaction::estimate(self.conversation.get(messages..).unwrap_or_default())
            }
            None => compaction::estimate(&self.conversation) + compaction::estimate_text(&self.request.system),
        }
    }

    /// Puts a summary in the place of the older messages; false when there is nothing to summarise.
    async fn make_room(&mut self) -> Result<bool, LlmError> {
        let context = self.harness.context_tokens;
        let Some(first_kept) = compaction::cut(&self.conversation, context) else { return Ok(false) };
        let text = "The conversation has become long; its older part is being summarised for the model.";
        self.emitter.chunk(Chunk::notice(NoticeLevel::Info, text)).await;
        let (llm, model, stop) = (self.harness.llm.as_ref(), &self.request.model, self.request.stop.token());
        let older = &self.conversation[..first_kept];
        let (summary, usage) = compaction::summarise(llm, model, older, context, stop).await?;
        self.context.summaries.add(usage, self.harness.models.cost(model, usage).map(|cost| cost.total));
        let tokens_before = compaction::estimate(&self.conversation);
        let conversation = Arc::make_mut(&mut self.conversation);
        let text = compaction::shown_to_model(&summary);
        conversation.splice(..first_kept, [ModelMessage::User(vec![InputBlock::Text { text }])]);
        self.context.counted = None;
        self.harness.metrics.compactions.inc();
        self.emitter.event(TurnEvent::Compaction(CompactionRecord { summary, first_kept, tokens_before })).await;
        Ok(true)
    }

    /// Repeats the usage so far, so that a stopped turn keeps it.
    async fn show_totals(&self) {
        let usage = shown_usage(None, self.totals.usage, self.totals.cost);
        let message_metadata = object(&json!({ "usage": usage }));
        self.emitter.chunk(Chunk::MessageMetadata { message_metadata }).await;
    }
}

/// All tokens that the next call begins with: what the call read, and what it wrote.
fn prompt_tokens(usage: Usage) -> u64 {
    usage.input + usage.cache_read + usage.cache_write + usage.output
}

/// The `path` arguments of calls.
fn touched_paths(calls: &[Call]) -> Vec<String> {
    let path = |call: &Call| Some(call.arguments.as_ref().ok()?.get("path")?.as_str()?.to_owned());
    calls.iter().filter_map(path).collect()
}

fn failed(error: &LlmError) -> TurnEnd {
    match error {
        LlmError::Cancelled => TurnEnd::Aborted,
        error => TurnEnd::Failed {
            code: error.reason().into(),
            message: error.to_string(),
            retry_after: error.retry_after(),
        },
    }
}

fn finish_reason(reason: StopReason) -> FinishReason {
    match reason {
        StopReason::Stop => FinishReason::Stop,
        StopReason::Length => FinishReason::Length,
        StopReason::ContentFilter => FinishReason::ContentFilter,
        StopReason::ToolUse => FinishReason::ToolCalls,
        StopReason::Other => FinishReason::Other,
    }
}

fn tool_message(record: ToolRecord) -> ModelMessage {
    let content = record
        .content
        .into_iter()
        .map(|piece| match piece {
            ToolContent::Text(text) => InputBlock::Text { text },
            ToolContent::Image { media_type, data } => InputBlock::Image { mime_type: media_type, data },
        })
        .collect();
    ModelMessage::ToolResult { tool_call_id: record.tool_call_id, content, is_error: record.is_error }
}
