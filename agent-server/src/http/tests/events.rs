//! Event streams through the router.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{Place, ok};

/// A client of an event stream.
pub struct Client {
    body: Body,
    text: String,
}

/// One event as a client sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl Client {
    /// Connects; with an id, resumes after it.
    pub async fn connect(place: &Place, uri: &str, last_event_id: Option<&str>) -> Self {
        let mut request = Place::request("GET", uri);
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let request = request.body(Body::empty()).expect("request");
        let response = place.router.clone().oneshot(request).await.expect("infallible");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"text/event-stream".parse().expect("header"))
        );
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next event; `None` when the stream ended.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_string(), rest.to_string());
                self.text = rest;
                if !event.starts_with(':') {
                    return Some(parse(&event));
                }
                continue;
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(30), self.body.frame()).await.expect("an event in time");
            let data = frame?.expect("readable").into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// The next event of one name; others are passed over.
    pub async fn next_named(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.expect("the stream goes on");
            if event.name == name {
                return event;
            }
        }
    }

    /// The greeting. A busy machine may be greeted before the first look at the tree; then this waits for its end, so
    /// that nothing which happens afterwards is missed. Returns what is watched too.
    pub async fn greeted(&mut self) -> (Event, Value) {
        let hello = self.next_named("hello").await;
        if !hello.data["watch"].is_null() {
            let watch = hello.data["watch"].clone();
            return (hello, watch);
        }
        let limit = self.next_named("limit").await;
        self.next_named("resync").await;
        (hello, limit.data["watch"].clone())
    }

    /// Changes until one concerns `path`; that one.
    async fn change_of(&mut self, path: &str) -> Value {
        loop {
            let event = self.next_named("change").await;
            if event.data["path"] == path {
                return event.data;
            }
        }
    }
}

fn parse(text: &str) -> Event {
    let mut event = Event { id: String::new(), name: String::new(), data: Value::Null };
    for line in text.lines() {
        match line.split_once(": ").expect("a field") {
            ("id", id) => event.id = id.into(),
            ("event", name) => event.name = name.into(),
            ("data", data) => event.data = serde_json::from_str(data).expect("JSON"),
            (field, _) => panic!("field {field}"),
        }
    }
    event
}

const EVENTS: &str = "/api/v1/fs/events";

#[tokio::test]
async fn a_reader_is_greeted_at_once_with_epoch_number_and_what_is_watched() {
    let place = Place::new();
    place.put("src/f", "x");
    place.put("node_modules/a/f", "x");
    place.put(".gitignore", "node_modules/\n");
    place.put(".git/objects/ab/cd", "x");
    let (hello, watch) = Client::connect(&place, EVENTS, None).await.greeted().await;
    let epoch = hello.data["epoch"].as_str().expect("text").to_string();
    let data = json!({"topic": "fs", "epoch": epoch, "seq": 0, "watch": hello.data["watch"]});
    assert_eq!(hello, Event { id: format!("{epoch}.0"), name: "hello".into(), data });
    assert_eq!(watch, json!({"by": "events", "folders": 2}));
}

#[tokio::test]
async fn changes_of_commands_and_of_the_interface_are_told() {
    let place = Place::new();
    place.put("src/old", "x");
    let mut client = Client::connect(&place, EVENTS, None).await;
    client.greeted().await;

    place.put("src/f", "by a command");
    let change = client.change_of("src/f").await;
    assert_eq!((change["op"].as_str(), change["mtimeMs"].is_i64()), (Some("write"), true), "{change}");

    let written = place.post("/api/v1/files", json!({"path": "src/f", "content": "by the interface"})).await.json();
    let expected = json!({"op": "write", "path": "src/f", "mtimeMs": written["mtimeMs"]});
    // The command's own write may have been told in two parts.
    while client.change_of("src/f").await != expected {}

    assert_eq!(place.post("/api/v1/files/move", json!({"from": "src/old", "to": "src/new"})).await.json(), ok());
    let renamed = client.change_of("src/new").await;
    assert_eq!((&renamed["op"], &renamed["oldPath"]), (&json!("rename"), &json!("src/old")), "{renamed}");

    assert_eq!(place.post("/api/v1/dirs", json!({"path": "made"})).await.json(), ok());
    assert_eq!(client.change_of("made").await["op"], "mkdir");
    place.put("made/inside", "x");
    assert_eq!(client.change_of("made/inside").await["op"], "write", "a new directory is watched too");

    std::fs::rename(place.file("made"), place.file("moved")).expect("renamed");
    assert_eq!(client.change_of("moved").await["oldPath"], "made");
    place.put("moved/inside", "again");
    assert_eq!(client.change_of("moved/inside").await["op"], "write", "and under its new name");

    assert_eq!(place.delete("/api/v1/files?path=moved&recursive=true").await.json(), ok());
    assert_eq!(client.change_of("moved").await, json!({"op": "unlink", "path": "moved"}));
}

