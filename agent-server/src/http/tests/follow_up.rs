//! Follow-ups through the router, over a scripted model.

use std::time::Duration;

use axum::body::Body;
use serde_json::{Value, json};

use super::Place;
use crate::session::tests::{Act, answer};

const ROUTE: &str = "/api/v1/agent/chat/s/followup";

fn say(place: &Place, calls: Vec<Vec<Act>>) {
    place.script.calls.lock().expect("no panic").extend(calls);
}

async fn until_idle(place: &Place) {
    let idle = async {
        while place.app.activity.report().turns > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), idle).await.expect("the turns end");
}

#[tokio::test]
async fn a_follow_up_is_accepted_listed_cancelled_and_begun() {
    let place = Place::new();
    say(&place, vec![vec![Act::Hang], answer("two")]);
    let first = place.post(ROUTE, json!({"message": "go", "clientNonce": "n0", "clientSeq": 0})).await;
    assert_eq!(first.status, 202);
    let turn_id = first.json()["turnId"].clone();
    assert_eq!(first.json(), json!({"clientNonce": "n0", "status": "begun", "turnId": turn_id}));
    assert_eq!(place.app.activity.report().turns, 1, "its turn counts as use");
    let message =
        json!({"id": "u1", "role": "user", "parts": [{"type": "text", "text": "more"}], "metadata": {"a": 1}});
    let body = json!({"message": message, "clientNonce": "n1", "clientSeq": 7});
    let queued = place.post(ROUTE, body.clone()).await;
    assert_eq!((queued.status.as_u16(), queued.json()), (202, json!({"clientNonce": "n1", "status": "queued"})));
    let waiting = json!({"followUps": [{"clientNonce": "n1", "clientSeq": 7, "message": message}]});
    assert_eq!(place.get(ROUTE).await.json(), waiting);
    let begun = place.delete(&format!("{ROUTE}?clientNonce=n0")).await;
    assert_eq!(begun.error(), (409, "conflict".into()));
    assert_eq!(begun.json()["error"]["turnId"], turn_id);
    assert_eq!(place.delete(&format!("{ROUTE}?clientNonce=n1")).await.status, 204);
    assert_eq!(place.delete(&format!("{ROUTE}?clientNonce=n1")).await.status, 204);
    assert_eq!(place.post(ROUTE, body).await.json(), json!({"clientNonce": "n1", "status": "cancelled"}));
    assert_eq!(place.post("/api/v1/agent/chat/s/stop", json!({})).await.status, 204);
    until_idle(&place).await;
}

#[tokio::test]
async fn what_is_no_follow_up_is_refused_without_effect() {
    let place = Place::new();
    for (body, field) in [
        (json!({"clientNonce": "n"}), "message"),
        (json!({"message": "x"}), "clientNonce"),
        (json!({"message": "x", "clientNonce": "a/b"}), "clientNonce"),
        (json!({"message": " ", "clientNonce": "n"}), "message"),
        (json!({"message": {"role": "assistant", "parts": []}, "clientNonce": "n"}), "message"),
        (json!({"message": "x", "clientNonce": "n", "more": 1}), "more"),
    ] {
        let refused = place.post(ROUTE, body.clone()).await;
        assert_eq!(refused.error(), (400, "validation_error".into()), "{body}");
        assert_eq!(refused.json()["error"]["field"], field, "{body}");
    }
    place.script.key_missing.store(true, std::sync::atomic::Ordering::SeqCst);
    let refused = place.post(ROUTE, json!({"message": "x", "clientNonce": "n"})).await;
    assert_eq!(refused.error(), (503, "model_unavailable".into()));
    assert_eq!(place.get(ROUTE).await.error(), (404, "not_found".into()));
    assert_eq!(place.delete(ROUTE).await.error(), (404, "not_found".into()));
    assert_eq!(place.get("/api/v1/agent/sessions").await.json(), json!({"sessions": []}));
}

#[tokio::test]
async fn a_session_is_followed_over_its_turns_by_readers_that_ask_for_it() {
    let place = Place::new();
    say(&place, vec![answer("one"), answer("two")]);
    let first = place.post("/api/v1/agent/chat", json!({"id": "s", "message": "go"})).await;
    let turn = first.header("x-turn-id").expect("turn").to_owned();
    assert_eq!(place.post(ROUTE, json!({"message": "more", "clientNonce": "n"})).await.status, 202);
    until_idle(&place).await;
    let open = async |uri: &str| {
        let request = Place::request("GET", uri).body(Body::empty()).expect("request");
        tower::ServiceExt::oneshot(place.router.clone(), request).await.expect("infallible")
    };
    let followed = open(&format!("/api/v1/agent/chat/s/{turn}?cursor=1&follow=session")).await;
    let idle = open("/api/v1/agent/chat/s/stream?follow=session").await;
    assert_eq!((followed.headers()["x-turn-id"].to_str().ok(), idle.headers().get("x-turn-id")), (Some(&*turn), None));
    place.app.sessions.stop_all(crate::harness::AbortReason::Shutdown).await;
    let read = async |response: axum::response::Response| {
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.expect("whole").to_bytes();
        String::from_utf8(bytes.to_vec()).expect("text")
    };
    assert_eq!(read(idle).await, ": stream-open\n\ndata: [DONE]\n\n");
    let text = read(followed).await;
    let chunks: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|rest| serde_json::from_str(&format!("{{{rest}")).expect("json"))
        .collect();
    let kinds: Vec<&str> = chunks.iter().filter_map(|chunk| chunk["type"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "finish").count(), 2, "{kinds:?}");
    assert_eq!(
        kinds.iter().filter(|kind| **kind == "start").count(),
        1,
        "the first turn from behind its start: {kinds:?}"
    );
    assert_eq!(place.get("/api/v1/agent/chat/unknown/stream?follow=session").await.status, 204);
    assert_eq!(place.get("/api/v1/agent/chat/s/stream?follow=other").await.error(), (400, "validation_error".into()));
}
