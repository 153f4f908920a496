//! What is removed from and added to the headers of requests and answers.
//!
//! Pure. Owns the lists. The pod must see nothing that a caller made up about itself, and no credential that is good for
//! anything but this pod; the browser must see nothing of one workspace that reaches another.

use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, EXPECT, HOST, ORIGIN, REFERER, SET_COOKIE, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};

use super::route::Form;

/// Cookie of browsers. The prefix makes browsers refuse one that another host of the domain sets.
pub const SESSION_COOKIE: &str = "__Host-agent-session";
/// Id of a request, accepted and made.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What a workspace that does not serve is doing.
pub const WORKSPACE_STATE: HeaderName = HeaderName::from_static("x-workspace-state");

/// Valid for one connection only (RFC 9110 7.6.1), with the older names that are still seen.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
];
/// Claims about who calls and from where; this gateway makes its own.
const CLAIMS: [&str; 4] = ["x-forwarded-", "x-remote-", "x-boring-", "x-auth-request-"];
/// For this gateway, or claims that it makes itself.
const OURS: [HeaderName; 5] = [
    HeaderName::from_static("forwarded"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-workspace-wake"),
    EXPECT,
    // Checked here against the host that the browser sees; the pod knows only its own address.
    ORIGIN,
];
/// Pages of one workspace may not act on the origin that all share.
const SANDBOXED: &str = "sandbox";

/// Whether the connection is to become a WebSocket. No other protocol passes: the gateway could not look into it.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = asks.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|protocol| asks && protocol.as_bytes().eq_ignore_ascii_case(b"websocket")).cloned()
}

/// What the pod is told.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Token for this pod.
    pub authorization: &'a HeaderValue,
    /// Its address, with port.
    pub host: &'a HeaderValue,
    /// Host that the caller named.
    pub public_host: Option<&'a HeaderValue>,
    /// Prefix of the path that was removed, for links.
    pub prefix: Option<&'a HeaderValue>,
    /// Id of the request.
    pub request_id: &'a HeaderValue,
}

/// Turns the headers of a caller into those for the pod.
pub fn for_pod(headers: &mut HeaderMap, told: &Told<'_>) {
    let upgrade = upgrade(headers);
    strip_hop_by_hop(headers);
    let made_up: Vec<HeaderName> =
        headers.keys().filter(|name| CLAIMS.iter().any(|claim| name.as_str().starts_with(claim))).cloned().collect();
    for name in made_up.iter().chain(&OURS) {
        headers.remove(name);
    }
    if told.prefix.is_none() {
        keep_other_cookies(headers);
    } else {
        // All workspaces share that origin: none of its cookies is for one of them, nor is the page it comes from.
        headers.remove(COOKIE);
        headers.remove(REFERER);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    headers.insert(HOST, told.host.clone());
    headers.insert(AUTHORIZATION, told.authorization.clone());
    headers.insert(REQUEST_ID, told.request_id.clone());
    headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
    if let Some(host) = told.public_host {
        headers.insert("x-forwarded-host", host.clone());
    }
    if let Some(prefix) = told.prefix {
        headers.insert("x-forwarded-prefix", prefix.clone());
    }
}

/// Turns the headers of a pod's answer into those for the caller.
pub fn for_caller(headers: &mut HeaderMap, form: Form) {
    let upgrade = upgrade(headers);
    strip_hop_by_hop(headers);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    match form {
        Form::Host => {
            let ours = |value: &HeaderValue| value.as_bytes().trim_ascii_start().starts_with(SESSION_COOKIE.as_bytes());
            if headers.get_all(SET_COOKIE).iter().any(ours) {
                let kept: Vec<_> = headers.get_all(SET_COOKIE).iter().filter(|value| !ours(value)).cloned().collect();
                headers.remove(SET_COOKIE);
                for value in kept {
                    headers.append(SET_COOKIE, value);
                }
            }
        }
        Form::Path => {
            headers.remove(SET_COOKIE);
            headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOXED));
        }
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Value of our cookie, if the caller has one.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|value| value.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == SESSION_COOKIE).then_some(value)
    })
}

