//! Chat through the router, over a scripted model.

use std::sync::atomic::Ordering;

use axum::body::Body;
use serde_json::{Value, json};

use super::{Answer, Place};
use crate::llm::StopReason;
use crate::session::tests::{Act, answer, call, done};

fn say(place: &Place, calls: Vec<Vec<Act>>) {
    place.script.calls.lock().expect("no panic").extend(calls);
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

async fn chat(place: &Place, body: Value) -> Answer {
    place.post("/api/v1/agent/chat", body).await
}

/// Number and chunk of each frame; the form of the whole body is checked on the way.
fn frames(answer: &Answer) -> Vec<(u64, Value)> {
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    let turn = answer.header("x-turn-id").expect("turn id");
    let text = text.strip_prefix(": stream-open\n\n").expect("the stream opens with a comment");
    let text = text.strip_suffix("data: [DONE]\n\n").expect("ends");
    text.split_terminator("\n\n")
        .map(|frame| {
            let rest = frame.strip_prefix(&format!("id: {turn}:")).expect("id");
            let (number, data) = rest.split_once("\ndata: ").expect("data");
            (number.parse().expect("number"), serde_json::from_str(data).expect("json"))
        })
        .collect()
}

#[tokio::test]
async fn both_bodies_start_a_turn_and_the_stream_has_its_headers() {
    let place = Place::new();
    say(&place, vec![answer("one"), answer("two")]);
    let first = chat(&place, json!({"sessionId": "s", "message": "Hello", "extra": {"of": "the application"}})).await;
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache, no-transform"),
        ("x-accel-buffering", "no"),
        ("x-vercel-ai-ui-message-stream", "v1"),
    ] {
        assert_eq!(first.header(name), Some(value));
    }
    let seen = frames(&first);
    assert_eq!(seen[0].0, 1);
    assert_eq!(seen[0].1["messageMetadata"]["turnId"], first.header("x-turn-id").expect("turn id"));
    assert_eq!(seen.last().expect("finish").1["type"], "finish");
    let history = json!([user("u0", "old"), {"id": "a", "role": "assistant", "parts": []}, user("u1", "new")]);
    let second = chat(&place, json!({"id": "s", "messages": history, "trigger": "submit-message"})).await;
    assert_eq!(frames(&second).last().expect("finish").1["type"], "finish");
    let messages = place.get("/api/v1/agent/chat/s/messages").await.json();
    let texts: Vec<&str> = messages["messages"]
        .as_array()
        .expect("list")
        .iter()
        .flat_map(|message| message["parts"].as_array().expect("parts"))
        .filter_map(|part| part["text"].as_str())
        .collect();
    assert_eq!(texts, ["Hello", "one", "new", "two"]);
    let page = place.get("/api/v1/agent/chat/s/messages?limit=1&before=u1").await.json();
    assert_eq!((page["messages"][0]["role"].as_str(), page["hasMore"].as_bool()), (Some("assistant"), Some(true)));
}

#[tokio::test]
async fn what_is_no_chat_is_refused_without_effect() {
    let place = Place::new();
    for (body, field) in [
        (json!({"message": "no session"}), "id"),
        (json!({"id": "../x", "message": "hi"}), "id"),
        (json!({"id": "x".repeat(129), "message": "hi"}), "id"),
        (json!({"id": "s"}), "message"),
        (json!({"id": "s", "messages": []}), "message"),
        (json!({"id": "s", "message": " "}), "message"),
        (json!({"id": "s", "messages": [user("u", "x"), {"role": "assistant", "parts": []}]}), "message"),
        (json!({"id": "s", "message": "hi", "trigger": "other"}), "trigger"),
        (json!({"id": "s", "message": "hi", "thinkingLevel": "extreme"}), "thinkingLevel"),
        (json!({"id": "s", "message": "hi", "model": {"provider": "other", "id": "x"}}), "model"),
        (json!({"id": "s", "message": "hi", "systemPrompt": "x".repeat(70_000)}), "systemPrompt"),
        (json!({"id": "s", "message": "hi", "attachments": [{"url": "http://x/y.png"}]}), "message"),
    ] {
        let refused = chat(&place, body.clone()).await;
        assert_eq!(refused.error(), (400, "validation_error".into()), "{body}");
        assert_eq!(refused.json()["error"]["field"], field, "{body}");
    }
    assert_eq!(place.get("/api/v1/agent/sessions").await.json(), json!({"sessions": []}));
    let text = Place::request("POST", "/api/v1/agent/chat").header("content-type", "text/plain");
    let refused = place.send(text.body(Body::from("{}")).expect("request")).await;
    assert_eq!(refused.error(), (415, "unsupported_media_type".into()));
    let huge = Place::request("POST", "/api/v1/agent/chat")
        .header("content-type", "application/json")
        .header("content-length", "300000000");
    let refused = place.send(huge.body(Body::empty()).expect("request")).await;
    assert_eq!(refused.error(), (413, "payload_too_large".into()));
}

