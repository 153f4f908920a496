//! The Anthropic Messages API: transport, retries, error classes.
//!
//! Owns one provider wire. Must not know sessions, tools or HTTP routes.

mod decode;
mod request;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::sync::CancellationToken;

use self::decode::{Decoder, WireError, classify};
use super::key::ModelKey;
use super::{KeyState, Llm, LlmError, ModelEvent, ModelRequest};

/// Public address of the API.
pub const DEFAULT_BASE_URL: &str = "https://api.anthropic.com";
const VERSION: &str = "2023-06-01";
/// Arguments of tools arrive as the model writes them instead of in one piece.
const BETA: &str = "fine-grained-tool-streaming-2025-05-14";
/// Longest silence of the provider, headers included; it sends pings in between.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One call and three repetitions: about 0.5 + 1 + 2 s of waiting, doubled at most by jitter.
const RETRIES: usize = 3;
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// A longer pause asked by the provider is handed to the caller instead of waited for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// An error body longer than this is cut; it is only read for its kind and message.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// Bound of one answer: 64,000 tokens of 4 bytes, 100 bytes of framing each, with room to spare.
const MAX_STREAM_BYTES: usize = 64 * 1024 * 1024;

/// How to reach the provider.
#[derive(Debug)]
pub struct AnthropicConfiguration {
    /// With or without `/v1`.
    pub base_url: String,
    /// Key.
    pub key: ModelKey,
    /// Longest silence; `None` is 90 s.
    pub idle_timeout: Option<Duration>,
    /// Wait before the first repetition, doubled each time; `None` is 0.5 s.
    pub first_delay: Option<Duration>,
}

/// A client of the Messages API.
pub struct Anthropic {
    shared: Arc<Shared>,
}

struct Shared {
    client: reqwest::Client,
    url: String,
    key: ModelKey,
    idle_timeout: Duration,
    first_delay: Duration,
}

impl Anthropic {
    /// Builds the client; no network.
    pub fn new(configuration: AnthropicConfiguration) -> Result<Self, LlmError> {
        // The first caller of the process installs the provider; later ones find it in place.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none()) // a redirect would carry the key elsewhere
            .tcp_nodelay(true)
            .build()
            .map_err(|error| LlmError::Connection(without_url(error)))?;
        let base = configuration.base_url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        Ok(Self {
            shared: Arc::new(Shared {
                client,
                url: format!("{base}/v1/messages"),
                key: configuration.key,
                idle_timeout: configuration.idle_timeout.unwrap_or(IDLE_TIMEOUT),
                first_delay: configuration.first_delay.unwrap_or(FIRST_DELAY),
            }),
        })
    }
}

#[async_trait::async_trait]
impl Llm for Anthropic {
    fn provider(&self) -> &'static str {
        "anthropic"
    }

    fn api(&self) -> &'static str {
        "anthropic-messages"
    }

    fn key_state(&self) -> KeyState {
        self.shared.key.state()
    }

    async fn stream(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, LlmError>>, LlmError> {
        let body = serde_json::to_vec(&request::body(&request))
            .map_err(|error| LlmError::Protocol(format!("the request cannot be written: {error}")))?;
        let mut call = Call {
            shared: Arc::clone(&self.shared),
            body: body.into(),
            cancel: request.cancel,
            delays: ExponentialBuilder::default()
                .with_min_delay(self.shared.first_delay)
                .with_max_delay(Duration::from_secs(8))
                .with_max_times(RETRIES)
                .with_jitter()
                .build(),
            key_reread: false,
            events: None,
            decoder: Decoder::default(),
            ready: VecDeque::new(),
            shown: false,
            over: false,
        };
        let first = call.next().await.unwrap_or(Err(LlmError::Cancelled))?;
        let rest = futures::stream::unfold(call, |mut call| async move { call.next().await.map(|item| (item, call)) });
        Ok(futures::stream::once(async move { Ok(first) }).chain(rest).boxed())
    }
}

type Events = BoxStream<'static, Result<Event, EventStreamError<LlmError>>>;

/// One call with its repetitions.
struct Call {
    shared: Arc<Shared>,
    body: Bytes,
    cancel: CancellationToken,
    delays: ExponentialBackoff,
    key_reread: bool,
    events: Option<Events>,
    decoder: Decoder,
    ready: VecDeque<ModelEvent>,
    /// Something that a user sees was passed on, so nothing may be repeated.
    shown: bool,
    over: bool,
}

