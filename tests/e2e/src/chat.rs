//! Reads one chat stream as any SSE reader would. Owns the client's side of the frames; must not know the server's code.

use anyhow::{Context, bail};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use serde_json::Value;

/// One turn as it arrived.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    /// All chunks in order.
    pub chunks: Vec<Value>,
    /// Whether `[DONE]` came last.
    pub done: bool,
}

impl Turn {
    /// Reads a response to its end.
    pub async fn read(response: reqwest::Response) -> anyhow::Result<Self> {
        let status = response.status();
        if status != 200 {
            bail!("chat answered {status}: {}", response.text().await?);
        }
        let mut events = response.bytes_stream().eventsource();
        let mut turn = Self::default();
        while let Some(event) = events.next().await {
            let event = event.context("chat stream broke")?;
            if event.data == "[DONE]" {
                turn.done = true;
            } else {
                turn.chunks.push(serde_json::from_str(&event.data)?);
            }
        }
        Ok(turn)
    }

    /// The text of all text parts together.
    pub fn text(&self) -> String {
        self.of_type("text-delta").filter_map(|chunk| chunk["delta"].as_str()).collect()
    }

    /// Chunks of one type.
    pub fn of_type<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.chunks.iter().filter(move |chunk| chunk["type"] == kind)
    }

    /// Type of the last chunk.
    pub fn last_type(&self) -> Option<&str> {
        self.chunks.last()?["type"].as_str()
    }
}

/// Role and text of each message of an answer of the history's route.
pub fn texts(messages: &Value) -> anyhow::Result<Vec<(String, String)>> {
    let messages = messages.get("messages").unwrap_or(messages).as_array().context("no list of messages")?;
    Ok(messages
        .iter()
        .map(|message| {
            let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let text =
                parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str()).collect();
            (message["role"].as_str().unwrap_or_default().to_owned(), text)
        })
        .collect())
}
