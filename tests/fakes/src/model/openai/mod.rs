//! The same scripted model over OpenAI-compatible chat completions.
//!
//! Owns the route's checks in the provider's order. What is demanded of a request stands in `invariants.rs`, the answer in
//! `answer.rs`; scripts see the conversation in the form of the other wire, made by `view.rs`.

mod answer;
mod invariants;
mod view;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::answer::Call;
use super::wire::{ProviderError, next_request_id};
use super::{Double, REJECTED_KEY, prompt, read_body, script, sign};

/// `POST /v1/chat/completions`.
pub(super) async fn chat_completions(State(double): State<Arc<Double>>, request: Request) -> Response {
    let number = double.record.begin();
    match accept(&double, number, request).await {
        Ok(call) => answer::answer(&double.record, call).await,
        Err(error) => {
            double.record.refuse(number, &error);
            error_response(&error)
        }
    }
}

/// What a call of this wire has beside the common parts.
pub(super) struct ChatCall {
    call: Call,
    /// `stream_options.include_usage`.
    include_usage: bool,
    /// Name of the field that holds reasoning.
    reasoning_field: &'static str,
}

/// Checks key, headers, size, shape, model; then finds what the script says.
async fn accept(double: &Double, number: u64, request: Request) -> Result<ChatCall, ProviderError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers, double.options.keyless)?;
    let bytes = read_body(body).await?;
    let body: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ProviderError::violation("json", format!("We could not parse the JSON body: {error}")))?;
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    let reasoning_field = if model.contains("plain-reasoning") { "reasoning" } else { "reasoning_content" };
    let view = view::of(&body);
    double.record.describe(number, &view);
    double.record.keep_body(number, &body);
    invariants::check(&body, reasoning_field)?;
    if !["scripted", "gpt-", "claude-"].iter().any(|prefix| model.starts_with(prefix)) {
        return Err(ProviderError::new(
            404,
            format!("The model `{model}` does not exist or you do not have access to it."),
        ));
    }
    let usage = double.cache.measure(&view);
    if usage.prompt() > double.options.context_tokens {
        let (tokens, limit) = (usage.prompt(), double.options.context_tokens);
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
        );
        return Err(ProviderError::new(400, message));
    }
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    let attempt = double.record.attempt(hash);
    let actions = prompt::actions(&view)
        .map_err(|error| ProviderError::violation("model-script", format!("model-script: {error}")))?;
    let actions = script::for_attempt(actions, attempt);
    if let Some(script::Action::Error { status, retry_after, message, .. }) = actions.first() {
        let status = if *status == 529 { 503 } else { *status };
        return Err(ProviderError::scripted(status, message.clone(), *retry_after));
    }
    let thinking = body["reasoning_effort"].as_str().is_some_and(|effort| !matches!(effort, "none" | "minimal"));
    Ok(ChatCall {
        call: Call {
            number,
            nonce: sign::nonce(&hash, attempt),
            stream: body["stream"].as_bool().unwrap_or(false),
            thinking,
            thinking_shown: thinking,
            first_tool: view["tools"][0]["name"].as_str().map(str::to_owned),
            model,
            usage,
            actions,
        },
        include_usage: body["stream_options"]["include_usage"] == true,
        reasoning_field,
    })
}

fn check_headers(headers: &HeaderMap, keyless: bool) -> Result<(), ProviderError> {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let authorization = value("authorization");
    match authorization.strip_prefix("Bearer ").map(str::trim) {
        None if keyless && authorization.is_empty() => {}
        None | Some("") => {
            let message = "You didn't provide an API key in an Authorization header using Bearer auth.".to_owned();
            return Err(ProviderError::violation_with("authorization", 401, message));
        }
        Some(REJECTED_KEY) => return Err(ProviderError::new(401, "Incorrect API key provided.".to_owned())),
        Some(_) => {}
    }
    let media_type = value("content-type").split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type != "application/json" {
        return Err(ProviderError::violation("content-type", "Unsupported content type".to_owned()));
    }
    Ok(())
}

/// The type and code words of a status.
fn words_of(error: &ProviderError) -> (&'static str, Option<&'static str>) {
    match error.status {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        404 => ("invalid_request_error", Some("model_not_found")),
        429 => ("requests", Some("rate_limit_exceeded")),
        500..=599 => ("server_error", None),
        _ if error.message.contains("maximum context length") => {
            ("invalid_request_error", Some("context_length_exceeded"))
        }
        _ => ("invalid_request_error", None),
    }
}

fn error_body(kind: &str, code: Option<&str>, message: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}

fn error_response(error: &ProviderError) -> Response {
    let (kind, code) = words_of(error);
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(error_body(kind, code, &error.message))).into_response();
    let headers = response.headers_mut();
    if let Ok(id) = next_request_id().parse() {
        headers.insert("x-request-id", id);
    }
    if let Some(Ok(seconds)) = error.retry_after.map(|seconds| seconds.to_string().parse()) {
        headers.insert(header::RETRY_AFTER, seconds);
    }
    response
}
