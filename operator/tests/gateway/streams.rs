//! Bytes in both directions, and how they end.

use std::time::Duration;

use axum::body::Bytes;
use futures::StreamExt;
use operator::gateway::Settings;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    agent::Agent,
    support::{LIMIT, eventually},
    world::{Gateway, World, answer},
};

async fn ready(last: u8, settings: impl FnOnce(Settings) -> Settings) -> (World, Gateway, Agent, String, String) {
    let world = World::new().await;
    let gateway = world.gateway_with(settings(world.settings())).await;
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({"access": {"visibility": "Authorized"}})).await;
    let agent = Agent::start("pod-1", last).await;
    world.runs("api", "pod-1", &agent.ip).await;
    let host = world.host("api");
    gateway.serves(&host, &token).await;
    (world, gateway, agent, host, token)
}

async fn next(
    response: &mut (impl StreamExt<Item = reqwest::Result<Bytes>> + Unpin),
) -> Option<reqwest::Result<Bytes>> {
    timeout(LIMIT, response.next()).await.expect("in time")
}

#[tokio::test]
async fn each_event_arrives_before_the_next_is_sent_and_a_break_is_passed_on_as_a_break() {
    let (world, gateway, agent, host, token) = ready(20, |settings| settings).await;
    let response = gateway.request("GET", &host, "/events").bearer_auth(&token).send().await.expect("headers at once");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = Box::pin(response.bytes_stream());
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        agent.events.send(Ok(Bytes::from(event))).expect("it listens");
        assert_eq!(next(&mut body).await.expect("an event").expect("no break"), event);
    }
    agent.events.send(Err(std::io::Error::other("a crash"))).expect("it listens");
    assert!(next(&mut body).await.expect("an end").is_err(), "half an answer must not look like a whole one");
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_large_body_is_handed_on_as_it_comes() {
    let (world, gateway, _agent, host, token) = ready(21, |settings| settings).await;
    // Larger than what is kept for sending again.
    let body = vec![b'x'; 5 << 20];
    let (status, shown) =
        answer(gateway.request("PUT", &host, "/api/v1/files/raw").bearer_auth(&token).body(body)).await;
    assert_eq!((status, &shown["bytes"]), (200, &json!(5 << 20)));
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_socket_carries_bytes_both_ways_and_other_protocols_do_not_pass() {
    let (world, gateway, _agent, host, token) = ready(22, |settings| settings).await;
    let ask = async |protocol: &str| {
        let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
        let request = format!(
            "GET /socket HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\n\
             upgrade: {protocol}\r\nsec-websocket-key: a\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(LIMIT, stream.read_u8()).await.expect("in time").expect("a byte"));
        }
        (stream, String::from_utf8(head).expect("text"))
    };
    let (mut stream, head) = ask("websocket").await;
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("sec-websocket-accept: x"), "{head}");
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).await.expect("written");
        let mut echoed = [0; 5];
        timeout(LIMIT, stream.read_exact(&mut echoed)).await.expect("in time").expect("an echo");
        assert_eq!(echoed, word.as_bytes());
    }
    assert!(ask("h2c").await.1.starts_with("HTTP/1.1 426"), "the double refuses what is no socket");
    drop(stream);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn an_open_stream_ends_when_the_right_to_it_does() {
    let (world, gateway, agent, host, _) =
        ready(23, |settings| Settings { ask_again: Duration::from_secs(1), ..settings }).await;
    let bob = world.person("bob").await;
    world.let_connect("bob").await;
    gateway.serves(&host, &bob).await;
    let response = gateway.request("GET", &host, "/events").bearer_auth(&bob).send().await.expect("an answer");
    let mut body = Box::pin(response.bytes_stream());
    agent.events.send(Ok(Bytes::from("data: 1\n\n"))).expect("it listens");
    assert!(next(&mut body).await.expect("an event").is_ok());
    world.forbid_to_connect("bob").await;
    assert!(next(&mut body).await.expect("an end").is_err());
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_gateway_that_ends_is_not_ready_first_and_open_answers_end_as_they_would_have() {
    let (world, gateway, agent, host, token) = ready(24, |settings| settings).await;
    let response = gateway.request("GET", &host, "/events").bearer_auth(&token).send().await.expect("an answer");
    let mut body = Box::pin(response.bytes_stream());
    gateway.terminate();
    eventually("the port is closed", async || TcpStream::connect(gateway.address).await.is_err()).await;
    assert_eq!(gateway.health("/readyz").await.0, 503);
    agent.events.send(Ok(Bytes::from("data: late\n\n"))).expect("it listens");
    assert_eq!(next(&mut body).await.expect("an event").expect("no break"), "data: late\n\n");
    drop(agent);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_stream_that_nobody_ends_is_broken_off_at_the_end_of_the_drain() {
    let (world, gateway, agent, host, token) =
        ready(25, |settings| Settings { drain: Duration::from_secs(1), ..settings }).await;
    let response = gateway.request("GET", &host, "/events").bearer_auth(&token).send().await.expect("an answer");
    let mut body = Box::pin(response.bytes_stream());
    gateway.terminate();
    assert!(next(&mut body).await.expect("an end").is_err());
    drop(agent);
    gateway.stop().await;
    world.remove().await;
}