#[tokio::test]
async fn a_missing_key_and_a_drain_refuse_before_any_effect() {
    let place = Place::new();
    place.script.key_missing.store(true, Ordering::SeqCst);
    let refused = chat(&place, json!({"id": "s", "message": "hi"})).await;
    assert_eq!(refused.error(), (503, "model_unavailable".into()));
    place.script.key_missing.store(false, Ordering::SeqCst);
    assert_eq!(place.get("/api/v1/agent/sessions").await.json(), json!({"sessions": []}));
    place.app.activity.stop();
    let refused = chat(&place, json!({"id": "s", "message": "hi"})).await;
    assert_eq!(refused.error(), (503, "draining".into()));
}

#[tokio::test]
async fn a_busy_session_and_a_repeated_message_name_the_turn_in_the_body() {
    let place = Place::new();
    say(&place, vec![vec![Act::Hang]]);
    let request = Place::request("POST", "/api/v1/agent/chat").header("content-type", "application/json");
    let body = Body::from(json!({"id": "s", "messages": [user("u1", "hi")]}).to_string());
    let running = tower::ServiceExt::oneshot(place.router.clone(), request.body(body).expect("request")).await;
    let running = running.expect("infallible");
    let turn = running.headers()["x-turn-id"].to_str().expect("text").to_owned();
    let busy = chat(&place, json!({"id": "s", "messages": [user("u2", "more")]})).await;
    assert_eq!(busy.error(), (409, "turn_in_progress".into()));
    assert_eq!(busy.json()["error"]["turnId"], *turn);
    let repeated = chat(&place, json!({"id": "s", "messages": [user("u1", "hi")]})).await;
    assert_eq!(repeated.error(), (409, "already_exists".into()));
    assert_eq!(repeated.json()["error"]["turnId"], *turn);
    let report = place.app.activity.report();
    assert_eq!((report.busy, report.turns), (true, 1));
    drop(running);
    let other = place.post("/api/v1/agent/chat/s/stop", json!({"turnId": "turn_other", "x": 1})).await;
    assert_eq!(other.status, 204);
    assert!(place.app.sessions.active("s").is_some(), "a reader that leaves and a stop of another turn change nothing");
    assert_eq!(place.post("/api/v1/agent/chat/s/stop", json!({"turnId": turn})).await.status, 204);
    assert!(place.app.sessions.active("s").is_none());
    assert_eq!(place.post("/api/v1/agent/chat/unknown/stop", json!({})).await.status, 204);
}

#[tokio::test]
async fn a_turn_is_resumed_by_number_and_the_sdks_route_never_answers_404() {
    let place = Place::new();
    let tools = [call("a", "echo", "{\"x\":1}"), done(StopReason::ToolUse, 1, 1)].concat();
    say(&place, vec![tools, answer("end")]);
    let whole = chat(&place, json!({"id": "s", "message": "go"})).await;
    let turn = whole.header("x-turn-id").expect("turn id").to_owned();
    let all = frames(&whole);
    let uri = format!("/api/v1/agent/chat/s/{turn}");
    for (index, (number, _)) in all.iter().enumerate().take(all.len() - 1) {
        let rest = place.get(&format!("{uri}?cursor={number}")).await;
        assert_eq!(frames(&rest), all[index + 1..], "cursor {number}");
        let request = Place::request("GET", &uri).header("last-event-id", format!("{turn}:{number}"));
        let rest = place.send(request.body(Body::empty()).expect("request")).await;
        assert_eq!(frames(&rest), all[index + 1..], "id {number}");
    }
    let last = all.last().expect("finish").0;
    assert_eq!(place.get(&format!("{uri}?cursor={last}")).await.status, 204);
    assert_eq!(place.get(&format!("{uri}?cursor={}", last + 1)).await.error(), (416, "range_not_satisfiable".into()));
    assert_eq!(place.get(&format!("{uri}?cursor=x")).await.error(), (400, "validation_error".into()));
    let foreign = Place::request("GET", &uri).header("last-event-id", "turn_other:1");
    let foreign = place.send(foreign.body(Body::empty()).expect("request")).await;
    assert_eq!(foreign.error(), (400, "validation_error".into()));
    assert_eq!(place.get("/api/v1/agent/chat/s/turn_other").await.error(), (404, "not_found".into()));
    assert_eq!(frames(&place.get(&format!("/api/v1/agent/chat/s/stream?turn={turn}")).await), all);
    for uri in ["s/stream", "unknown/stream", "s/stream?turn=turn_other", "..%2Fx/stream"] {
        assert_eq!(place.get(&format!("/api/v1/agent/chat/{uri}")).await.status, 204, "{uri}");
    }
    assert_eq!(place.get("/api/v1/agent/chat/unknown/messages").await.error(), (404, "not_found".into()));
}
