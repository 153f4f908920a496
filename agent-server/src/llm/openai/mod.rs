//! OpenAI-compatible chat completions: the wire that hosted providers and local servers share.
//!
//! Owns one provider wire. Must not know sessions, tools or HTTP routes.

mod decode;
mod refusal;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use secrecy::{ExposeSecret, SecretString};

use self::decode::Decoder;
use super::key::ModelKey;
use super::transport::{Endpoint, Transport, Wire, secret_header};
use super::{KeyState, Llm, LlmError, ModelRequest, ModelStream};

/// Public address of the API.
pub const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// How to reach the provider.
#[derive(Debug)]
pub struct OpenaiConfiguration {
    /// What stands before `/chat/completions`; an address without a path gets `/v1`.
    pub base_url: String,
    /// Key.
    pub key: ModelKey,
    /// Longest silence; `None` is 90 s.
    pub idle_timeout: Option<Duration>,
    /// Wait before the first repetition, doubled each time; `None` is 0.5 s.
    pub first_delay: Option<Duration>,
}

/// A client of chat completions.
pub struct Openai {
    transport: Arc<Transport<ChatCompletions>>,
}

impl Openai {
    /// Builds the client; no network.
    pub fn new(configuration: OpenaiConfiguration) -> Result<Self, LlmError> {
        let transport = Transport::new(Endpoint {
            url: address(&configuration.base_url),
            key: configuration.key,
            idle_timeout: configuration.idle_timeout,
            first_delay: configuration.first_delay,
        })?;
        Ok(Self { transport: Arc::new(transport) })
    }
}

fn address(base_url: &str) -> String {
    let base = base_url.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path { format!("{base}/chat/completions") } else { format!("{base}/v1/chat/completions") }
}

#[async_trait::async_trait]
impl Llm for Openai {
    fn provider(&self) -> &'static str {
        "openai"
    }

    fn api(&self) -> &'static str {
        "openai-completions"
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
pub(super) struct ChatCompletions;

impl Wire for ChatCompletions {
    type Decoder = Decoder;

    fn headers(key: Option<&SecretString>) -> Result<HeaderMap, LlmError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            secret_header(&mut headers, AUTHORIZATION, &format!("Bearer {}", key.expose_secret()))?;
        }
        Ok(headers)
    }

    fn refusal(status: u16, body: &str, retry_after: Option<Duration>) -> LlmError {
        refusal::of_answer(status, body, retry_after)
    }
}

/// The field of a message that holds the model's reasoning: servers of this wire use one of two, and want it back under
/// the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningField {
    Content,
    Plain,
}

impl ReasoningField {
    /// The name, which is also what session files hold as the signature of a thinking block.
    const fn name(self) -> &'static str {
        match self {
            Self::Content => "reasoning_content",
            Self::Plain => "reasoning",
        }
    }

    fn of_signature(signature: Option<&str>) -> Option<Self> {
        [Self::Content, Self::Plain].into_iter().find(|field| Some(field.name()) == signature)
    }
}
