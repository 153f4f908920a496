//! The bridge to the user interface through the router.

use axum::body::Body;
use serde_json::{Value, json};

use super::events::Client;
use super::{Answer, Place};
use crate::config::Arguments;

const NEXT: &str = "/api/v1/ui/commands/next";

async fn put(place: &Place, headers: &[(&str, &str)], body: Value) -> Answer {
    let mut request = Place::request("PUT", "/api/v1/ui/state").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    place.send(request.body(Body::from(body.to_string())).expect("request")).await
}

async fn post(place: &Place, kind: &str, params: Value) -> Value {
    place.post("/api/v1/ui/commands", json!({"kind": kind, "params": params})).await.json()
}

#[tokio::test]
async fn the_state_is_told_read_and_replaced_only_when_it_is_the_expected_one() {
    let place = Place::new();
    for route in ["/api/v1/ui/state", "/api/v1/ui/state/latest"] {
        assert_eq!(place.get(route).await.json(), json!({"state": null, "causedBy": null}));
    }
    let written = put(&place, &[], json!({"state": {"open": ["a"]}, "causedBy": "user"})).await;
    let etag = written.json()["etag"].as_str().expect("text").to_string();
    assert_eq!(written.json(), json!({"ok": true, "etag": etag}));
    for route in ["/api/v1/ui/state", "/api/v1/ui/state/latest"] {
        let read = place.get(route).await;
        assert_eq!(read.json(), json!({"state": {"open": ["a"]}, "causedBy": "user"}));
        assert_eq!(read.header("etag"), Some(&*etag));
        let known = Place::request("GET", route).header("if-none-match", &etag).body(Body::empty()).expect("request");
        assert_eq!(place.send(known).await.status, 304);
    }
    let next = put(&place, &[("if-match", &etag)], json!({"state": {}, "causedBy": "agent"})).await;
    assert_eq!(next.status, 200);
    let stale = put(&place, &[("if-match", &etag)], json!({"state": {"x": 1}, "causedBy": "agent"})).await;
    assert_eq!(stale.error(), (409, "conflict".into()));
    assert_eq!(stale.json()["error"]["currentEtag"], next.json()["etag"]);
    let large = put(&place, &[], json!({"state": {"x": "y".repeat(1024 * 1024)}, "causedBy": "user"})).await;
    assert_eq!(large.error(), (413, "payload_too_large".into()));
    for bad in [json!({"state": []}), json!({"state": {}, "causedBy": "me"}), json!({"causedBy": "user"})] {
        assert_eq!(put(&place, &[], bad).await.error(), (400, "validation_error".into()));
    }
}

#[tokio::test]
async fn a_state_told_by_a_user_is_use_and_a_restored_page_is_not() {
    let place = Place::new();
    let drained = place.post("/api/v1/drain", json!({})).await;
    assert_eq!(drained.status, 200);
    let refused = put(&place, &[], json!({"state": {}, "causedBy": "user"})).await;
    assert_eq!(refused.error(), (503, "draining".into()));
    assert_eq!(place.app.ui_bridge.state(), None);
    let place = Place::new();
    let idle = async {
        while place.app.activity.report().idle_seconds == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), idle).await.expect("time passes");
    assert_eq!(put(&place, &[], json!({"state": {}, "causedBy": "restore"})).await.status, 200);
    let background = [("x-workspace-background", "1")];
    assert_eq!(put(&place, &background, json!({"state": {}, "causedBy": "user"})).await.status, 200);
    assert!(place.app.activity.report().idle_seconds >= 1);
    put(&place, &[], json!({"state": {}, "causedBy": "user"})).await;
    assert_eq!(place.app.activity.report().idle_seconds, 0);
}

