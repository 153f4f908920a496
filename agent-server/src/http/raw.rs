//! `/api/v1/files/raw`: bytes as they are, with validators and ranges, and streamed atomic uploads.
//!
//! Owns ranges and the headers of raw content.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{self, Query};
use super::error::{ApiError, ApiResult, Code};
use super::files::{self, WriteAnswer, header, path_of};
use super::openapi::ErrorBody;
use crate::workspace::{Precondition, WriteOptions};

/// Largest upload, bytes: 2 GiB fill a small volume of the default size to a fifth.
const MAX_UPLOAD: u64 = 2 * 1024 * 1024 * 1024;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(read_raw, write_raw))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RawQuery {
    /// File.
    path: String,
}

/// The bytes of a file.
#[utoipa::path(get, path = "/api/v1/files/raw", tag = "files", params(RawQuery), responses(
    (status = 200, description = "the content", content_type = "application/octet-stream"),
    (status = 206, description = "one range of the content"), (status = 304, description = "unchanged"),
    (status = 404, body = ErrorBody), (status = 416, body = ErrorBody)))]
async fn read_raw(
    State(app): State<AppState>,
    method: Method,
    Query(query): Query<RawQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let path = path_of("path", &query.path)?;
    let mut opened = app.workspace.open(&path, None).await?;
    let etag = opened.stat.etag.clone().unwrap_or_default();
    if files::not_modified(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, header(&etag))]).into_response());
    }
    let size = opened.stat.size;
    let range = wanted_range(&headers, &etag, size)?;
    if let Some((offset, length)) = range {
        let part = app.workspace.open(&path, Some((offset, length))).await?;
        if part.stat.etag != opened.stat.etag {
            return Err(ApiError::new(Code::Conflict, format!("{path}: changed while it was read")));
        }
        opened = part;
    }
    let mut response = Response::new(if method == Method::HEAD {
        Body::empty()
    } else {
        let activity = app.activity.clone();
        // A long download is use as long as it makes progress.
        Body::from_stream(opened.content.inspect(move |_| activity.touch()))
    });
    let length = range.map_or(size, |(_, length)| length);
    let head = response.headers_mut();
    head.insert(ETAG, header(&etag));
    head.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    head.insert(CONTENT_LENGTH, HeaderValue::from(length));
    head.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    describe(head, path.name(), &headers);
    if let Some((offset, length)) = range {
        let text = format!("bytes {offset}-{}/{size}", offset + length - 1);
        head.insert(CONTENT_RANGE, HeaderValue::from_str(&text).expect("digits are a header value"));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Type and disposition. A document that a browser would run is saved instead, unless a page of this server shows it
/// as an image or reads it by script.
fn describe(head: &mut HeaderMap, name: &str, request: &HeaderMap) {
    let essence = files::media_type(name);
    let text = essence.starts_with("text/");
    let full = if text { format!("{essence}; charset=utf-8") } else { essence.clone() };
    head.insert(
        CONTENT_TYPE,
        HeaderValue::from_str(&full).unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    let runs = matches!(
        &*essence,
        "text/html" | "application/xhtml+xml" | "image/svg+xml" | "text/xml" | "application/xml" | "application/pdf"
    );
    if !runs {
        return;
    }
    head.insert(files::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    let fetched = |name: &'static str| request.get(HeaderName::from_static(name)).map(HeaderValue::as_bytes);
    let embedded = matches!(fetched("sec-fetch-dest"), Some(b"empty" | b"image"));
    if !(embedded && fetched("sec-fetch-site") == Some(b"same-origin")) {
        head.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    }
}

/// The one range to send: offset and length. Several ranges, other units and a validator that does not fit give the
/// whole file, as RFC 9110 allows; a range outside the file is an error.
fn wanted_range(headers: &HeaderMap, etag: &str, size: u64) -> ApiResult<Option<(u64, u64)>> {
    let Some(value) = headers.get(RANGE).and_then(|value| value.to_str().ok()) else { return Ok(None) };
    if headers.get(IF_RANGE).is_some_and(|wanted| wanted.as_bytes() != etag.as_bytes()) {
        return Ok(None);
    }
    match parse_range(value, size) {
        Parsed::Whole => Ok(None),
        Parsed::Part(offset, length) => Ok(Some((offset, length))),
        Parsed::Outside => {
            let text = format!("bytes */{size}");
            let content_range = HeaderValue::from_str(&text).expect("digits are a header value");
            Err(ApiError::new(Code::RangeNotSatisfiable, format!("the file has {size} bytes"))
                .with_extra("size", size)
                .with_header(CONTENT_RANGE, content_range))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Whole,
    Part(u64, u64),
    Outside,
}

fn parse_range(value: &str, size: u64) -> Parsed {
    let Some(range) = value.trim().strip_prefix("bytes=") else { return Parsed::Whole };
    let Some((first, last)) = range.split_once('-').map(|(first, last)| (first.trim(), last.trim())) else {
        return Parsed::Whole;
    };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (first.is_empty(), number(first), last.is_empty(), number(last)) {
        (true, _, false, Some(0)) => Parsed::Outside,
        (true, _, false, Some(tail)) if size > 0 => Parsed::Part(size.saturating_sub(tail), tail.min(size)),
        (true, _, false, Some(_)) => Parsed::Outside,
        (false, Some(first), true, _) if first < size => Parsed::Part(first, size - first),
        (false, Some(first), false, Some(last)) if first <= last && first < size => {
            Parsed::Part(first, last.min(size - 1) - first + 1)
        }
        (false, Some(first), true, _) if first >= size => Parsed::Outside,
        (false, Some(first), false, Some(last)) if first <= last => Parsed::Outside,
        _ => Parsed::Whole,
    }
}

/// For the tests: the part that a `Range` header asks for.
#[cfg(test)]
pub fn part_of(value: &str, size: u64) -> Option<(u64, u64)> {
    match parse_range(value, size) {
        Parsed::Part(offset, length) => Some((offset, length)),
        Parsed::Whole | Parsed::Outside => None,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
struct UploadQuery {
    /// File.
    path: String,
    /// Make missing directories.
    #[serde(default)]
    #[param(required = false)]
    create_dirs: bool,
}

/// Replaces or makes a file from the request's body, at most 2 GiB; nothing changes unless all of it arrived.
#[utoipa::path(put, path = "/api/v1/files/raw", tag = "files", params(UploadQuery),
    request_body(content_type = "application/octet-stream", description = "the content"), responses(
    (status = 200, body = WriteAnswer), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody)))]
async fn write_raw(
    State(app): State<AppState>,
    Query(query): Query<UploadQuery>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let path = path_of("path", &query.path)?;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_UPLOAD) {
        return Err(ApiError::new(Code::PayloadTooLarge, format!("the body is larger than {MAX_UPLOAD} bytes"))
            .with_extra("limit", MAX_UPLOAD));
    }
    let options = WriteOptions {
        create_dirs: query.create_dirs,
        precondition: Precondition {
            mtime_ms: None,
            etag: files::if_match(&headers)?,
            absent: files::must_be_absent(&headers)?,
        },
    };
    let written = app.workspace.write_stream(&path, body::stream(body).boxed(), MAX_UPLOAD, options).await;
    Ok(files::written_answer(written.map_err(files::upload_error)?))
}

#[cfg(test)]
mod tests {
    use super::{Parsed, parse_range};

    #[test]
    fn ranges_are_read_as_rfc_9110_says() {
        for (value, size, expected) in [
            ("bytes=0-0", 10, Parsed::Part(0, 1)),
            ("bytes=2-5", 10, Parsed::Part(2, 4)),
            ("bytes=2-", 10, Parsed::Part(2, 8)),
            ("bytes=2-99", 10, Parsed::Part(2, 8)),
            ("bytes=-3", 10, Parsed::Part(7, 3)),
            ("bytes=-30", 10, Parsed::Part(0, 10)),
            ("bytes=10-", 10, Parsed::Outside),
            ("bytes=10-12", 10, Parsed::Outside),
            ("bytes=-0", 10, Parsed::Outside),
            ("bytes=-1", 0, Parsed::Outside),
            ("bytes=0-", 0, Parsed::Outside),
            ("bytes=5-2", 10, Parsed::Whole),
            ("bytes=0-1,3-4", 10, Parsed::Whole),
            ("bytes=-", 10, Parsed::Whole),
            ("bytes=a-b", 10, Parsed::Whole),
            ("bytes=+1-2", 10, Parsed::Whole),
            ("items=0-1", 10, Parsed::Whole),
            ("bytes=99999999999999999999-", 10, Parsed::Whole),
        ] {
            assert_eq!(parse_range(value, size), expected, "{value} of {size}");
        }
    }
}
