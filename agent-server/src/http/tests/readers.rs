//! Readers of chat streams that are slow or many.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Place;
use crate::http::connection::serve;
use crate::http::server::Switch;
use crate::http::write_limit::WriteLimit;
use crate::llm::{ModelEvent, StopReason};
use crate::session::tests::{Act, done};

/// An answer of many deltas, each of 4 KiB, as long as the pacing of text lets them be one chunk each.
fn long_answer(deltas: usize) -> Vec<Act> {
    let mut acts = vec![Act::Event(ModelEvent::TextStart)];
    for number in 0..deltas {
        acts.push(Act::Event(ModelEvent::TextDelta(format!("{number:06}{}", "x".repeat(4_090)))));
        acts.push(Act::Wait(Duration::from_millis(40)));
    }
    acts.push(Act::Event(ModelEvent::TextEnd));
    acts.extend(done(StopReason::Stop, 1, 1));
    acts
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_off_and_gets_the_rest_by_number() {
    let place = Place::new();
    place.script.calls.lock().expect("no panic").push_back(long_answer(200));
    let (mut client, server) = duplex(16 * 1024);
    let switch = Switch::new(place.router.clone());
    let connection = tokio::spawn(serve(WriteLimit::new(server), switch, CancellationToken::new()));
    let body = json!({"id": "s", "message": "go"}).to_string();
    let head = format!(
        "POST /api/v1/agent/chat HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        super::TOKEN,
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).await.expect("sent");
    let mut seen = Vec::new();
    while seen.len() < 64 * 1024 {
        let mut buffer = [0; 8 * 1024];
        let count = client.read(&mut buffer).await.expect("read");
        assert!(count > 0, "goes on");
        seen.extend_from_slice(&buffer[..count]);
    }
    // From here on nothing is taken. The server lets go of the connection, and the turn goes on without it.
    tokio::time::timeout(Duration::from_secs(120), connection).await.expect("is cut off").expect("no panic");
    let idle = async {
        while place.app.sessions.active("s").is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), idle).await.expect("the turn ends");
    client.read_to_end(&mut seen).await.expect("what was on its way");
    let seen = String::from_utf8(seen).expect("text");
    assert!(!seen.contains("[DONE]") && !seen.ends_with("0\r\n\r\n"), "a cut stream does not look like a whole one");
    let whole = seen.rfind("\n\n").expect("a frame");
    let last = seen[..whole].rfind("id: turn_").expect("an id");
    let (turn, number) = seen[last + 4..].lines().next().expect("line").split_once(':').expect("number");
    let rest = place.get(&format!("/api/v1/agent/chat/s/{turn}?cursor={number}")).await;
    let rest = String::from_utf8(rest.body.to_vec()).expect("text");
    let from: u64 = number.parse().expect("number");
    assert!(rest.starts_with(&format!(": stream-open\n\nid: {turn}:{}\n", from + 1)), "{}", &rest[..100]);
    assert!(rest.ends_with("data: [DONE]\n\n"));
    for delta in 0..200 {
        let text = format!("{delta:06}xxx");
        assert!(seen[..whole].contains(&text) || rest.contains(&text), "delta {delta} is lost");
    }
}

#[tokio::test]
async fn a_thousand_readers_of_one_turn_each_get_all_of_it() {
    let place = Place::new();
    let release = std::sync::Arc::new(tokio::sync::Notify::new());
    let acts = [vec![Act::Until(release.clone())], crate::session::tests::answer("said")].concat();
    place.script.calls.lock().expect("no panic").push_back(acts);
    let open =
        async |request: axum::http::Request<Body>| place.router.clone().oneshot(request).await.expect("infallible");
    let request = Place::request("POST", "/api/v1/agent/chat").header("content-type", "application/json");
    let body = Body::from(json!({"id": "s", "message": "go"}).to_string());
    let first = open(request.body(body).expect("request")).await;
    let mut readers = vec![first.into_body()];
    while readers.len() < 1_000 {
        let request = Place::request("GET", "/api/v1/agent/chat/s/stream").body(Body::empty()).expect("request");
        readers.push(open(request).await.into_body());
    }
    assert_eq!(place.app.sessions.harness().metrics().stream_readers.get(), 1_000);
    release.notify_one();
    let whole = futures::future::join_all(
        readers.into_iter().map(|body| async { body.collect().await.expect("whole").to_bytes() }),
    );
    let whole = tokio::time::timeout(Duration::from_secs(120), whole).await.expect("in time");
    assert!(whole[0].ends_with(b"data: [DONE]\n\n"));
    assert!(whole.iter().all(|body| *body == whole[0]), "all the same");
    assert_eq!(place.app.sessions.harness().metrics().stream_readers.get(), 0);
}
