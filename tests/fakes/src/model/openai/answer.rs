//! Plays the actions of one call as chat completion chunks, or as one completion.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::{Interruption, Player, Sink, WORDS_PER_DELTA, cut, play};
use super::super::record::Record;
use super::super::script::Action;
use super::super::usage::tokens;
use super::super::{pieces, sign, wire};
use super::{ChatCall, error_body};

/// What ids of calls begin with.
pub(super) const CALL_PREFIX: &str = "call_";

/// The completion as it grows.
struct Playing {
    chat: ChatCall,
    sink: Sink,
    created: u64,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    output_tokens: u64,
    reasoning_tokens: u64,
    /// Blocks so far, for ids that prove where they came from.
    blocks: usize,
    thinking_blocks: usize,
    finish: Option<String>,
}

/// Answers an accepted call.
pub(super) async fn answer(record: &Arc<Record>, mut chat: ChatCall) -> Response {
    let (number, stream) = (chat.call.number, chat.call.stream);
    let actions = std::mem::take(&mut chat.call.actions);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let playing = Playing {
        chat,
        sink: Sink::default(),
        created,
        content: String::new(),
        reasoning: String::new(),
        calls: Vec::new(),
        output_tokens: 0,
        reasoning_tokens: 0,
        blocks: 0,
        thinking_blocks: 0,
        finish: None,
    };
    play(record, number, stream, actions, playing).await
}

impl Player for Playing {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    async fn begin(&mut self) -> Result<(), Interruption> {
        self.delta(&json!({ "role": "assistant", "content": "" }), Duration::ZERO).await
    }

    async fn action(&mut self, action: Action) -> Result<(), Interruption> {
        match action {
            Action::Text { text, chunks, delay } => self.text(&text, chunks, delay).await,
            Action::Thinking { .. } if !self.chat.call.thinking => Ok(()),
            Action::Thinking { text, chunks, delay } => self.think(&text, chunks, delay).await,
            Action::Tool { name, input, chunk_bytes, delay } => {
                let name = name.or_else(|| self.chat.call.first_tool.clone()).unwrap_or_else(|| "bash".to_owned());
                self.tool(&name, &input, chunk_bytes, delay).await
            }
            Action::Stop(word) => {
                self.finish = Some(finish_reason(&word).to_owned());
                Ok(())
            }
            // This wire has no such block; statuses were answered before the stream began.
            Action::RedactedThinking | Action::Error { .. } => Ok(()),
            Action::ErrorEvent { kind, .. } => Err(Interruption::ErrorEvent(kind)),
            Action::Cut { .. } => Err(Interruption::Cut),
            Action::Hang { pause, .. } => self.sink.pause(pause).await,
            Action::Sleep(pause) => self.sink.sleep(pause, ": waiting\n\n").await,
        }
    }

    async fn end(&mut self) -> Result<(), Interruption> {
        let finish = self.finish_reason();
        self.chunk(&json!([{ "index": 0, "delta": {}, "finish_reason": finish }]), &Value::Null).await?;
        if self.chat.include_usage {
            let usage = self.usage();
            self.chunk(&json!([]), &usage).await?;
        }
        self.sink.send("data: [DONE]\n\n".to_owned()).await
    }

    fn error_event(&self, kind: &str) -> String {
        let (kind, code) = match kind {
            "overloaded_error" | "api_error" => ("server_error", None),
            "rate_limit_error" => ("requests", Some("rate_limit_exceeded")),
            other => (other, None),
        };
        format!("data: {}\n\n", error_body(kind, code, wire::default_message("api_error")))
    }

    fn error_answer(&self, kind: &str) -> Response {
        let status = if kind == "overloaded_error" { 503 } else { 500 };
        super::error_response(&super::ProviderError::scripted(status, None, None))
    }

    fn whole(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        if !self.content.is_empty() {
            message["content"] = json!(self.content);
        }
        if !self.reasoning.is_empty() {
            message[self.chat.reasoning_field] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        json!({
            "id": format!("chatcmpl-{}", self.chat.call.nonce),
            "object": "chat.completion",
            "created": self.created,
            "model": self.chat.call.model,
            "choices": [{ "index": 0, "message": message, "finish_reason": self.finish_reason(), "logprobs": null }],
            "usage": self.usage(),
        })
    }
}

impl Playing {
    async fn text(&mut self, text: &str, chunks: Option<usize>, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(text);
        self.blocks += 1;
        for piece in cut(text, chunks, WORDS_PER_DELTA) {
            self.content.push_str(piece);
            self.delta(&json!({ "content": piece }), delay).await?;
        }
        Ok(())
    }

    async fn think(&mut self, text: &str, chunks: Option<usize>, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(text);
        self.reasoning_tokens += tokens(text);
        self.blocks += 1;
        self.thinking_blocks += 1;
        let field = self.chat.reasoning_field;
        for piece in cut(text, chunks, WORDS_PER_DELTA) {
            self.reasoning.push_str(piece);
            self.delta(&json!({ field: piece }), delay).await?;
        }
        Ok(())
    }

    async fn tool(&mut self, name: &str, input: &str, bytes: usize, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(name) + tokens(input);
        let id = sign::tool_id(&self.chat.call.nonce, self.blocks, self.thinking_blocks, name);
        let id = id.replacen("toolu_", CALL_PREFIX, 1);
        self.blocks += 1;
        let index = self.calls.len();
        let function = json!({ "name": name, "arguments": "" });
        let first = json!({ "index": index, "id": id, "type": "function", "function": function });
        self.delta(&json!({ "tool_calls": [first] }), Duration::ZERO).await?;
        for piece in pieces::by_bytes(input, bytes) {
            let part = json!({ "index": index, "function": { "arguments": piece } });
            self.delta(&json!({ "tool_calls": [part] }), delay).await?;
        }
        self.calls.push(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } }));
        Ok(())
    }

    async fn delta(&mut self, delta: &Value, delay: Duration) -> Result<(), Interruption> {
        self.sink.pause(delay).await?;
        self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": null }]), &Value::Null).await
    }

    async fn chunk(&mut self, choices: &Value, usage: &Value) -> Result<(), Interruption> {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", self.chat.call.nonce),
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.chat.call.model,
            "choices": choices,
        });
        if self.chat.include_usage {
            chunk["usage"] = usage.clone();
        }
        self.sink.send(format!("data: {chunk}\n\n")).await
    }

    fn finish_reason(&self) -> String {
        let usual = if self.calls.is_empty() { "stop" } else { "tool_calls" };
        self.finish.clone().unwrap_or_else(|| usual.to_owned())
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (self.chat.call.usage.prompt(), self.output_tokens.max(1));
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": self.chat.call.usage.cache_read },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning_tokens },
        })
    }
}

/// Scripts may use the words of either wire.
fn finish_reason(word: &str) -> &str {
    match word {
        "end_turn" | "stop_sequence" => "stop",
        "max_tokens" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        other => other,
    }
}
