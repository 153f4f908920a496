//! Pages of configured origins: preflights and the headers that let them read answers.
//!
//! Owns which headers such pages may send and see. Whether a request itself passes is decided by `auth`.

use std::time::Duration;

use axum::http::Method;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH, RETRY_AFTER};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long a browser may remember a preflight.
const REMEMBERED: Duration = Duration::from_mins(10);

/// The layer for these origins; `None` without any, and then a preflight is an ordinary request that is refused.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let name = HeaderName::from_static;
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    Some(
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_credentials(true)
            .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
            .allow_headers([AUTHORIZATION, CONTENT_TYPE, IF_MATCH, name("last-event-id"), name("x-request-id")])
            .expose_headers([name("x-turn-id"), name("x-request-id"), ETAG, RETRY_AFTER])
            .max_age(REMEMBERED),
    )
}
