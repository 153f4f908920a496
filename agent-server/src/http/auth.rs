//! Authentication of a request: which scope a route needs, bearer tokens, and Host and Origin checks.
//!
//! Owns the access table. Must not know how tokens are verified.
//!
//! Host and Origin are checked when the static token is accepted, that is on a user's own machine: there a page of
//! another site could reach the server by DNS rebinding. In a pod only signed bearer tokens are accepted, which no
//! browser sends by itself, and the Host header is a pod IP or a service name. A cookie is sent by browsers themselves,
//! so with one both are checked everywhere, and a request that changes something must name its origin.

use std::net::IpAddr;

use axum::extract::State;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderValue, ORIGIN, SET_COOKIE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, ApiResult, Code};
use super::files::Done;
use super::openapi::ErrorBody;
use super::{App, AppState};
use crate::auth::{AuthError, BROWSER_SESSION_LIFETIME, Principal};
use crate::config::Config;

/// Name of the browser's cookie.
const SESSION_COOKIE: &str = "boring_agent_session";

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(begin_session))
}

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone; nothing is checked.
    Public,
    /// Scope `lifecycle` only.
    Lifecycle,
    /// Any scope.
    Either,
    /// Scope `user` only.
    User,
}

/// The access table, by route template. What is not listed needs scope `user`, unknown routes included.
pub fn access(route: &str) -> Access {
    match route {
        "/health" | "/ready" | "/api/v1/ready-status" => Access::Public,
        "/api/v1/activity" | "/api/v1/drain-notice" | "/api/v1/drain" | "/api/v1/quiesce" | "/api/v1/unquiesce" => {
            Access::Lifecycle
        }
        "/api/v1/runtime" => Access::Either,
        _ => Access::User,
    }
}

/// Turns the bearer token of this request into a cookie for browsers and `EventSource`: `HttpOnly`, `SameSite=Strict`, good
/// for at most a week and never longer than the token.
#[utoipa::path(post, path = "/api/v1/auth/session", tag = "auth", responses(
    (status = 200, body = Done), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody)))]
async fn begin_session(State(app): State<AppState>, headers: HeaderMap) -> ApiResult<Response> {
    // A cookie alone does not make another one: the token has to be shown.
    let handle = app.authenticator.begin_browser_session(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))?;
    let encrypted = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if encrypted { "; Secure" } else { "" };
    let seconds = BROWSER_SESSION_LIFETIME.as_secs();
    let cookie = format!("{SESSION_COOKIE}={handle}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    let cookie = HeaderValue::try_from(cookie).map_err(ApiError::internal)?;
    Ok(([(SET_COOKIE, cookie)], Done::OK).into_response())
}

/// Lets a request pass or says why not.
pub fn check(app: &App, access: Access, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if access == Access::Public {
        return Ok(());
    }
    let principal = match (headers.get(AUTHORIZATION), session_cookie(headers)) {
        (None, Some(cookie)) => {
            check_browser(headers, &app.config)?;
            if !matches!(*method, Method::GET | Method::HEAD) && !headers.contains_key(ORIGIN) {
                return Err(ApiError::new(Code::AuthInvalid, "with a cookie the request must name its origin"));
            }
            app.authenticator.authenticate_browser(cookie)?
        }
        (authorization, _) => {
            if app.authenticator.accepts_static_token() {
                check_browser(headers, &app.config)?;
            }
            app.authenticator.authenticate(authorization.map(HeaderValue::as_bytes))?
        }
    };
    check_scope(&principal, access)
}

/// The value of our cookie; with two of the name the first, as RFC 6265 orders them.
fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|list| list.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == SESSION_COOKIE).then_some(value)
    })
}

fn check_scope(principal: &Principal, access: Access) -> Result<(), ApiError> {
    let good = match access {
        Access::Public | Access::Either => true,
        Access::Lifecycle => principal.lifecycle,
        Access::User => principal.user,
    };
    if good {
        return Ok(());
    }
    let needed = if access == Access::Lifecycle { "lifecycle" } else { "user" };
    Err(ApiError::new(Code::AuthInvalid, format!("this route needs a token of scope `{needed}`")))
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        let message = error.to_string();
        match error {
            AuthError::Required => {
                Self::new(Code::AuthRequired, message).with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            AuthError::Invalid(_) => Self::new(Code::AuthInvalid, message),
        }
    }
}

