//! One model call: its events become chunks at once and blocks at the end.
//!
//! Owns the part ids (`s<step>-t<block>`, `s<step>-r<block>`), pacing and the parsing of arguments. Must not run tools.

use std::collections::HashSet;

use futures::StreamExt;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::StopSignal;
use super::chunk::{Chunk, NoticeLevel, True};
use super::emit::Emitter;
use super::pace::{Paced, Pacer};
use super::sanitize::drop_prototype_keys;
use crate::llm::{AssistantBlock, Llm, LlmError, ModelEvent, ModelRequest, StopReason, Usage};

/// Longest argument text of one call: the output limit of the largest model, 64,000 tokens of up to 64 bytes.
const MAX_ARGUMENT_BYTES: usize = 4 * 1024 * 1024;

/// A call that the model asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Id, unique in the session.
    pub id: String,
    /// Tool name.
    pub name: String,
    /// The arguments, or what is wrong with them.
    pub arguments: Result<Value, String>,
}

/// What one model call came to.
pub struct StepOutcome {
    /// Blocks in order, cut ones included.
    pub blocks: Vec<AssistantBlock>,
    /// Complete calls.
    pub calls: Vec<Call>,
    /// Counts.
    pub usage: Usage,
    /// Why the stream ended, well or not.
    pub end: Result<StopReason, LlmError>,
}

/// What the running step holds.
pub struct Step<'a> {
    /// One-based.
    pub number: u32,
    /// Events out.
    pub emitter: &'a Emitter,
    /// Ids in use; new ones are added.
    pub used_call_ids: &'a mut HashSet<String>,
    /// Names of the tools on offer.
    pub known_tools: &'a HashSet<String>,
    blocks: Vec<AssistantBlock>,
    calls: Vec<Call>,
    usage: Usage,
    open: Open,
}

enum Open {
    Nothing,
    Text { id: Option<String>, text: String, pacer: Pacer },
    Thinking { id: Option<String>, text: String, pacer: Pacer },
    Call { id: String, name: String, raw: String, pacer: Pacer },
}

impl<'a> Step<'a> {
    /// Prepares a step.
    pub fn new(
        number: u32,
        emitter: &'a Emitter,
        used_call_ids: &'a mut HashSet<String>,
        known_tools: &'a HashSet<String>,
    ) -> Self {
        Self {
            number,
            emitter,
            used_call_ids,
            known_tools,
            blocks: Vec::new(),
            calls: Vec::new(),
            usage: Usage::default(),
            open: Open::Nothing,
        }
    }

    /// Calls the model and follows it to its end, or until stopped.
    pub async fn run(mut self, llm: &dyn Llm, request: ModelRequest, stop: &StopSignal) -> StepOutcome {
        let end = self.follow(llm, request, stop).await;
        if end.is_err() {
            self.abandon_open().await;
        }
        StepOutcome { blocks: self.blocks, calls: self.calls, usage: self.usage, end }
    }

    async fn follow(
        &mut self,
        llm: &dyn Llm,
        request: ModelRequest,
        stop: &StopSignal,
    ) -> Result<StopReason, LlmError> {
        let mut events = tokio::select! {
            biased;
            () = stop.token().cancelled() => return Err(LlmError::Cancelled),
            events = llm.stream(request) => events?,
        };
        loop {
            let due = self.pacer().and_then(|pacer| pacer.due());
            tokio::select! {
                biased;
                () = stop.token().cancelled() => return Err(LlmError::Cancelled),
                event = events.next() => match event {
                    Some(Ok(ModelEvent::Done { reason, usage })) => {
                        self.usage = usage;
                        self.close_text().await;
                        return Ok(reason);
                    }
                    Some(Ok(event)) => self.take(event).await?,
                    Some(Err(error)) => return Err(error),
                    None => return Err(LlmError::Protocol("the stream ended without an end".into())),
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let text = self.pacer().and_then(|pacer| pacer.take_due(Instant::now()));
                    self.send_delta(text).await;
                }
            }
        }
    }

