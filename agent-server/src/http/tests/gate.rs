//! The order of checks around every route, and the one error shape.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::{Answer, Place};
use crate::config::Arguments;

async fn send(place: &Place, method: &str, uri: &str, headers: &[(&str, &str)], body: &'static str) -> Answer {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    place.send(request.body(Body::from(body)).expect("request")).await
}

type Headers<'a> = &'a [(&'a str, &'a str)];

const HOST: (&str, &str) = ("host", "localhost:8787");
const GOOD: (&str, &str) = ("authorization", "Bearer test-token");
const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn every_route_of_the_document_but_the_public_ones_needs_a_token() {
    let place = Place::new();
    let document: serde_json::Value = serde_json::from_str(crate::http::openapi::CHECKED_IN).expect("JSON");
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let uri = path.replace(['{', '}'], "");
        for method in methods.as_object().expect("methods").keys() {
            let answer = send(&place, &method.to_uppercase(), &uri, &[HOST, JSON], "{}").await;
            if ["/health", "/ready", "/api/v1/ready-status"].contains(&path.as_str()) {
                assert_eq!(answer.status, 200, "{path}");
            } else {
                assert_eq!(answer.error(), (401, "auth_required".into()), "{method} {path}");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                let wrong = [HOST, ("authorization", "Bearer wrong")];
                let answer = send(&place, &method.to_uppercase(), &uri, &wrong, "").await;
                assert_eq!(answer.error(), (403, "auth_invalid".into()), "{method} {path}");
            }
            asked += 1;
        }
    }
    assert!(asked >= 18, "the document lists {asked} operations");
}

#[tokio::test]
async fn an_unknown_route_says_nothing_without_a_token() {
    let place = Place::new();
    assert_eq!(send(&place, "GET", "/nope", &[HOST], "").await.error(), (401, "auth_required".into()));
    assert_eq!(send(&place, "GET", "/nope", &[HOST, GOOD], "").await.error(), (404, "not_found".into()));
    let wrong_method = send(&place, "PATCH", "/api/v1/files", &[HOST, GOOD], "").await;
    assert_eq!(wrong_method.error(), (405, "method_not_allowed".into()));
    assert!(wrong_method.header("allow").is_some_and(|allow| allow.contains("DELETE")));
}

#[tokio::test]
async fn framework_errors_have_the_one_shape() {
    let place = Place::new();
    let cases: [(&str, Headers, &str, u16, &str); 8] = [
        ("/api/v1/dirs", &[], "{}", 415, "unsupported_media_type"),
        ("/api/v1/dirs", &[("content-type", "text/plain")], "{}", 415, "unsupported_media_type"),
        ("/api/v1/dirs", &[JSON], "", 400, "validation_error"),
        ("/api/v1/dirs", &[JSON], "{", 400, "validation_error"),
        ("/api/v1/dirs", &[JSON], "{\"path\":1}", 400, "validation_error"),
        ("/api/v1/dirs", &[JSON], "[]", 400, "validation_error"),
        ("/api/v1/dirs", &[JSON], "{\"path\":\"a\",\"path\":\"b\"}", 400, "validation_error"),
        ("/api/v1/dirs", &[JSON, ("content-length", "99999999")], "{}", 413, "payload_too_large"),
    ];
    for (uri, headers, body, status, code) in cases {
        let headers = [&[HOST, GOOD], headers].concat();
        let answer = send(&place, "POST", uri, &headers, body).await;
        assert_eq!(answer.error(), (status, code.into()), "{body}");
    }
}

#[tokio::test]
async fn the_field_at_fault_is_named() {
    let place = Place::new();
    for (body, field) in
        [(json!({}), "path"), (json!({"path": "a", "pathh": 1}), "pathh"), (json!({"path": "../x"}), "path")]
    {
        let answer = place.post("/api/v1/dirs", body).await;
        assert_eq!(answer.json()["error"]["field"], field);
    }
    for (uri, field) in [
        ("/api/v1/files", "path"),
        ("/api/v1/files?path=a&path=b", "path"),
        ("/api/v1/tree?limit=-1", "limit"),
        ("/api/v1/tree?limit=0", "limit"),
        ("/api/v1/tree?depth=0&recursive=true", "depth"),
        ("/api/v1/tree?cursor=x", "cursor"),
        ("/api/v1/files?path=/etc/passwd", "path"),
        ("/api/v1/files/search?q=", "q"),
        ("/api/v1/files/grep?q=(&regex=true", "q"),
    ] {
        let answer = place.get(uri).await;
        assert_eq!(answer.json()["error"]["field"], field, "{uri}");
    }
}