impl Call {
    async fn next(&mut self) -> Option<Result<ModelEvent, LlmError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.shown |= !matches!(event, ModelEvent::Usage(_));
                return Some(Ok(event));
            }
            if self.over {
                return None;
            }
            let cancel = self.cancel.clone();
            let result = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(LlmError::Cancelled),
                result = self.advance() => result,
            };
            if let Err(error) = result
                && let Err(error) = self.prepare_repetition(error).await
            {
                self.over = true;
                return Some(Err(error));
            }
        }
    }

    /// Connects if need be and takes one server-sent event.
    async fn advance(&mut self) -> Result<(), LlmError> {
        let idle = self.shared.idle_timeout;
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                let connected = tokio::time::timeout(idle, connect(&self.shared, self.body.clone())).await;
                none.insert(connected.map_err(|_| LlmError::Timeout)??)
            }
        };
        let event = tokio::time::timeout(idle, events.next()).await.map_err(|_| LlmError::Timeout)?;
        let Some(event) = event else {
            return Err(LlmError::Connection("the stream ended early".into()));
        };
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(error) => error,
            EventStreamError::Utf8(_) => LlmError::Protocol("not UTF-8".into()),
            EventStreamError::Parser(_) => LlmError::Protocol("not an event stream".into()),
        })?;
        let ready = &mut self.ready;
        self.decoder.take(&event.data, |event| ready.push_back(event))?;
        self.over = self.decoder.is_done();
        Ok(())
    }

    /// Waits until the request may be sent again, or gives the error back.
    async fn prepare_repetition(&mut self, error: LlmError) -> Result<(), LlmError> {
        if self.shown {
            return Err(error);
        }
        if error == LlmError::Auth {
            // `connect` has marked the key; with another one in the file the request is sent once more at once.
            if self.key_reread || self.shared.key.is_rejected() {
                return Err(error);
            }
            self.key_reread = true;
        } else {
            let pause = error.retry_after();
            if !error.is_transient() || pause.is_some_and(|pause| pause > MAX_RETRY_AFTER) {
                return Err(error);
            }
            let Some(delay) = self.delays.next() else { return Err(error) };
            let delay = pause.map_or(delay, |pause| pause.max(delay));
            tracing::info!(reason = error.reason(), delay_ms = delay.as_millis(), "repeating the model call");
            tokio::select! {
                () = self.cancel.cancelled() => return Err(LlmError::Cancelled),
                () = tokio::time::sleep(delay) => {}
            }
        }
        self.events = None;
        self.decoder = Decoder::default();
        self.ready.clear();
        Ok(())
    }
}

async fn connect(shared: &Shared, body: Bytes) -> Result<Events, LlmError> {
    let key = shared.key.get().ok_or(LlmError::KeyMissing)?;
    let mut header = reqwest::header::HeaderValue::from_str(key.expose_secret()).map_err(|_| LlmError::Auth)?;
    header.set_sensitive(true);
    let response = shared
        .client
        .post(&shared.url)
        .header("x-api-key", header)
        .header("anthropic-version", VERSION)
        .header("anthropic-beta", BETA)
        .header("content-type", "application/json")
        .header("accept", "text/event-stream")
        .body(body)
        .send()
        .await
        .map_err(
            |error| if error.is_timeout() { LlmError::Timeout } else { LlmError::Connection(without_url(error)) },
        )?;
    if !response.status().is_success() {
        return Err(refusal(shared, response, &key).await);
    }
    shared.key.accepted();
    let is_stream = response
        .headers()
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("text/event-stream"));
    if !is_stream {
        return Err(LlmError::Protocol("the answer is no event stream".into()));
    }
    Ok(events(response.bytes_stream().map_err(|error| LlmError::Connection(without_url(error)))))
}

/// The events in a body, which is bounded.
fn events(bytes: impl Stream<Item = Result<Bytes, LlmError>> + Send + 'static) -> Events {
    let mut received = 0;
    let bounded = bytes.map(move |chunk| {
        let chunk = chunk?;
        received += chunk.len();
        if received > MAX_STREAM_BYTES {
            return Err(LlmError::Protocol(format!("an answer of more than {MAX_STREAM_BYTES} bytes")));
        }
        Ok(chunk)
    });
    bounded.eventsource().boxed()
}

/// The body of an error answer.
#[derive(serde::Deserialize)]
struct Envelope {
    error: WireError,
}

/// Reads an error answer and gives its class.
async fn refusal(shared: &Shared, response: reqwest::Response, key: &SecretString) -> LlmError {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok()?.parse::<f64>().ok())
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let body = read_bounded(response).await;
    let kind = match status {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        413 => "request_too_large",
        500..=599 => "overloaded_error",
        _ => "invalid_request_error",
    };
    let mut error = serde_json::from_slice::<Envelope>(&body)
        .map(|envelope| envelope.error)
        .unwrap_or(WireError { kind: String::new(), message: format!("status {status}") });
    if error.kind.is_empty() || status == 401 || status == 429 || status >= 500 {
        error.kind = kind.into();
    }
    error.message = error.message.replace(key.expose_secret(), "[key]");
    let error = classify(&error, retry_after);
    if error == LlmError::Auth && shared.key.rejected(key) {
        tracing::info!("the model key was rejected; another one is in its file");
    }
    error
}

async fn read_bounded(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BODY {
            body.truncate(MAX_ERROR_BODY);
            break;
        }
    }
    body
}

/// Addresses can hold credentials, so they stay out of messages.
fn without_url(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