#[tokio::test]
async fn own_writes_in_ignored_folders_are_told_and_what_commands_do_there_is_not() {
    let place = Place::new();
    place.put(".gitignore", "target/\n");
    place.put("target/debug/f", "x");
    let mut client = Client::connect(&place, EVENTS, None).await;
    client.greeted().await;
    place.put("target/debug/by-a-command", "x");
    place.post("/api/v1/files", json!({"path": "target/own", "content": "x"})).await;
    let change = client.next_named("change").await;
    assert_eq!((&change.data["op"], &change.data["path"]), (&json!("write"), &json!("target/own")));
}

#[tokio::test]
async fn rules_that_change_change_what_is_watched() {
    let place = Place::new();
    place.put("logs/f", "x");
    let mut client = Client::connect(&place, EVENTS, None).await;
    assert_eq!(client.greeted().await.1["folders"], 2);
    place.put(".gitignore", "logs/\n");
    assert_eq!(client.next_named("limit").await.data["watch"]["folders"], 1);
    place.put(".gitignore", "");
    assert_eq!(client.next_named("limit").await.data["watch"]["folders"], 2);
    place.put("logs/g", "x");
    assert_eq!(client.change_of("logs/g").await["op"], "write");
}

#[tokio::test]
async fn a_reader_that_comes_back_misses_nothing_and_one_of_another_process_looks_anew() {
    let place = Place::new();
    let mut client = Client::connect(&place, EVENTS, None).await;
    client.greeted().await;
    place.put("a", "x");
    let seen = client.next_named("change").await;
    drop(client);
    place.put("b", "x");
    let mut other = Client::connect(&place, EVENTS, Some(&seen.id)).await;
    assert_eq!(other.next().await.expect("a greeting").id, seen.id);
    assert_eq!(other.change_of("b").await["op"], "write");
    for id in ["0123456789abcdef.1", "", "x"] {
        let mut stranger = Client::connect(&place, EVENTS, Some(id)).await;
        let hello = stranger.next().await.expect("a greeting");
        assert_eq!(hello.name, "hello");
        let resync = stranger.next().await.expect("an event");
        assert_eq!((resync.name.as_str(), &resync.data), ("resync", &json!({"topic": "fs"})), "{id:?}");
        assert_eq!(resync.id, hello.id);
    }
}

#[tokio::test]
async fn a_flood_is_one_order_to_look_anew() {
    let place = Place::new();
    let mut client = Client::connect(&place, EVENTS, None).await;
    client.greeted().await;
    let outside = place.dir.path().join("many");
    std::fs::create_dir(&outside).expect("folder");
    for number in 0..3_000 {
        std::fs::write(outside.join(number.to_string()), "").expect("written");
    }
    std::fs::rename(outside, place.file("many")).expect("renamed");
    client.next_named("resync").await;
    place.put("after", "x");
    assert_eq!(client.change_of("after").await["op"], "write");
}

#[tokio::test]
async fn a_thousand_readers_all_get_a_change() {
    let place = Place::new();
    let mut clients = Vec::new();
    for _ in 0..1000 {
        clients.push(Client::connect(&place, EVENTS, None).await);
    }
    for client in &mut clients {
        client.greeted().await;
    }
    place.put("f", "x");
    for client in &mut clients {
        assert_eq!(client.change_of("f").await["op"], "write");
    }
}

#[tokio::test]
async fn what_happens_to_sessions_is_told_and_resumed() {
    let place = Place::new();
    let mut client = Client::connect(&place, "/api/v1/events?topics=sessions", None).await;
    assert_eq!(client.next().await.expect("a greeting").data["topic"], "sessions");
    place.post("/api/v1/agent/sessions", json!({"id": "s", "title": "First"})).await;
    let made = client.next_named("session").await;
    assert_eq!(
        (&made.data["op"], &made.data["id"], &made.data["title"]),
        (&json!("created"), &json!("s"), &json!("First"))
    );
    let patch = Place::request("PATCH", "/api/v1/agent/sessions/s").header("content-type", "application/json");
    let patch = patch.body(Body::from(json!({"title": "Second"}).to_string())).expect("request");
    assert_eq!(place.send(patch).await.status, 200);
    let renamed = client.next_named("session").await;
    assert_eq!((&renamed.data["op"], &renamed.data["title"]), (&json!("updated"), &json!("Second")));
    drop(client);
    assert_eq!(place.delete("/api/v1/agent/sessions/s").await.status, 204);
    let mut back = Client::connect(&place, "/api/v1/events?topics=sessions", Some(&made.id)).await;
    assert_eq!(back.next_named("session").await.data["title"], "Second");
    assert_eq!(back.next_named("session").await.data["op"], "deleted");
    let mut stranger = Client::connect(&place, "/api/v1/events?topics=sessions", Some("sessions:0.5")).await;
    assert_eq!(stranger.next_named("resync").await.data, json!({"topic": "sessions"}));
}

#[tokio::test]
async fn event_streams_end_when_the_server_stops_and_are_no_use() {
    let place = Place::new();
    let mut client = Client::connect(&place, EVENTS, None).await;
    client.greeted().await;
    assert!(!place.app.activity.report().busy);
    place.app.activity.stop();
    assert_eq!(client.next().await, None);
    assert_eq!(place.get(EVENTS).await.error(), (503, "draining".into()));
}
