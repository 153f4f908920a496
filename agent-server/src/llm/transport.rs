//! One model call over HTTP: connection, silence, bounds, repetitions, the life of the key.
//!
//! Owns what all wires share. Must not know the form of a request or of an event: a [`Wire`] does.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::sync::CancellationToken;

use super::key::ModelKey;
use super::{LlmError, ModelEvent, ModelStream};

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
/// Bound of one answer: 128,000 tokens of 4 bytes, 300 bytes of framing each, with room to spare.
const MAX_STREAM_BYTES: usize = 64 * 1024 * 1024;
/// Bound of one line of it. The event parser looks at an unfinished line anew with each piece, 0.3 s for this much in all;
/// a server that sends a whole tool call in one event stays far below.
const MAX_LINE_BYTES: usize = 2 * 1024 * 1024;

/// What differs between the wires.
pub trait Wire: Send + Sync + 'static {
    /// Reads the stream of one attempt.
    type Decoder: Decode + Default;

    /// The headers that name the API and prove who calls; `key` is absent where the provider needs none.
    fn headers(key: Option<&SecretString>) -> Result<HeaderMap, LlmError>;

    /// The class of an error answer. `body` is cut at 64 KiB and no longer holds the key.
    fn refusal(status: u16, body: &str, retry_after: Option<Duration>) -> LlmError;
}

/// Turns the data of server-sent events into model events.
pub trait Decode: Send {
    /// Takes the data of one event.
    fn take(&mut self, data: &str, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError>;

    /// The body has ended without a mark of its end: the answer is whole, or an error.
    fn end(&mut self, emit: &mut dyn FnMut(ModelEvent)) -> Result<(), LlmError>;

    /// The answer is whole.
    fn is_done(&self) -> bool;
}

/// Where calls go and how patient they are.
#[derive(Debug)]
pub struct Endpoint {
    /// Full address.
    pub url: String,
    /// Key.
    pub key: ModelKey,
    /// Longest silence; `None` is 90 s.
    pub idle_timeout: Option<Duration>,
    /// Wait before the first repetition, doubled each time; `None` is 0.5 s.
    pub first_delay: Option<Duration>,
}

/// A client of one endpoint.
pub struct Transport<W> {
    client: reqwest::Client,
    url: String,
    pub(super) key: ModelKey,
    idle_timeout: Duration,
    first_delay: Duration,
    wire: PhantomData<fn() -> W>,
}

impl<W: Wire> Transport<W> {
    /// Builds the client; no network.
    pub fn new(endpoint: Endpoint) -> Result<Self, LlmError> {
        // The first caller of the process installs the provider; later ones find it in place.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none()) // a redirect would carry the key elsewhere
            .tcp_nodelay(true)
            .build()
            .map_err(|error| LlmError::Connection(without_url(error)))?;
        Ok(Self {
            client,
            url: endpoint.url,
            key: endpoint.key,
            idle_timeout: endpoint.idle_timeout.unwrap_or(IDLE_TIMEOUT),
            first_delay: endpoint.first_delay.unwrap_or(FIRST_DELAY),
            wire: PhantomData,
        })
    }

    /// Sends a request and follows its answer.
    pub async fn stream(self: &Arc<Self>, body: Vec<u8>, cancel: CancellationToken) -> Result<ModelStream, LlmError> {
        let mut call = Call::new(Arc::clone(self), body.into(), cancel);
        let first = call.next().await.unwrap_or(Err(LlmError::Cancelled))?;
        let rest = futures::stream::unfold(call, |mut call| async move { call.next().await.map(|item| (item, call)) });
        Ok(futures::stream::once(async move { Ok(first) }).chain(rest).boxed())
    }

    async fn connect(&self, body: Bytes) -> Result<Events, LlmError> {
        let key = self.key.get()?;
        let mut headers = W::headers(key.as_ref())?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.client.post(&self.url).headers(headers).body(body).send().await.map_err(|error| {
            if error.is_timeout() { LlmError::Timeout } else { LlmError::Connection(without_url(error)) }
        })?;
        if !response.status().is_success() {
            return Err(self.refusal(response, key.as_ref()).await);
        }
        self.key.accepted();
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with("text/event-stream"));
        if !is_stream {
            return Err(LlmError::Protocol("the answer is no event stream".into()));
        }
        Ok(events(response.bytes_stream().map_err(|error| LlmError::Connection(without_url(error)))))
    }

    /// Reads an error answer and gives its class.
    async fn refusal(&self, response: reqwest::Response, key: Option<&SecretString>) -> LlmError {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        let body = read_bounded(response).await;
        let body = without_key(&String::from_utf8_lossy(&body), key);
        let error = W::refusal(status, &body, retry_after);
        if error != LlmError::Auth {
            return error;
        }
        if self.key.rejected(key) {
            tracing::info!("the model key was rejected; another one is in its file");
        }
        if key.is_some() { error } else { LlmError::KeyMissing }
    }
}