/// Refuses requests that a page of another site could have caused.
fn check_browser(headers: &HeaderMap, config: &Config) -> Result<(), ApiError> {
    check_host_and_origin(headers, &config.public_hosts, &config.allowed_origins)
}

fn check_host_and_origin(
    headers: &HeaderMap,
    public_hosts: &[String],
    allowed_origins: &[String],
) -> Result<(), ApiError> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or("?").to_ascii_lowercase();
    let host = headers.get(HOST).map(text).unwrap_or_default();
    if !allowed(host_name(&host), public_hosts) {
        return Err(ApiError::new(
            Code::AuthInvalid,
            "the Host header is neither a loopback name, an IP address nor a configured public host",
        ));
    }
    let Some(origin) = headers.get(ORIGIN).map(text) else {
        return Ok(());
    };
    if allowed_origins.contains(&origin) {
        return Ok(());
    }
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    if authority.is_none_or(|authority| authority != host && !own_origin(host_name(authority), public_hosts)) {
        return Err(ApiError::new(Code::AuthInvalid, "the request comes from a page of another site"));
    }
    Ok(())
}

/// The name without port; brackets of an IPv6 address are kept off.
fn host_name(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(name, _)| name)
}

/// A literal address cannot be rebound, so it is as good as a loopback name.
fn allowed(name: &str, public_hosts: &[String]) -> bool {
    name.parse::<IpAddr>().is_ok() || own_origin(name, public_hosts)
}

fn own_origin(name: &str, public_hosts: &[String]) -> bool {
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        || public_hosts.iter().any(|host| host == name)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    use super::{Access, access, check_host_and_origin, session_cookie};

    #[test]
    fn unknown_routes_need_a_user() {
        assert_eq!(access("unmatched"), Access::User);
        assert_eq!(access("/api/v1/files"), Access::User);
        assert_eq!(access("/api/v1/drain"), Access::Lifecycle);
        assert_eq!(access("/ready"), Access::Public);
    }

    fn request(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn rebound_names_and_foreign_pages_are_refused() {
        let hosts = ["agent.example".to_string()];
        let origins = ["https://app.example".to_string()];
        for good in [
            request(&[("host", "localhost:8787")]),
            request(&[("host", "LOCALHOST:8787"), ("origin", "http://localhost:3000")]),
            request(&[("host", "[::1]:8787"), ("origin", "http://[::1]:8787")]),
            request(&[("host", "192.168.1.7:8787"), ("origin", "http://192.168.1.7:8787")]),
            request(&[("host", "agent.example"), ("origin", "https://agent.example")]),
            request(&[("host", "localhost:8787"), ("origin", "https://app.example")]),
        ] {
            assert!(check_host_and_origin(&good, &hosts, &origins).is_ok(), "{good:?}");
        }
        for bad in [
            request(&[]),
            request(&[("host", "evil.example:8787")]),
            request(&[("host", "localhost.evil.example")]),
            request(&[("host", "localhost:8787"), ("origin", "https://evil.example")]),
            request(&[("host", "localhost:8787"), ("origin", "null")]),
            request(&[("host", "localhost:8787"), ("origin", "http://app.example")]),
            request(&[("host", "localhost:8787"), ("origin", "https://app.example:444")]),
            request(&[("host", "192.168.1.7:8787"), ("origin", "http://192.168.1.8")]),
        ] {
            assert!(check_host_and_origin(&bad, &hosts, &origins).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let found = |value: &'static str| session_cookie(&request(&[("cookie", value)])).map(str::to_string);
        assert_eq!(found("a=b; boring_agent_session=x=y; c"), Some("x=y".into()));
        assert_eq!(found("boring_agent_session_=x; Boring_Agent_Session=y"), None);
    }
}