#[tokio::test]
async fn every_interface_gets_every_command_and_one_that_comes_back_gets_what_it_missed() {
    let place = Place::new();
    assert_eq!(post(&place, "openFile", json!({"path": "a"})).await, json!({"seq": 1, "status": "ok"}));
    let mut first = Client::connect(&place, NEXT, None).await;
    let hello = first.next().await.expect("a greeting");
    assert_eq!(
        (hello.name.as_str(), hello.id.as_str(), &hello.data),
        ("hello", "0", &json!({"topic": "ui", "seq": 0}))
    );
    let command = first.next().await.expect("the undelivered command");
    assert_eq!((command.name.as_str(), command.id.as_str()), ("command", "1"));
    assert_eq!(command.data, json!({"v": 1, "seq": 1, "kind": "openFile", "params": {"path": "a"}}));

    let mut second = Client::connect(&place, NEXT, None).await;
    assert_eq!(second.next().await.expect("a greeting").id, "1", "what was delivered is not sent again");
    post(&place, "closePanel", json!({"id": "p"})).await;
    for client in [&mut first, &mut second] {
        assert_eq!(client.next_named("command").await.id, "2");
    }
    let mut back = Client::connect(&place, NEXT, Some("1")).await;
    assert_eq!(back.next().await.expect("a greeting").id, "1");
    assert_eq!(back.next_named("command").await.id, "2");
    let mut stranger = Client::connect(&place, NEXT, Some("77")).await;
    assert_eq!(stranger.next().await.expect("a greeting").id, "2");
    assert_eq!(stranger.next().await.expect("an event").name, "resync");
}

#[tokio::test]
async fn commands_can_be_polled() {
    let place = Place::new();
    post(&place, "expandToFile", json!({"path": "a"})).await;
    let first = json!({"v": 1, "seq": 1, "kind": "expandToFile", "params": {"path": "a"}});
    let poll = async |query: &str| place.get(&format!("{NEXT}?poll=true{query}")).await.json();
    assert_eq!(poll("").await, json!({"commands": [first], "resync": false, "seq": 1}));
    assert_eq!(poll("").await, json!({"commands": [], "resync": false, "seq": 1}));
    assert_eq!(poll("&after=0").await["commands"], json!([first]));
    assert_eq!(poll("&after=9").await, json!({"commands": [], "resync": true, "seq": 1}));
}

#[tokio::test]
async fn a_command_that_does_not_fit_is_refused_and_configured_kinds_are_taken() {
    let place = Place::with(Arguments { ui_kinds: Some("openChart".into()), ..Arguments::default() });
    let refused = post(&place, "openDoor", json!({})).await;
    assert_eq!((&refused["seq"], &refused["status"]), (&json!(0), &json!("error")));
    assert_eq!(refused["error"]["code"], "validation_error");
    assert!(refused["error"]["message"].as_str().expect("text").ends_with("showNotification, openChart"), "{refused}");
    assert_eq!(post(&place, "openFile", json!({"path": "../x"})).await["error"]["code"], "path_rejected");
    assert_eq!(post(&place, "openChart", json!({"any": 1})).await["status"], "ok");
    assert_eq!(
        place.post("/api/v1/ui/commands", json!({"params": {}})).await.error(),
        (400, "validation_error".into())
    );
}

#[tokio::test]
async fn one_connection_carries_files_and_commands_and_resumes_both() {
    let place = Place::new();
    let mut client = Client::connect(&place, "/api/v1/events?topics=fs,ui", None).await;
    let mut greeted = Vec::new();
    while greeted.len() < 2 {
        let hello = client.next_named("hello").await;
        assert!(hello.id.starts_with("fs:") && hello.id.contains(",ui:"), "{hello:?}");
        greeted.push(hello.data["topic"].as_str().expect("text").to_string());
    }
    greeted.sort();
    assert_eq!(greeted, ["fs", "ui"]);
    post(&place, "closePanel", json!({"id": "p"})).await;
    let command = client.next_named("command").await;
    drop(client);
    post(&place, "closePanel", json!({"id": "q"})).await;
    let mut back = Client::connect(&place, "/api/v1/events?topics=fs,ui", Some(&command.id)).await;
    assert_eq!(back.next_named("command").await.data["params"], json!({"id": "q"}));
    let mut stranger = Client::connect(&place, "/api/v1/events?topics=ui,fs", Some("nonsense")).await;
    let mut lost = Vec::new();
    while lost.len() < 2 {
        lost.push(stranger.next_named("resync").await.data["topic"].as_str().expect("text").to_string());
    }
    lost.sort();
    assert_eq!(lost, ["fs", "ui"]);
    for bad in ["", "fs,doors"] {
        let answer = place.get(&format!("/api/v1/events?topics={bad}")).await;
        assert_eq!(answer.json()["error"]["field"], "topics");
    }
    assert_eq!(place.get("/api/v1/events").await.json()["error"]["field"], "topics");
}
