//! Plays the actions of one call: as a stream of server-sent events in the provider's order, or as one message.
//!
//! The life of an answer is the same for both wires ([`Player`]); the frames below are those of the Messages API.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use super::record::{Outcome, Record};
use super::script::Action;
use super::usage::{PromptUsage, tokens};
use super::{ProviderError, pieces, sign, wire};

/// Events that may wait for a slow reader: a few kilobytes per stream.
const QUEUED_EVENTS: usize = 64;
/// Words in a delta when the script does not say how many deltas.
pub(super) const WORDS_PER_DELTA: usize = 3;
/// Distance of pings in a `sleep`.
const PING_EVERY: Duration = Duration::from_secs(5);
/// A sign of life of the Messages API.
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// An accepted call.
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) nonce: String,
    pub(super) stream: bool,
    pub(super) thinking: bool,
    pub(super) thinking_shown: bool,
    pub(super) first_tool: Option<String>,
    pub(super) model: String,
    pub(super) usage: PromptUsage,
    pub(super) actions: Vec<Action>,
}

/// Why playing ended before the last action.
pub(super) enum Interruption {
    /// The script wants a broken connection.
    Cut,
    /// The script wants an `error` event of this type.
    ErrorEvent(String),
    /// The reader went away.
    Gone,
}

/// Where events go: to a stream, or nowhere when one message is asked.
pub(super) struct Sink {
    events: Option<mpsc::Sender<io::Result<Bytes>>>,
    /// When the next event is due; pauses add to it, so that they do not drift.
    due: Instant,
}

/// One wire's way to play.
pub(super) trait Player: Send + 'static {
    /// Where its events go.
    fn sink(&mut self) -> &mut Sink;
    /// What comes before the first action.
    fn begin(&mut self) -> impl Future<Output = Result<(), Interruption>> + Send;
    /// One action.
    fn action(&mut self, action: Action) -> impl Future<Output = Result<(), Interruption>> + Send;
    /// What comes after the last action.
    fn end(&mut self) -> impl Future<Output = Result<(), Interruption>> + Send;
    /// The frame of an error in mid-stream.
    fn error_event(&self, kind: &str) -> String;
    /// The answer where one message was asked and the script wants an error event.
    fn error_answer(&self, kind: &str) -> Response;
    /// The one message.
    fn whole(&self) -> Value;
}