    async fn take(&mut self, event: ModelEvent) -> Result<(), LlmError> {
        match event {
            ModelEvent::Usage(usage) => self.usage = usage,
            ModelEvent::TextStart => {
                self.close_text().await;
                self.open = Open::Text { id: None, text: String::new(), pacer: Pacer::new(Paced::Text) };
            }
            ModelEvent::ThinkingStart => {
                self.close_text().await;
                self.open = Open::Thinking { id: None, text: String::new(), pacer: Pacer::new(Paced::Text) };
            }
            ModelEvent::TextDelta(delta) | ModelEvent::ThinkingDelta(delta) | ModelEvent::ToolCallDelta(delta) => {
                self.delta(&delta).await?;
            }
            ModelEvent::TextEnd => self.close_text().await,
            ModelEvent::ThinkingEnd { signature, redacted } => self.close_thinking(signature, redacted).await,
            ModelEvent::ToolCallStart { id, name } => {
                self.close_text().await;
                self.start_call(&id, name).await;
            }
            ModelEvent::ToolCallEnd => self.close_call().await,
            ModelEvent::Done { .. } => {}
        }
        Ok(())
    }

    /// A part begins with its first text, so that empty blocks leave no part.
    async fn delta(&mut self, delta: &str) -> Result<(), LlmError> {
        if delta.is_empty() {
            return Ok(());
        }
        let index = self.blocks.len();
        let begin = match &mut self.open {
            Open::Text { id, .. } if id.is_none() => {
                let id = id.insert(format!("s{}-t{index}", self.number));
                Some(Chunk::TextStart { id: id.clone() })
            }
            Open::Thinking { id, .. } if id.is_none() => {
                let id = id.insert(format!("s{}-r{index}", self.number));
                Some(Chunk::ReasoningStart { id: id.clone() })
            }
            _ => None,
        };
        if let Some(chunk) = begin {
            self.emitter.chunk(chunk).await;
        }
        let out = match &mut self.open {
            Open::Text { text, pacer, .. } | Open::Thinking { text, pacer, .. } => {
                text.push_str(delta);
                pacer.push(delta, Instant::now())
            }
            Open::Call { raw, pacer, .. } => {
                if raw.len() + delta.len() > MAX_ARGUMENT_BYTES {
                    return Err(LlmError::Protocol(format!("arguments of more than {MAX_ARGUMENT_BYTES} bytes")));
                }
                raw.push_str(delta);
                pacer.push(delta, Instant::now())
            }
            Open::Nothing => return Err(LlmError::Protocol("a delta outside a block".into())),
        };
        self.send_delta(out).await;
        Ok(())
    }

    fn pacer(&mut self) -> Option<&mut Pacer> {
        match &mut self.open {
            Open::Text { pacer, .. } | Open::Thinking { pacer, .. } | Open::Call { pacer, .. } => Some(pacer),
            Open::Nothing => None,
        }
    }

    async fn send_delta(&self, text: Option<String>) {
        let Some(delta) = text else { return };
        let chunk = match &self.open {
            Open::Text { id: Some(id), .. } => Chunk::TextDelta { id: id.clone(), delta },
            Open::Thinking { id: Some(id), .. } => Chunk::ReasoningDelta { id: id.clone(), delta },
            Open::Call { id, .. } => Chunk::ToolInputDelta { tool_call_id: id.clone(), input_text_delta: delta },
            _ => return,
        };
        self.emitter.chunk(chunk).await;
    }

    async fn close_text(&mut self) {
        match &self.open {
            Open::Text { .. } => {
                let rest = self.pacer().and_then(Pacer::take_rest);
                self.send_delta(rest).await;
                if let Open::Text { id: Some(id), text, .. } = std::mem::replace(&mut self.open, Open::Nothing) {
                    self.blocks.push(AssistantBlock::Text { text });
                    self.emitter.chunk(Chunk::TextEnd { id }).await;
                }
            }
            // A provider that forgets to end these still leaves a sound message.
            Open::Thinking { .. } => self.close_thinking(None, false).await,
            Open::Call { .. } => self.close_call().await,
            Open::Nothing => {}
        }
    }

