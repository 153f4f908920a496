//! Authentication of a request: which scope a route needs, bearer tokens, and Host and Origin checks.
//!
//! Owns the access table. Must not know how tokens are verified.
//!
//! Host and Origin are checked only when the static token is accepted, that is on a user's own machine: there a page
//! of another site could reach the server by DNS rebinding. In a pod only signed bearer tokens are accepted, which no
//! browser sends by itself, and the Host header is a pod IP or a service name.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};

use super::App;
use super::error::{ApiError, Code};
use crate::auth::{AuthError, Principal};

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

/// Lets a request pass or says why not.
pub fn check(app: &App, access: Access, headers: &HeaderMap) -> Result<(), ApiError> {
    if access == Access::Public {
        return Ok(());
    }
    if app.authenticator.accepts_static_token() {
        check_browser(headers, &app.config.public_hosts)?;
    }
    let principal = app.authenticator.authenticate(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))?;
    check_scope(&principal, access)
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
fn check_browser(headers: &HeaderMap, public_hosts: &[String]) -> Result<(), ApiError> {
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

    use super::{Access, access, check_browser};

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
        for good in [
            request(&[("host", "localhost:8787")]),
            request(&[("host", "LOCALHOST:8787"), ("origin", "http://localhost:3000")]),
            request(&[("host", "[::1]:8787"), ("origin", "http://[::1]:8787")]),
            request(&[("host", "192.168.1.7:8787"), ("origin", "http://192.168.1.7:8787")]),
            request(&[("host", "agent.example"), ("origin", "https://agent.example")]),
        ] {
            assert!(check_browser(&good, &hosts).is_ok(), "{good:?}");
        }
        for bad in [
            request(&[]),
            request(&[("host", "evil.example:8787")]),
            request(&[("host", "localhost.evil.example")]),
            request(&[("host", "localhost:8787"), ("origin", "https://evil.example")]),
            request(&[("host", "localhost:8787"), ("origin", "null")]),
            request(&[("host", "192.168.1.7:8787"), ("origin", "http://192.168.1.8")]),
        ] {
            assert!(check_browser(&bad, &hosts).is_err(), "{bad:?}");
        }
    }
}