/// Cookies that the workspace set itself stay; ours is for this gateway alone.
fn keep_other_cookies(headers: &mut HeaderMap) {
    if !headers.contains_key(COOKIE) {
        return;
    }
    let others: Vec<String> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(str::trim)
        .filter(|cookie| cookie.split('=').next() != Some(SESSION_COOKIE) && !cookie.is_empty())
        .map(str::to_owned)
        .collect();
    headers.remove(COOKIE);
    if let Some(value) = HeaderValue::from_str(&others.join("; ")).ok().filter(|value| !value.is_empty()) {
        headers.insert(COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn told_to_pod(pairs: &[(&'static str, &'static str)], prefix: Option<&'static str>) -> Vec<(String, String)> {
        let value = HeaderValue::from_static;
        let mut headers = map(pairs);
        let prefix = prefix.map(value);
        let told = Told {
            authorization: &value("Bearer ours"),
            host: &value("10.0.0.7:8787"),
            public_host: Some(&value("alice--a.example.com")),
            prefix: prefix.as_ref(),
            request_id: &value("id"),
        };
        for_pod(&mut headers, &told);
        listed(&headers)
    }

    fn listed(headers: &HeaderMap) -> Vec<(String, String)> {
        let mut all: Vec<_> =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        all.sort();
        all
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_pod_sees_our_token_and_none_of_the_callers_credentials_and_claims() {
        let sent = told_to_pod(
            &[
                ("accept", "*/*"),
                ("authorization", "Bearer theirs"),
                ("connection", "close, x-hop"),
                ("cookie", "a=1; __Host-agent-session=secret; b=2"),
                ("forwarded", "for=1.2.3.4"),
                ("host", "alice--a.example.com"),
                ("origin", "https://alice--a.example.com"),
                ("proxy-authorization", "Basic secret"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("x-boring-agent-pod", "made up"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-user", "root"),
                ("x-hop", "1"),
                ("x-remote-user", "system:admin"),
                ("x-request-id", "theirs"),
            ],
            None,
        );
        let expected = pairs(&[
            ("accept", "*/*"),
            ("authorization", "Bearer ours"),
            ("cookie", "a=1; b=2"),
            ("host", "10.0.0.7:8787"),
            ("x-forwarded-host", "alice--a.example.com"),
            ("x-forwarded-proto", "https"),
            ("x-request-id", "id"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn by_path_no_cookie_passes_and_the_prefix_is_told() {
        let sent = told_to_pod(&[("cookie", "a=1"), ("referer", "https://x/")], Some("/w/a/alice"));
        let expected = pairs(&[
            ("authorization", "Bearer ours"),
            ("host", "10.0.0.7:8787"),
            ("x-forwarded-host", "alice--a.example.com"),
            ("x-forwarded-prefix", "/w/a/alice"),
            ("x-forwarded-proto", "https"),
            ("x-request-id", "id"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_change_of_protocol_passes_and_only_when_the_connection_asks_for_it() {
        let asked = told_to_pod(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")], None);
        assert!(asked.contains(&("upgrade".to_owned(), "websocket".to_owned())), "{asked:?}");
        assert!(asked.contains(&("connection".to_owned(), "upgrade".to_owned())), "{asked:?}");
        let not_asked = told_to_pod(&[("connection", "keep-alive"), ("upgrade", "websocket")], None);
        assert!(!not_asked.iter().any(|(name, _)| name == "upgrade" || name == "connection"), "{not_asked:?}");
    }

    #[test]
    fn a_workspace_cannot_set_the_gateways_cookie_nor_any_on_the_shared_origin() {
        let answer = [("set-cookie", "__Host-agent-session=evil"), ("set-cookie", "theme=dark"), ("x-turn-id", "7")];
        let mut headers = map(&answer);
        for_caller(&mut headers, Form::Host);
        assert_eq!(listed(&headers), pairs(&[("set-cookie", "theme=dark"), ("x-turn-id", "7")]));
        let mut headers = map(&answer);
        for_caller(&mut headers, Form::Path);
        assert_eq!(listed(&headers), pairs(&[("content-security-policy", "sandbox"), ("x-turn-id", "7")]));
    }

    #[test]
    fn our_cookie_is_found_among_others() {
        assert_eq!(session_cookie(&map(&[("cookie", "a=1;__Host-agent-session=x.y; b=2")])), Some("x.y"));
        assert_eq!(session_cookie(&map(&[("cookie", "agent-session=x")])), None);
    }
}