/// The pause that a provider asks for: milliseconds where it says them, else seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let milliseconds = number("retry-after-ms").map(|milliseconds| milliseconds / 1_000.0);
    Duration::try_from_secs_f64(milliseconds.or_else(|| number("retry-after"))?).ok()
}

/// A header whose value stays out of debug output. A key that cannot stand in a header is a wrong key.
pub fn secret_header(headers: &mut HeaderMap, name: HeaderName, value: &str) -> Result<(), LlmError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| LlmError::Auth)?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

type Events = BoxStream<'static, Result<Event, EventStreamError<LlmError>>>;

/// One call with its repetitions.
pub(super) struct Call<W: Wire> {
    transport: Arc<Transport<W>>,
    body: Bytes,
    cancel: CancellationToken,
    delays: ExponentialBackoff,
    key_reread: bool,
    events: Option<Events>,
    decoder: W::Decoder,
    ready: VecDeque<ModelEvent>,
    /// Something that a user sees was passed on, so nothing may be repeated.
    shown: bool,
    over: bool,
}

impl<W: Wire> Call<W> {
    fn new(transport: Arc<Transport<W>>, body: Bytes, cancel: CancellationToken) -> Self {
        let delays = ExponentialBuilder::default()
            .with_min_delay(transport.first_delay)
            .with_max_delay(Duration::from_secs(8))
            .with_max_times(RETRIES)
            .with_jitter()
            .build();
        Self {
            transport,
            body,
            cancel,
            delays,
            key_reread: false,
            events: None,
            decoder: W::Decoder::default(),
            ready: VecDeque::new(),
            shown: false,
            over: false,
        }
    }

    /// A call that has its answer already and repeats nothing.
    #[cfg(test)]
    pub(super) fn answered(transport: &Arc<Transport<W>>, pieces: Vec<Bytes>) -> Self {
        let mut call = Self::new(Arc::clone(transport), Bytes::new(), CancellationToken::new());
        call.delays = ExponentialBuilder::default().with_max_times(0).build();
        call.events = Some(events(futures::stream::iter(pieces.into_iter().map(Ok))));
        call
    }

    pub(super) async fn next(&mut self) -> Option<Result<ModelEvent, LlmError>> {
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
        let idle = self.transport.idle_timeout;
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                let connected = tokio::time::timeout(idle, self.transport.connect(self.body.clone())).await;
                none.insert(connected.map_err(|_| LlmError::Timeout)??)
            }
        };
        let event = tokio::time::timeout(idle, events.next()).await.map_err(|_| LlmError::Timeout)?;
        let ready = &mut self.ready;
        let mut emit = |event| ready.push_back(event);
        let Some(event) = event else {
            self.decoder.end(&mut emit)?;
            self.over = true;
            return Ok(());
        };
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(error) => error,
            EventStreamError::Utf8(_) => LlmError::Protocol("not UTF-8".into()),
            EventStreamError::Parser(_) => LlmError::Protocol("not an event stream".into()),
        })?;
        self.decoder.take(&event.data, &mut emit).map_err(|error| match error {
            LlmError::Refused(text) => {
                LlmError::Refused(without_key(&text, self.transport.key.get().ok().flatten().as_ref()))
            }
            other => other,
        })?;
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
            if self.key_reread || self.transport.key.is_rejected() {
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
        self.decoder = W::Decoder::default();
        self.ready.clear();
        Ok(())
    }
}

/// The events in a body, which is bounded.
fn events(bytes: impl Stream<Item = Result<Bytes, LlmError>> + Send + 'static) -> Events {
    let mut received = 0;
    let mut line = 0;
    let bounded = bytes.map(move |chunk| {
        let chunk = chunk?;
        received += chunk.len();
        if received > MAX_STREAM_BYTES {
            return Err(LlmError::Protocol(format!("an answer of more than {MAX_STREAM_BYTES} bytes")));
        }
        line = match chunk.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => chunk.len() - last - 1,
            None => line + chunk.len(),
        };
        if line > MAX_LINE_BYTES {
            return Err(LlmError::Protocol(format!("a line of more than {MAX_LINE_BYTES} bytes")));
        }
        Ok(chunk)
    });
    bounded.eventsource().boxed()
}

/// A server may echo the key in an error.
fn without_key(text: &str, key: Option<&SecretString>) -> String {
    key.map_or_else(|| text.to_owned(), |key| text.replace(key.expose_secret(), "[key]"))
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
