//! What browsers do: cookies, pages of other origins, and headers that say two things.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::{Answer, Place, TOKEN, ok};
use crate::config::Arguments;

async fn send(place: &Place, method: &str, uri: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == "POST" { json!({"path": "made"}).to_string() } else { String::new() };
    place.send(request.body(Body::from(body)).expect("request")).await
}

const SESSION: &str = "/api/v1/auth/session";
const HOST: (&str, &str) = ("host", "localhost:8787");
const ORIGIN: (&str, &str) = ("origin", "http://localhost:8787");
const JSON: (&str, &str) = ("content-type", "application/json");

/// `name=value` of the cookie that a token gets.
async fn cookie(place: &Place) -> String {
    let bearer = format!("Bearer {TOKEN}");
    let answer = send(place, "POST", SESSION, &[HOST, ("authorization", &bearer)]).await;
    assert_eq!(answer.json(), ok());
    let cookie = answer.header("set-cookie").expect("a cookie").to_string();
    let (pair, attributes) = cookie.split_once("; ").expect("attributes");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict; Max-Age=604800");
    pair.to_string()
}

#[tokio::test]
async fn a_token_becomes_a_cookie_that_opens_files_and_streams() {
    let place = Place::new();
    let cookie = cookie(&place).await;
    let cookies = format!("theme=dark; {cookie}");
    assert_eq!(send(&place, "GET", "/api/v1/tree", &[HOST, ("cookie", &cookies)]).await.status, 200);
    let made = send(&place, "POST", "/api/v1/dirs", &[HOST, ORIGIN, JSON, ("cookie", &cookies)]).await;
    assert_eq!(made.json(), ok());
    let bearer = format!("Bearer {TOKEN}");
    let encrypted = [("host", "localhost"), ("origin", "https://localhost"), ("authorization", &*bearer)];
    let answer = send(&place, "POST", SESSION, &encrypted).await;
    assert!(answer.header("set-cookie").expect("a cookie").ends_with("; Secure"));
}

#[tokio::test]
async fn a_cookie_alone_is_not_enough_for_other_sites_lifecycle_calls_and_new_cookies() {
    let place = Place::new();
    let cookie = cookie(&place).await;
    let with = async |method: &str, uri: &str, headers: &[(&str, &str)]| {
        send(&place, method, uri, &[&[("cookie", &*cookie)], headers].concat()).await.error()
    };
    let invalid = (403, "auth_invalid".to_string());
    assert_eq!(with("GET", "/api/v1/tree", &[("host", "evil.example")]).await, invalid);
    assert_eq!(with("GET", "/api/v1/tree", &[HOST, ("origin", "https://evil.example")]).await, invalid);
    assert_eq!(with("POST", "/api/v1/dirs", &[HOST, JSON]).await, invalid, "no origin");
    assert_eq!(with("GET", "/api/v1/activity", &[HOST]).await, invalid);
    assert_eq!(with("POST", SESSION, &[HOST, ORIGIN]).await, (401, "auth_required".into()));
    let unknown = send(&place, "GET", "/api/v1/tree", &[HOST, ("cookie", "boring_agent_session=x")]).await;
    assert_eq!(unknown.error(), (401, "auth_required".into()));
    assert_eq!(send(&place, "POST", SESSION, &[HOST, ("authorization", "Bearer wrong")]).await.error(), invalid);
}

#[tokio::test]
async fn a_cookie_ends_with_its_token() {
    let place = Place::new();
    let cookie = cookie(&place).await;
    std::fs::write(place.dir.path().join("token"), "another-token").expect("written");
    let ended = async {
        while send(&place, "GET", "/api/v1/tree", &[HOST, ("cookie", &cookie)]).await.status != 403 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), ended).await.expect("the file is looked at again");
}

#[tokio::test]
async fn pages_of_configured_origins_may_call_and_others_may_not() {
    let place = Place::with(Arguments { allowed_origins: Some("https://app.example".into()), ..Arguments::default() });
    let preflight = async |origin: &str| {
        let asks = [HOST, ("origin", origin), ("access-control-request-method", "PUT")];
        send(&place, "OPTIONS", "/api/v1/files/raw", &asks).await
    };
    let good = preflight("https://app.example").await;
    assert_eq!(good.status, 200);
    for (name, value) in [
        ("access-control-allow-origin", "https://app.example"),
        ("access-control-allow-headers", "authorization,content-type,if-match,last-event-id,x-request-id"),
        ("access-control-allow-methods", "GET,HEAD,POST,PUT,PATCH,DELETE"),
        ("access-control-allow-credentials", "true"),
    ] {
        assert_eq!(good.header(name), Some(value), "{name}");
    }
    assert_eq!(preflight("https://evil.example").await.header("access-control-allow-origin"), None);
    let bearer = format!("Bearer {TOKEN}");
    let read = async |origin: &str| {
        send(&place, "GET", "/api/v1/tree", &[HOST, ("origin", origin), ("authorization", &bearer)]).await
    };
    let answer = read("https://app.example").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.header("access-control-expose-headers"), Some("x-turn-id,x-request-id,etag,retry-after"));
    assert_eq!(read("https://evil.example").await.error(), (403, "auth_invalid".into()));
    let error = send(&place, "GET", "/nope", &[HOST, ("origin", "https://app.example")]).await;
    assert_eq!(error.header("access-control-allow-origin"), Some("https://app.example"), "errors can be read too");
    let without = send(&Place::new(), "OPTIONS", "/api/v1/tree", &[HOST, ORIGIN]).await;
    assert_eq!(without.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn a_request_that_says_two_things_is_refused() {
    let place = Place::new();
    let bearer = format!("Bearer {TOKEN}");
    for name in ["host", "origin", "authorization", "content-type", "if-match", "range", "last-event-id"] {
        let headers = [HOST, ("authorization", &*bearer), (name, "a"), (name, "b")];
        let answer = send(&place, "GET", "/api/v1/tree", &headers).await;
        assert_eq!(answer.error(), (400, "validation_error".into()), "{name}");
        assert_eq!(answer.json()["error"]["field"], name);
    }
    let public = send(&place, "GET", "/health", &[HOST, ("host", "evil.example")]).await;
    assert_eq!(public.error(), (400, "validation_error".into()));
}