/// Plays one call as it was asked for and notes how it ended.
pub(super) async fn play(
    record: &Arc<Record>,
    number: u64,
    stream: bool,
    mut actions: Vec<Action>,
    mut player: impl Player,
) -> Response {
    record.accept(number);
    let mut guard = Ended { record: Arc::clone(record), number, outcome: Outcome::Abandoned };
    if let Some(Action::Hang { pause, .. }) = actions.first() {
        tokio::time::sleep(*pause).await;
        actions.remove(0);
    }
    let id = wire::request_id_header(&wire::next_request_id());
    if !stream {
        let (response, outcome) = play_message(&mut player, actions).await;
        guard.outcome = outcome;
        return ([id], response).into_response();
    }
    let (events, receiver) = mpsc::channel(QUEUED_EVENTS);
    player.sink().events = Some(events);
    tokio::spawn(async move {
        // Moves the whole guard; naming only its field would leave it behind.
        let mut guard = guard;
        guard.outcome = play_stream(&mut player, actions).await;
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    let body = ReceiverStream::new(receiver).then(|event| async {
        if event.is_err() {
            // The server flushes what came before only when the body has nothing more for the moment.
            tokio::task::yield_now().await;
        }
        event
    });
    (headers, [id], Body::from_stream(body)).into_response()
}

async fn play_all(player: &mut impl Player, actions: Vec<Action>) -> Result<(), Interruption> {
    player.begin().await?;
    for action in actions {
        player.action(action).await?;
    }
    player.end().await
}

/// Notes the end of a call however it ends; a dropped future is a reader that went away.
struct Ended {
    record: Arc<Record>,
    number: u64,
    outcome: Outcome,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.record.end(self.number, self.outcome);
    }
}

async fn play_stream(player: &mut impl Player, actions: Vec<Action>) -> Outcome {
    match play_all(player, actions).await {
        Ok(()) => Outcome::Finished,
        Err(Interruption::Gone) => Outcome::Abandoned,
        Err(Interruption::Cut) => {
            if let Some(events) = &player.sink().events {
                // The reader may have left; the cut is then its own.
                let _ = events.send(Err(io::Error::other("cut by the script"))).await;
            }
            Outcome::Broken
        }
        Err(Interruption::ErrorEvent(kind)) => {
            let frame = player.error_event(&kind);
            match player.sink().send(frame).await {
                Ok(()) => Outcome::Broken,
                Err(_) => Outcome::Abandoned,
            }
        }
    }
}

async fn play_message(player: &mut impl Player, actions: Vec<Action>) -> (Response, Outcome) {
    match play_all(player, actions).await {
        Ok(()) => (Json(player.whole()).into_response(), Outcome::Finished),
        Err(Interruption::ErrorEvent(kind)) => (player.error_answer(&kind), Outcome::Broken),
        Err(Interruption::Cut | Interruption::Gone) => {
            let cut = futures::stream::once(async { Err::<Bytes, _>(io::Error::other("cut by the script")) });
            (Body::from_stream(cut).into_response(), Outcome::Broken)
        }
    }
}

impl Default for Sink {
    fn default() -> Self {
        Self { events: None, due: Instant::now() }
    }
}

impl Sink {
    /// Sends one frame.
    pub(super) async fn send(&mut self, frame: String) -> Result<(), Interruption> {
        let Some(events) = &self.events else { return Ok(()) };
        events.send(Ok(Bytes::from(frame))).await.map_err(|_| Interruption::Gone)
    }

    /// Waits, unless the reader goes away. Pauses are counted from the time the one before was due.
    pub(super) async fn pause(&mut self, pause: Duration) -> Result<(), Interruption> {
        if pause.is_zero() {
            return Ok(());
        }
        let now = Instant::now();
        // After a pause longer than it should have been, do not send a burst to make up for it.
        self.due = if self.due + pause < now { now } else { self.due + pause };
        let Some(events) = &self.events else {
            sleep_until(self.due).await;
            return Ok(());
        };
        let closed = pin!(events.closed());
        tokio::select! {
            () = sleep_until(self.due) => Ok(()),
            () = closed => Err(Interruption::Gone),
        }
    }

    /// Waits with a sign of life at the start and every five seconds.
    pub(super) async fn sleep(&mut self, pause: Duration, sign: &str) -> Result<(), Interruption> {
        let mut left = pause;
        while !left.is_zero() {
            self.send(sign.to_owned()).await?;
            let part = left.min(PING_EVERY);
            self.pause(part).await?;
            left -= part;
        }
        Ok(())
    }
}

/// Cuts a text into deltas: as many as the script says, else of so many words each.
pub(super) fn cut(text: &str, chunks: Option<usize>, words: usize) -> Vec<&str> {
    chunks.map_or_else(|| pieces::by_words(text, words), |count| pieces::by_count(text, count))
}

/// The message of the Messages API as it grows.
struct Playing {
    call: Call,
    sink: Sink,
    content: Vec<Value>,
    output_tokens: u64,
    thinking_blocks: usize,
    stop_reason: Option<String>,
    pinged: bool,
}

/// Answers an accepted call of the Messages API.
pub(super) async fn answer(record: &Arc<Record>, mut call: Call) -> Response {
    let (number, stream) = (call.number, call.stream);
    let actions = std::mem::take(&mut call.actions);
    let playing = Playing {
        call,
        sink: Sink::default(),
        content: Vec::new(),
        output_tokens: 0,
        thinking_blocks: 0,
        stop_reason: None,
        pinged: false,
    };
    play(record, number, stream, actions, playing).await
}

impl Player for Playing {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    async fn begin(&mut self) -> Result<(), Interruption> {
        let mut start = self.whole();
        start["stop_reason"] = Value::Null;
        start["usage"] = self.call.usage.object(1);
        self.event("message_start", &json!({ "type": "message_start", "message": start })).await
    }

    async fn end(&mut self) -> Result<(), Interruption> {
        let usage = self.call.usage.object(self.output_tokens.max(1));
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": null });
        let closing = json!({ "type": "message_delta", "delta": delta, "usage": usage });
        self.event("message_delta", &closing).await?;
        self.event("message_stop", &json!({ "type": "message_stop" })).await
    }

    async fn action(&mut self, action: Action) -> Result<(), Interruption> {
        match action {
            Action::Text { text, chunks, delay } => self.text(&text, chunks, delay).await,
            Action::Thinking { .. } | Action::RedactedThinking if !self.call.thinking => Ok(()),
            Action::Thinking { text, chunks, delay } => self.think(&text, chunks, delay).await,
            Action::RedactedThinking => {
                let data = sign::signature(&self.call.nonce, self.content.len(), "");
                self.thinking_blocks += 1;
                let block = json!({ "type": "redacted_thinking", "data": data });
                self.open(&block).await?;
                self.close(block).await
            }
            Action::Tool { name, input, chunk_bytes, delay } => {
                let name = name.or_else(|| self.call.first_tool.clone()).unwrap_or_else(|| "bash".to_owned());
                self.tool(&name, &input, chunk_bytes, delay).await
            }
            Action::Stop(reason) => {
                self.stop_reason = Some(reason);
                Ok(())
            }
            // Statuses were answered before the stream began; those that have worn off are gone.
            Action::Error { .. } => Ok(()),
            Action::ErrorEvent { kind, .. } => Err(Interruption::ErrorEvent(kind)),
            Action::Cut { .. } => Err(Interruption::Cut),
            Action::Hang { pause, .. } => self.sink.pause(pause).await,
            Action::Sleep(pause) => self.sink.sleep(pause, PING).await,
        }
    }

    fn error_event(&self, kind: &str) -> String {
        format!("event: error\ndata: {}\n\n", wire::error_body(kind, wire::default_message(kind)))
    }

    fn error_answer(&self, kind: &str) -> Response {
        let status = if kind == "overloaded_error" { 529 } else { 500 };
        ProviderError::scripted(status, None, None).into_response()
    }

    fn whole(&self) -> Value {
        json!({
            "id": format!("msg_{}", self.call.nonce),
            "type": "message",
            "role": "assistant",
            "model": self.call.model,
            "content": self.content,
            "stop_reason": self.stop_reason(),
            "stop_sequence": null,
            "usage": self.call.usage.object(self.output_tokens.max(1)),
        })
    }
}

impl Playing {
    async fn text(&mut self, text: &str, chunks: Option<usize>, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(text);
        self.open(&json!({ "type": "text", "text": "" })).await?;
        for piece in cut(text, chunks, WORDS_PER_DELTA) {
            self.delta(&json!({ "type": "text_delta", "text": piece }), delay).await?;
        }
        self.close(json!({ "type": "text", "text": text })).await
    }

    async fn think(&mut self, text: &str, chunks: Option<usize>, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(text);
        let text = if self.call.thinking_shown { text } else { "" };
        let signature = sign::signature(&self.call.nonce, self.content.len(), text);
        self.thinking_blocks += 1;
        self.open(&json!({ "type": "thinking", "thinking": "", "signature": "" })).await?;
        for piece in cut(text, chunks, WORDS_PER_DELTA) {
            self.delta(&json!({ "type": "thinking_delta", "thinking": piece }), delay).await?;
        }
        self.delta(&json!({ "type": "signature_delta", "signature": signature }), Duration::ZERO).await?;
        self.close(json!({ "type": "thinking", "thinking": text, "signature": signature })).await
    }

    async fn tool(&mut self, name: &str, input: &str, bytes: usize, delay: Duration) -> Result<(), Interruption> {
        self.output_tokens += tokens(name) + tokens(input);
        let id = sign::tool_id(&self.call.nonce, self.content.len(), self.thinking_blocks, name);
        self.open(&json!({ "type": "tool_use", "id": id, "name": name, "input": {} })).await?;
        self.delta(&json!({ "type": "input_json_delta", "partial_json": "" }), Duration::ZERO).await?;
        // The provider sends no argument text at all for an empty object.
        let sent = if input == "{}" { "" } else { input };
        for piece in pieces::by_bytes(sent, bytes) {
            self.delta(&json!({ "type": "input_json_delta", "partial_json": piece }), delay).await?;
        }
        let parsed = serde_json::from_str(input).unwrap_or_else(|_| Value::String(input.to_owned()));
        self.close(json!({ "type": "tool_use", "id": id, "name": name, "input": parsed })).await
    }

    async fn open(&mut self, block: &Value) -> Result<(), Interruption> {
        let index = self.content.len();
        let start = json!({ "type": "content_block_start", "index": index, "content_block": block });
        self.event("content_block_start", &start).await?;
        if !self.pinged {
            self.pinged = true;
            self.sink.send(PING.to_owned()).await?;
        }
        Ok(())
    }

    async fn delta(&mut self, delta: &Value, delay: Duration) -> Result<(), Interruption> {
        self.sink.pause(delay).await?;
        let index = self.content.len();
        self.event("content_block_delta", &json!({ "type": "content_block_delta", "index": index, "delta": delta }))
            .await
    }

    async fn close(&mut self, block: Value) -> Result<(), Interruption> {
        let index = self.content.len();
        self.content.push(block);
        self.event("content_block_stop", &json!({ "type": "content_block_stop", "index": index })).await
    }

    async fn event(&mut self, name: &str, data: &Value) -> Result<(), Interruption> {
        self.sink.send(format!("event: {name}\ndata: {data}\n\n")).await
    }

    fn stop_reason(&self) -> String {
        let called = self.content.iter().any(|block| block["type"] == "tool_use");
        let usual = if called { "tool_use" } else { "end_turn" };
        self.stop_reason.clone().unwrap_or_else(|| usual.to_owned())
    }
}
