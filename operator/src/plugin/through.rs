//! Calls of one workspace through the gateway.

use std::{io::Write, time::Duration};

use eventsource_stream::Eventsource;
use futures::StreamExt;
use reqwest::{Client, Method, RequestBuilder, Response, redirect};
use serde_json::{Value, json};

use super::PluginError;

/// A name that does not answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Of an error, at most this much is shown.
const SHOWN: usize = 2000;

/// A workspace behind its address.
pub struct Through {
    http: Client,
    url: String,
    token: String,
}

impl Through {
    /// `url` is `status.url`.
    pub fn new(url: &str, token: String) -> Result<Self, PluginError> {
        // A redirect would carry the token to wherever it leads.
        let http = Client::builder().connect_timeout(CONNECT_LIMIT).redirect(redirect::Policy::none());
        let http = http.build().map_err(PluginError::Unreachable)?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), token })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// A link that signs one browser in.
    pub async fn link(&self) -> Result<String, PluginError> {
        let answer = accepted(self.request(Method::POST, "/_auth/link")).await?;
        let link: Value = answer.json().await.map_err(PluginError::Unreachable)?;
        link["url"].as_str().map(str::to_owned).ok_or_else(|| PluginError::Broken("there is no link in it".to_owned()))
    }

    /// Starts or stops the workspace; the state that it is in then.
    pub async fn ask(&self, what: &str) -> Result<String, PluginError> {
        let answer = accepted(self.request(Method::POST, &format!("/_workspace/{what}"))).await?;
        let state: Value = answer.json().await.map_err(PluginError::Unreachable)?;
        let state = state["state"].as_str().map(str::to_owned);
        state.ok_or_else(|| PluginError::Broken("there is no state in it".to_owned()))
    }

    /// Any request of a user counts as use. It wakes a workspace that sleeps.
    pub async fn touch(&self) -> Result<(), PluginError> {
        let request = self.request(Method::GET, "/api/v1/agent/sessions?limit=1").header("x-workspace-wake", "1");
        accepted(request).await.map(drop)
    }

    /// Sends a message and writes the text of the answer as it comes.
    pub async fn chat(&self, session: &str, message: &str, output: &mut impl Write) -> Result<(), PluginError> {
        let body = json!({"sessionId": session, "message": message});
        let answer = accepted(self.request(Method::POST, "/api/v1/agent/chat").json(&body)).await?;
        let mut events = answer.bytes_stream().eventsource();
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| PluginError::Broken(error.to_string()))?;
            if event.data == "[DONE]" {
                break;
            }
            let chunk: Value =
                serde_json::from_str(&event.data).map_err(|error| PluginError::Broken(error.to_string()))?;
            if self::write(&chunk, output)? {
                return Ok(());
            }
        }
        Err(PluginError::Broken("the stream has no end; the turn goes on in the workspace".to_owned()))
    }
}

/// Writes what a chunk shows; true when it is the last one.
fn write(chunk: &Value, output: &mut impl Write) -> Result<bool, PluginError> {
    let text = |field: &str| chunk[field].as_str().unwrap_or_default().to_owned();
    match chunk["type"].as_str().unwrap_or_default() {
        "text-delta" => {
            output.write_all(text("delta").as_bytes())?;
            output.flush()?;
        }
        "text-end" => writeln!(output)?,
        "tool-input-available" => writeln!(output, "[{}]", text("toolName"))?,
        "error" => return Err(PluginError::Broken(text("errorText"))),
        "abort" => return Err(PluginError::Broken("the turn was stopped".to_owned())),
        "finish" => return Ok(true),
        _ => {}
    }
    Ok(false)
}

async fn accepted(request: RequestBuilder) -> Result<Response, PluginError> {
    let answer = request.send().await.map_err(PluginError::Unreachable)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let text = answer.text().await.unwrap_or_default();
    let said =
        serde_json::from_str::<Value>(&text).ok().and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()));
    let message = said.unwrap_or_else(|| text.chars().take(SHOWN).collect());
    Err(PluginError::Refused { status: status.as_u16(), message })
}

#[cfg(test)]
mod tests {
    use wiremock::{
        Mock, MockServer, ResponseTemplate,
        matchers::{body_json, header, method, path},
    };

    use super::*;

    fn through(server: &MockServer) -> Through {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Through::new(&format!("{}/", server.uri()), "token".to_owned()).unwrap()
    }

    fn stream(chunks: &[Value]) -> ResponseTemplate {
        let text = chunks.iter().fold(String::new(), |text, chunk| text + &format!("data: {chunk}\n\n"));
        ResponseTemplate::new(200).set_body_raw(text, "text/event-stream")
    }

    #[tokio::test]
    async fn a_chat_writes_the_text_and_names_the_tools() {
        let server = MockServer::start().await;
        Mock::given(method("POST"))
            .and(path("/api/v1/agent/chat"))
            .and(header("authorization", "Bearer token"))
            .and(body_json(json!({"sessionId": "s", "message": "hi"})))
            .respond_with(stream(&[
                json!({"type": "start"}),
                json!({"type": "tool-input-available", "toolName": "bash"}),
                json!({"type": "text-delta", "delta": "Hel"}),
                json!({"type": "text-delta", "delta": "lo"}),
                json!({"type": "text-end"}),
                json!({"type": "finish"}),
            ]))
            .mount(&server)
            .await;
        let mut output = Vec::new();
        through(&server).chat("s", "hi", &mut output).await.unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "[bash]\nHello\n");
    }

    #[tokio::test]
    async fn a_chat_without_an_end_or_with_an_error_is_no_success() {
        for (last, expected) in [
            (
                json!({"type": "text-delta", "delta": "x"}),
                "the answer ended early: the stream has no end; the turn goes on in the workspace",
            ),
            (json!({"type": "error", "errorText": "overloaded"}), "the answer ended early: overloaded"),
        ] {
            let server = MockServer::start().await;
            Mock::given(method("POST")).respond_with(stream(&[last])).mount(&server).await;
            let error = through(&server).chat("s", "hi", &mut Vec::new()).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_gateways_words() {
        let server = MockServer::start().await;
        let refusal =
            ResponseTemplate::new(503).set_body_json(json!({"error": {"code": "stopped", "message": "it is stopped"}}));
        Mock::given(method("POST")).and(path("/_auth/link")).respond_with(refusal).mount(&server).await;
        assert_eq!(through(&server).link().await.unwrap_err().to_string(), "503: it is stopped");
    }
}