#[tokio::test]
async fn deeply_nested_json_is_refused_and_does_not_overflow() {
    let place = Place::new();
    let deep = format!("{{\"path\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let request = Place::request("POST", "/api/v1/dirs").header("content-type", "application/json");
    let answer = place.send(request.body(Body::from(deep)).expect("request")).await;
    assert_eq!(answer.error(), (400, "validation_error".into()));
}

#[tokio::test]
async fn a_body_of_unknown_length_is_cut_at_the_limit() {
    let place = Place::new();
    let chunk = bytes::Bytes::from(vec![b' '; 1 << 20]);
    let chunks = futures::stream::iter((0..17).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
    let request = Place::request("POST", "/api/v1/dirs").header("content-type", "application/json");
    let answer = place.send(request.body(Body::from_stream(chunks)).expect("request")).await;
    assert_eq!(answer.error(), (413, "payload_too_large".into()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_sending_is_cut_off() {
    let place = Place::new();
    for (method, uri) in [("POST", "/api/v1/dirs"), ("PUT", "/api/v1/files/raw?path=f")] {
        let stalls = futures::StreamExt::chain(
            futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"{"))]),
            futures::stream::pending(),
        );
        let request = Place::request(method, uri).header("content-type", "application/json");
        let answer = place.send(request.body(Body::from_stream(stalls)).expect("request")).await;
        assert_eq!(answer.error(), (408, "request_timeout".into()), "{method}");
    }
    assert_eq!(std::fs::read_dir(place.file("")).expect("folder").count(), 0, "no temporary file is left");
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let place = Place::new();
    let given = send(&place, "GET", "/health", &[("x-request-id", "abc-123")], "").await;
    assert_eq!(given.header("x-request-id"), Some("abc-123"));
    let long = "x".repeat(129);
    for bad in ["", "two words", &long] {
        let made = send(&place, "GET", "/health", &[("x-request-id", bad)], "").await;
        assert_eq!(made.header("x-request-id").map(str::len), Some(32), "{bad}");
    }
    let error = send(&place, "GET", "/nope", &[HOST, ("x-request-id", "abc")], "").await;
    assert_eq!(error.header("x-request-id"), Some("abc"));
    assert_eq!(error.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn pages_of_other_sites_and_rebound_names_are_refused_with_a_static_token() {
    let place = Place::with(Arguments { public_hosts: Some("agent.example".into()), ..Arguments::default() });
    let tree = async |headers: &[(&str, &str)]| {
        send(&place, "GET", "/api/v1/tree", &[&[GOOD], headers].concat(), "").await.status.as_u16()
    };
    assert_eq!(tree(&[("host", "evil.example")]).await, 403);
    assert_eq!(tree(&[("host", "agent.example")]).await, 200);
    assert_eq!(tree(&[HOST, ("origin", "https://evil.example")]).await, 403);
    assert_eq!(tree(&[HOST, ("origin", "https://agent.example")]).await, 200);
    assert_eq!(send(&place, "GET", "/health", &[("host", "10.1.2.3:8787")], "").await.status, 200);
}

#[tokio::test]
async fn get_answers_head_with_the_same_headers_and_no_body() {
    let place = Place::new();
    place.put("f", "content");
    for uri in ["/api/v1/files/raw?path=f", "/api/v1/files?path=f", "/health", "/api/v1/tree"] {
        let get = place.get(uri).await;
        let head = place.send(Place::request("HEAD", uri).body(Body::empty()).expect("request")).await;
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{uri}");
        assert_eq!(head.header("content-type"), get.header("content-type"));
        assert_eq!(head.header("etag"), get.header("etag"));
        if let Some(length) = head.header("content-length") {
            assert_eq!(length.parse().ok(), Some(get.body.len()), "{uri}");
        }
    }
}

#[tokio::test]
async fn requests_are_counted_by_route_template_and_never_by_path() {
    let place = Place::new();
    place.put("very-secret-name", "x");
    place.get("/api/v1/files?path=very-secret-name").await;
    place.get("/some/unknown/very-secret-name").await;
    let text = place.app.metrics.render();
    for line in [
        "agent_http_requests_total{route=\"/api/v1/files\",method=\"GET\",status=\"200\"} 1\n",
        "agent_http_requests_total{route=\"unmatched\",method=\"GET\",status=\"404\"} 1\n",
        "agent_http_request_seconds_count{route=\"/api/v1/files\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("very-secret-name"));
}

#[tokio::test]
async fn a_handler_that_panics_answers_500_in_the_one_shape() {
    async fn fails() -> &'static str {
        panic!("a defect with a secret")
    }
    let place = Place::new();
    let router = axum::Router::new()
        .route("/fails", axum::routing::get(fails))
        .layer(axum::middleware::from_fn_with_state(place.app.clone(), crate::http::gate::gate));
    let request = Place::request("GET", "/fails").body(Body::empty()).expect("request");
    let response = tower::ServiceExt::oneshot(router, request).await.expect("infallible");
    assert_eq!(response.status(), 500);
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.expect("body");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["error"]["code"], "internal");
    assert!(!body.to_string().contains("secret"));
}
