//! Reading what a client sends: JSON bodies, raw bodies and queries, with limits and the one error shape.
//!
//! Owns limits of bodies. Must not know routes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Code};

/// Largest body but for streamed uploads, bytes.
pub const MAX_BODY: usize = 16 * 1024 * 1024;
/// A client that sends nothing for this long is cut off.
pub const BODY_IDLE: Duration = Duration::from_secs(30);
/// Room made for a body before its bytes arrive; an announced length alone reserves no more.
const FIRST_RESERVE: usize = 64 * 1024;

/// The body as a stream that fails when the client stalls or breaks off.
pub fn stream(body: Body) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    futures::stream::unfold(Some(body.into_data_stream()), |body| async move {
        let mut body = body?;
        match tokio::time::timeout(BODY_IDLE, body.next()).await {
            Ok(Some(Ok(bytes))) => Some((Ok(bytes), Some(body))),
            Ok(None) => None,
            Ok(Some(Err(error))) => Some((Err(std::io::Error::other(error)), None)),
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

/// The whole body, at most `limit` bytes.
pub async fn collect(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let announced: Option<u64> =
        headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let mut body = body;
    let mut whole = BytesMut::new();
    loop {
        let frame = match tokio::time::timeout(BODY_IDLE, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(Code::ValidationError, "the body broke off or is not well framed"));
            }
            Ok(None) => return Ok(whole.freeze()),
            Err(_) => return Err(stalled()),
        };
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        if whole.is_empty() {
            whole.reserve(announced.map_or(0, |length| usize::try_from(length).unwrap_or(0).min(FIRST_RESERVE)));
        }
        whole.extend_from_slice(&data);
    }
}

/// The answer to a client that stopped sending.
pub fn stalled() -> ApiError {
    ApiError::new(Code::RequestTimeout, format!("the client sent nothing for {} s", BODY_IDLE.as_secs()))
}

/// The answer to a body over its limit.
pub fn too_large(limit: usize) -> ApiError {
    ApiError::new(Code::PayloadTooLarge, format!("the body is larger than {limit} bytes")).with_extra("limit", limit)
}

/// A JSON body of at most [`MAX_BODY`] bytes. Nesting is bounded by the parser at 128.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        require_json(&parts.headers)?;
        let bytes = collect(&parts.headers, body, MAX_BODY).await?;
        parse_json(&bytes).map(JsonBody)
    }
}

/// A body of another type is refused: a form of another site can be sent without asking, JSON cannot.
pub fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let json = essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence.to_ascii_lowercase().ends_with("+json"));
    if json {
        return Ok(());
    }
    Err(ApiError::new(Code::UnsupportedMediaType, "the body must have `content-type: application/json`"))
}

/// Parses JSON; the message names place and reason, and `field` the member where the parser knows it.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message =
            if bytes.is_empty() { "the body is empty; JSON is needed".to_string() } else { error.to_string() };
        let rejected = ApiError::new(Code::ValidationError, message);
        match named_field(&error.to_string()) {
            Some(field) => rejected.with_field(field),
            None => rejected,
        }
    })
}

/// The member that serde names in back quotes for unknown, missing and duplicate fields.
fn named_field(message: &str) -> Option<String> {
    let rest = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix))?;
    rest.split('`').next().map(str::to_string)
}

/// Parameters in the path; one that is not UTF-8 gets the one error shape.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(path) => Ok(Self(path.0)),
            Err(rejection) => Err(ApiError::new(Code::ValidationError, format!("path: {}", rejection.body_text()))),
        }
    }
}

/// A query; faults name the parameter where the parser knows it.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        // The decoder would put replacement characters in place of what is not UTF-8: another name than the one meant.
        let query = parts.uri.query().unwrap_or_default();
        if percent_encoding::percent_decode_str(query).decode_utf8().is_err() {
            return Err(ApiError::new(Code::ValidationError, "query: is not UTF-8 after percent-decoding"));
        }
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => {
                let text =
                    std::error::Error::source(&rejection).map_or_else(|| rejection.to_string(), ToString::to_string);
                let error = ApiError::new(Code::ValidationError, format!("query: {text}"));
                Err(match named_field(&text).or_else(|| leading_name(&text)) {
                    Some(field) => error.with_field(field),
                    None => error,
                })
            }
        }
    }
}

/// The parameter in front of the colon in `limit: invalid digit found in string`.
fn leading_name(message: &str) -> Option<String> {
    let (name, _) = message.split_once(':')?;
    (!name.contains(' ')).then(|| name.to_string())
}
