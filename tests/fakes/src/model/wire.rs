//! The provider's error answers: status, type word, body shape, `request-id` and `retry-after` headers.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};

/// An answer that is not a message.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderError {
    /// HTTP status.
    pub status: u16,
    /// Text of the error.
    pub message: String,
    /// Seconds for the header `retry-after`.
    pub retry_after: Option<f64>,
    /// The broken invariant's word when the request itself was wrong; such errors are recorded as failures.
    pub invariant: Option<&'static str>,
}

impl ProviderError {
    /// An error that is part of normal use (rejected key, unknown model, too long).
    pub(super) fn new(status: u16, message: String) -> Self {
        Self { status, message, retry_after: None, invariant: None }
    }

    /// A request that breaks an invariant: 400, recorded.
    pub(super) fn violation(invariant: &'static str, message: String) -> Self {
        Self::violation_with(invariant, 400, message)
    }

    /// A request that breaks an invariant, with a status other than 400; recorded.
    pub(super) fn violation_with(invariant: &'static str, status: u16, message: String) -> Self {
        Self { status, message, retry_after: None, invariant: Some(invariant) }
    }

    /// An error that a script asked for.
    pub(super) fn scripted(status: u16, message: Option<String>, retry_after: Option<f64>) -> Self {
        let message = message.unwrap_or_else(|| default_message(type_of_status(status)).to_owned());
        Self { status, message, retry_after, invariant: None }
    }
}

/// The provider's type word of a status.
pub(super) fn type_of_status(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}

/// A text for a type word.
pub(super) fn default_message(kind: &str) -> &'static str {
    match kind {
        "authentication_error" => "invalid x-api-key",
        "billing_error" => "Your credit balance is too low to access the API",
        "permission_error" => "Your API key does not have permission to use the specified resource",
        "not_found_error" => "Not Found",
        "request_too_large" => "Request exceeds the maximum size",
        "rate_limit_error" => "This request would exceed your account's rate limit. Please try again later.",
        "timeout_error" => "Request timed out",
        "overloaded_error" => "Overloaded",
        "api_error" => "Internal server error",
        _ => "The request was refused by the script",
    }
}

/// The body of an error, also the data of an `error` event in mid-stream.
pub(super) fn error_body(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": next_request_id() })
}

/// An id for the header `request-id`, unique in the process.
pub(super) fn next_request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("req_{:016x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The header `request-id` with a fresh value.
pub(super) fn request_id_header(id: &str) -> (HeaderName, HeaderValue) {
    let value = HeaderValue::from_str(id).expect("request ids are hexadecimal");
    (HeaderName::from_static("request-id"), value)
}

impl IntoResponse for ProviderError {
    fn into_response(self) -> Response {
        let body = error_body(type_of_status(self.status), &self.message);
        let id = body["request_id"].as_str().unwrap_or_default().to_owned();
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, [request_id_header(&id)], Json(body)).into_response();
        if let Some(seconds) = self.retry_after
            && let Ok(value) = HeaderValue::from_str(&seconds.to_string())
        {
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}
