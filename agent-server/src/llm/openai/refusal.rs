//! Error answers and error events of chat completions, and their classes.
//!
//! Owns what servers of this wire say when something is wrong. Must not know transport or retries.

use std::time::Duration;

use serde_json::Value;

use crate::llm::LlmError;

/// Longest part of a provider's message that is passed on, in characters.
const MAX_MESSAGE: usize = 500;

/// What an error says, wherever the server puts it.
struct Said {
    kind: String,
    code: String,
    message: String,
}

/// Error of an HTTP answer. Bodies are `{error: {message, type, code}}`, the same without `error`, `{error: TEXT}`,
/// `{detail: TEXT}` or no JSON at all.
pub fn of_answer(status: u16, body: &str, retry_after: Option<Duration>) -> LlmError {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let mut said = said(if value["error"].is_null() { &value } else { &value["error"] });
    if said.message.is_empty() {
        said.message = format!("status {status}");
    }
    classify(status, &said, retry_after)
}

/// Error in mid-stream. Some servers give the HTTP status as the code.
pub fn of_event(error: &Value) -> LlmError {
    let said = said(error);
    let status = said.code.parse().ok().filter(|status| (400..600).contains(status));
    let status = status.unwrap_or(match said.kind.as_str() {
        "server_error" | "api_error" | "overloaded_error" | "service_unavailable" | "internal_error" => 500,
        "rate_limit_error" | "rate_limit_exceeded" | "requests" | "tokens" => 429,
        _ if said.code == "rate_limit_exceeded" => 429,
        _ => 400,
    });
    classify(status, &said, None)
}

fn said(error: &Value) -> Said {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    let message = [error, &error["message"], &error["detail"]].into_iter().find_map(Value::as_str);
    Said {
        kind: word(&error["type"]),
        code: word(&error["code"]),
        message: message.unwrap_or_default().chars().take(MAX_MESSAGE).collect(),
    }
}

fn classify(status: u16, said: &Said, retry_after: Option<Duration>) -> LlmError {
    if said.is_about_key() || status == 401 {
        return LlmError::Auth;
    }
    if said.is_too_long() || status == 413 {
        return LlmError::ContextTooLong;
    }
    match status {
        // No pause helps an empty account.
        429 if [&said.code, &said.kind].iter().any(|word| *word == "insufficient_quota") => {
            LlmError::Refused(said.message.clone())
        }
        429 => LlmError::RateLimited { retry_after },
        408 | 500..=599 => LlmError::Overloaded { retry_after },
        _ => LlmError::Refused(said.message.clone()),
    }
}

impl Said {
    /// A 403 alone is no word on the key: it also means a region, a model or a text that is not allowed.
    fn is_about_key(&self) -> bool {
        self.code == "invalid_api_key"
            || self.kind == "authentication_error"
            || self.message.contains("API key not valid")
    }

    fn is_too_long(&self) -> bool {
        self.code == "context_length_exceeded"
            || self.kind == "exceed_context_size_error"
            || ["maximum context length", "exceeds the available context size", "exceeds the context window"]
                .iter()
                .any(|words| self.message.contains(words))
    }
}
