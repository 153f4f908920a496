//! One call to the service: identity, bounds, tries, breaker, and what a failure means. It knows no endpoint.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand::Rng;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::breaker::Breaker;
use crate::clock::Clock;
use crate::credentials::{Identity, Source};
use crate::error::Error;

/// Largest document that is read: 16 MiB, a page of a hundred large items.
const DOCUMENT: usize = 16 << 20;
/// A longer wait than this is the caller's matter.
const LONGEST_WAIT: u64 = 20;

/// How often and how fast a call is repeated.
///
/// Reads, deletions, stops, file writes and signals are repeated after a lost connection, a timeout and 5xx. Calls that
/// start something are repeated only when no connection was made. 429 is repeated for all: nothing began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries after the first.
    pub retries: u32,
    /// Wait before the second try; it doubles each time.
    pub first: Duration,
    /// Whether waits are lengthened by up to their half, at random.
    pub jitter: bool,
    /// Until the head of an answer.
    pub headers: Duration,
    /// Until the head of an answer to a call that blocks by design; the service itself gives up at 300 s.
    pub blocking: Duration,
    /// Between two pieces of a document or a file.
    pub body: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            // 100 ms, 200, 400, 800, 1600: 3.1 s in all.
            retries: 5,
            first: Duration::from_millis(100),
            jitter: true,
            headers: Duration::from_secs(60),
            blocking: Duration::from_secs(290),
            body: Duration::from_secs(60),
        }
    }
}

/// May the call be sent again when its outcome is not known?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Always,
    IfNothingBegan,
}

#[derive(Clone, Debug)]
pub enum Body {
    None,
    Json(Value),
    Archive { folder: String, content: Bytes },
}

/// A call, before it has an identity.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    /// Name of the query parameter that gets the project.
    pub project: Option<&'static str>,
    pub body: Body,
    pub repeat: Repeat,
    pub blocking: bool,
}

impl Call {
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, Body::None, Repeat::Always)
    }

    pub fn post(path: impl Into<String>, body: Body, repeat: Repeat) -> Self {
        Self::new(Method::POST, path, body, repeat)
    }

    pub fn new(method: Method, path: impl Into<String>, body: Body, repeat: Repeat) -> Self {
        Self { method, path: path.into(), query: Vec::new(), project: None, body, repeat, blocking: false }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub fn maybe(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, value.to_string()),
            None => self,
        }
    }

    pub fn project(mut self, name: &'static str) -> Self {
        self.project = Some(name);
        self
    }

    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }
}

#[derive(Debug)]
pub struct Transport {
    pub http: reqwest::Client,
    pub base: Url,
    pub source: Source,
    pub clock: Arc<dyn Clock>,
    pub policy: RetryPolicy,
    pub breaker: Arc<Breaker>,
}

/// How one try ended.
enum Try {
    Answered(Response),
    NoConnection(String),
    Lost(String),
    Late(Duration),
}

impl Transport {
    pub async fn identity(&self) -> Result<Identity, Error> {
        self.source.identity(self.clock.now(), false).await
    }

    /// Sends until there is an answer that is final: 2xx, or an error of this crate.
    pub async fn send(&self, call: &Call) -> Result<Response, Error> {
        let mut identity = self.identity().await?;
        let (mut tried, mut renewed) = (0, false);
        loop {
            let permit = self.breaker.ask(self.clock.now()).map_err(|until| Error::Unavailable { until })?;
            let outcome = self.attempt(call, &identity).await?;
            match &outcome {
                Try::Answered(response) if !response.status().is_server_error() => permit.answered(),
                _ => permit.failed(self.clock.now()),
            }
            let (error, wait) = match outcome {
                Try::Answered(response) if response.status().is_success() => return Ok(response),
                Try::Answered(response) if response.status() == StatusCode::UNAUTHORIZED && !renewed => {
                    renewed = true;
                    identity = self.source.identity(self.clock.now(), true).await?;
                    continue;
                }
                Try::Answered(response) => self.refusal(call, &identity, response).await?,
                Try::Lost(cause) if call.repeat == Repeat::IfNothingBegan => return Err(Error::OutcomeUnknown(cause)),
                Try::NoConnection(cause) | Try::Lost(cause) => (Error::Connection(cause), None),
                Try::Late(bound) if call.repeat == Repeat::IfNothingBegan => {
                    return Err(Error::OutcomeUnknown(format!("no answer within {bound:?}")));
                }
                Try::Late(bound) => (Error::Timeout(bound), None),
            };
            if tried == self.policy.retries {
                return Err(error);
            }
            self.clock.sleep(wait.unwrap_or_default() + self.backoff(tried)).await;
            tried += 1;
        }
    }

    /// One request, until the head of its answer.
    async fn attempt(&self, call: &Call, identity: &Identity) -> Result<Try, Error> {
        let request = self.request(call, identity)?;
        let bound = if call.blocking { self.policy.blocking } else { self.policy.headers };
        Ok(match tokio::time::timeout(bound, request.send()).await {
            Err(_) => Try::Late(bound),
            Ok(Ok(response)) => Try::Answered(response),
            Ok(Err(error)) if error.is_connect() => Try::NoConnection(cause(error)),
            Ok(Err(error)) if error.is_builder() => return Err(Error::Configuration(cause(error))),
            Ok(Err(error)) => Try::Lost(cause(error)),
        })
    }