    async fn close_thinking(&mut self, signature: Option<String>, redacted: bool) {
        let rest = self.pacer().and_then(Pacer::take_rest);
        self.send_delta(rest).await;
        if let Open::Thinking { id, text, .. } = std::mem::replace(&mut self.open, Open::Nothing) {
            if id.is_some() || signature.is_some() {
                self.blocks.push(AssistantBlock::Thinking { thinking: text, thinking_signature: signature, redacted });
            }
            if let Some(id) = id {
                self.emitter.chunk(Chunk::ReasoningEnd { id }).await;
            }
        }
    }

    async fn start_call(&mut self, id: &str, name: String) {
        let id = unique(id, self.used_call_ids);
        self.emitter
            .chunk(Chunk::ToolInputStart { tool_call_id: id.clone(), tool_name: name.clone(), provider_executed: True })
            .await;
        self.open = Open::Call { id, name, raw: String::new(), pacer: Pacer::new(Paced::Arguments) };
    }

    async fn close_call(&mut self) {
        let rest = self.pacer().and_then(Pacer::take_rest);
        self.send_delta(rest).await;
        let Open::Call { id, name, raw, .. } = std::mem::replace(&mut self.open, Open::Nothing) else { return };
        let mut arguments =
            if self.known_tools.contains(&name) { parse(&raw) } else { Err(format!("There is no tool named {name}.")) };
        if let Ok(value) = &mut arguments
            && drop_prototype_keys(value) > 0
        {
            let text = format!("Some keys of the arguments of {name} are not allowed and were left out.");
            self.emitter.chunk(Chunk::notice(NoticeLevel::Warn, text)).await;
        }
        self.emitter
            .chunk(Chunk::ToolInputAvailable {
                tool_call_id: id.clone(),
                tool_name: name.clone(),
                input: arguments.clone().unwrap_or(Value::String(raw)),
                provider_executed: True,
            })
            .await;
        self.blocks.push(AssistantBlock::ToolCall {
            id: id.clone(),
            name: name.clone(),
            arguments: arguments.clone().unwrap_or_else(|_| Value::Object(Map::new())),
        });
        self.calls.push(Call { id, name, arguments });
    }

    /// Sends what waits and keeps the cut block; the session closes the part.
    async fn abandon_open(&mut self) {
        let rest = self.pacer().and_then(Pacer::take_rest);
        self.send_delta(rest).await;
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Text { id: Some(_), text, .. } => self.blocks.push(AssistantBlock::Text { text }),
            Open::Thinking { id: Some(_), text, .. } => {
                self.blocks.push(AssistantBlock::Thinking {
                    thinking: text,
                    thinking_signature: None,
                    redacted: false,
                });
            }
            Open::Call { id, name, .. } => {
                self.blocks.push(AssistantBlock::ToolCall { id, name, arguments: Value::Object(Map::new()) });
            }
            _ => {}
        }
    }
}

/// The arguments as an object; no text at all means no arguments.
fn parse(raw: &str) -> Result<Value, String> {
    if raw.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    match serde_json::from_str(raw) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("The arguments are no JSON object.".into()),
        Err(error) => Err(format!("The arguments are no valid JSON: {error}.")),
    }
}

/// The provider's id, with a suffix when the session has it already.
fn unique(id: &str, used: &mut HashSet<String>) -> String {
    let base = if id.is_empty() { "call" } else { id };
    let mut unique = base.to_owned();
    let mut number = 2;
    while !used.insert(unique.clone()) {
        unique = format!("{base}-{number}");
        number += 1;
    }
    unique
}
