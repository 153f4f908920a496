//! The Anthropic Messages API.
//!
//! Owns one provider wire. Must not know sessions, tools or HTTP routes.

mod decode;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use self::decode::{Decoder, WireError, classify};
use super::key::ModelKey;
use super::transport::{Endpoint, Transport, Wire, secret_header};
use super::{KeyState, Llm, LlmError, ModelRequest, ModelStream};

/// Public address of the API.
pub const DEFAULT_BASE_URL: &str = "https://api.anthropic.com";
const VERSION: &str = "2023-06-01";
/// Arguments of tools arrive as the model writes them instead of in one piece.
const BETA: &str = "fine-grained-tool-streaming-2025-05-14";

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
    transport: Arc<Transport<MessagesApi>>,
}

impl Anthropic {
    /// Builds the client; no network.
    pub fn new(configuration: AnthropicConfiguration) -> Result<Self, LlmError> {
        let base = configuration.base_url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let transport = Transport::new(Endpoint {
            url: format!("{base}/v1/messages"),
            key: configuration.key,
            idle_timeout: configuration.idle_timeout,
            first_delay: configuration.first_delay,
        })?;
        Ok(Self { transport: Arc::new(transport) })
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
        self.transport.key.state()
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, LlmError> {
        let body = serde_json::to_vec(&request::body(&request))
            .map_err(|error| LlmError::Protocol(format!("the request cannot be written: {error}")))?;
        self.transport.stream(body, request.cancel).await
    }
}

/// The wire.
pub(super) struct MessagesApi;

impl Wire for MessagesApi {
    type Decoder = Decoder;

    fn headers(key: Option<&SecretString>) -> Result<HeaderMap, LlmError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            secret_header(&mut headers, HeaderName::from_static("x-api-key"), key.expose_secret())?;
        }
        headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
        headers.insert("anthropic-beta", HeaderValue::from_static(BETA));
        Ok(headers)
    }

    fn refusal(status: u16, body: &str, retry_after: Option<Duration>) -> LlmError {
        let kind = match status {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            413 => "request_too_large",
            500..=599 => "overloaded_error",
            _ => "invalid_request_error",
        };
        let mut error = serde_json::from_str::<Envelope>(body)
            .map(|envelope| envelope.error)
            .unwrap_or(WireError { kind: String::new(), message: format!("status {status}") });
        if error.kind.is_empty() || status == 401 || status == 429 || status >= 500 {
            error.kind = kind.into();
        }
        classify(&error, retry_after)
    }
}

/// The body of an error answer.
#[derive(serde::Deserialize)]
struct Envelope {
    error: WireError,
}