    fn request(&self, call: &Call, identity: &Identity) -> Result<reqwest::RequestBuilder, Error> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{}", self.base.path().trim_end_matches('/'), call.path));
        url.query_pairs_mut().append_pair("teamId", &identity.team);
        if let Some(name) = call.project {
            url.query_pairs_mut().append_pair(name, &identity.project);
        }
        for (name, value) in &call.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut token = HeaderValue::from_str(&format!("Bearer {}", identity.token.expose_secret()))
            .map_err(|_| Error::Credentials("the token holds characters that no header may hold".to_owned()))?;
        token.set_sensitive(true);
        let request = self.http.request(call.method.clone(), url).header(AUTHORIZATION, token);
        Ok(match &call.body {
            Body::None => request.header(CONTENT_TYPE, "application/json"),
            Body::Json(value) => request.header(CONTENT_TYPE, "application/json").body(value.to_string()),
            Body::Archive { folder, content } => {
                request.header(CONTENT_TYPE, "application/gzip").header("x-cwd", folder.as_str()).body(content.clone())
            }
        })
    }

    /// What an answer beyond 2xx means: an error to repeat after, with a wait, or one to return.
    async fn refusal(
        &self,
        call: &Call,
        identity: &Identity,
        response: Response,
    ) -> Result<(Error, Option<Duration>), Error> {
        let status = response.status();
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = asked.map(Duration::from_secs);
        let far = asked.is_some_and(|seconds| seconds > LONGEST_WAIT);
        if status == StatusCode::TOO_MANY_REQUESTS {
            let error = Error::RateLimited { retry_after: wait };
            return if far { Err(error) } else { Ok((error, wait)) };
        }
        if status.is_server_error() {
            let error = Error::Service { status: status.as_u16() };
            return match call.repeat {
                Repeat::IfNothingBegan => Err(Error::OutcomeUnknown(error.to_string())),
                Repeat::Always if far => Err(error),
                Repeat::Always => Ok((error, wait)),
            };
        }
        // What cannot be read of a refusal changes nothing about it.
        let body = self.read(response, DOCUMENT).await.unwrap_or_default();
        let (code, message) = explanation(&body);
        Err(Error::Refused {
            status: status.as_u16(),
            code: code.map(|code| identity.without_token(&code)),
            message: identity.without_token(&message),
        })
    }

    /// 2^tried times the first wait, and up to half of that more.
    pub fn backoff(&self, tried: u32) -> Duration {
        let wait = self.policy.first.saturating_mul(2_u32.saturating_pow(tried));
        if self.policy.jitter { wait.mul_f64(rand::rng().random_range(1.0..1.5)) } else { wait }
    }

    /// Sends and reads a document. An answer that is lost after its head is treated like one that never came.
    pub async fn document<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        let body = self.content(call, DOCUMENT, None).await?;
        serde_json::from_slice(&body).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Sends and reads bytes, at most so many; `kind` is the only content type that is taken.
    pub async fn content(&self, call: &Call, largest: usize, kind: Option<&str>) -> Result<Bytes, Error> {
        let mut tried = 0;
        loop {
            let response = self.send(call).await?;
            expect(&response, kind)?;
            match self.read(response, largest).await {
                Err(Error::Connection(cause)) if call.repeat == Repeat::IfNothingBegan => {
                    return Err(Error::OutcomeUnknown(cause));
                }
                Err(Error::Connection(_)) if tried < self.policy.retries => {
                    self.clock.sleep(self.backoff(tried)).await;
                    tried += 1;
                }
                result => return result,
            }
        }
    }

    async fn read(&self, mut response: Response, largest: usize) -> Result<Bytes, Error> {
        let mut content = BytesMut::new();
        loop {
            let piece = match tokio::time::timeout(self.policy.body, response.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => return Ok(content.freeze()),
                Ok(Err(error)) => return Err(Error::Connection(cause(error))),
                Err(_) => return Err(Error::Connection(format!("the body stood still for {:?}", self.policy.body))),
            };
            if content.len() + piece.len() > largest {
                return Err(Error::TooLarge(largest));
            }
            content.extend_from_slice(&piece);
        }
    }
}

/// Refuses another content type than the expected one.
pub fn expect(response: &Response, kind: Option<&str>) -> Result<(), Error> {
    let found = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match kind {
        Some(kind) if !found.starts_with(kind) => Err(Error::Protocol(format!("{found:?} instead of {kind}"))),
        _ => Ok(()),
    }
}

/// The chain of causes, without the address: it is long and says nothing new.
pub fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut next = std::error::Error::source(&error);
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[derive(Deserialize)]
struct Explained {
    error: Explanation,
}

#[derive(Deserialize)]
struct Explanation {
    code: Option<String>,
    message: Option<String>,
}

/// Code and text of an error document; of anything else the first 200 characters.
fn explanation(body: &[u8]) -> (Option<String>, String) {
    match serde_json::from_slice::<Explained>(body) {
        Ok(Explained { error }) => (error.code, error.message.unwrap_or_default()),
        Err(_) => (None, String::from_utf8_lossy(body).chars().take(200).collect()),
    }
}
