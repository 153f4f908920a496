//! Health, readiness, activity and drain through the router.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::json;
use tower::ServiceExt as _;

use super::Place;
use super::events::Client;
use crate::config::Arguments;
use crate::readiness::ModelKey;
use crate::shutdown::Closing;

#[tokio::test]
async fn health_tells_version_and_pod() {
    let place = Place::with(Arguments { pod_uid: Some("uid-1".into()), ..Arguments::default() });
    let answer = place.get("/health").await;
    assert_eq!(answer.json(), json!({"status": "ok", "version": env!("CARGO_PKG_VERSION"), "uptime": 0}));
    assert_eq!(answer.header("x-boring-agent-pod"), Some("uid-1"));
    assert_eq!(Place::new().get("/health").await.header("x-boring-agent-pod"), None);
}

#[tokio::test]
async fn readiness_names_what_does_not_work() {
    let place = Place::new();
    let ready = async || {
        let answer = place.get("/ready").await;
        (answer.status.as_u16(), answer.json())
    };
    let isolation = json!({"kind": "None", "network": "Inherit"});
    assert_eq!(ready().await, (200, json!({"status": "ok", "isolation": isolation})));
    place.app.readiness.set_model_key(ModelKey::Rejected);
    let degraded = json!({"status": "degraded", "reasons": ["ModelKeyRejected"], "isolation": isolation});
    assert_eq!(ready().await, (200, degraded));
    place.app.readiness.set_storage(Some("read-only".into()));
    let unavailable = json!({
        "status": "unavailable", "reason": "VolumeNotWritable", "message": "read-only", "retryAfter": 2,
        "isolation": isolation,
    });
    assert_eq!(ready().await, (503, unavailable));
    assert_eq!(place.get("/ready").await.header("retry-after"), Some("2"));
    place.app.readiness.set_storage(None);
    place.app.activity.stop();
    assert_eq!(ready().await.1["reason"], "Draining");
}

#[tokio::test]
async fn readiness_is_followed_until_it_is_there() {
    let place = Place::new();
    place.app.readiness.set_storage(Some("read-only".into()));
    let request = Place::request("GET", "/api/v1/ready-status").body(Body::empty()).expect("request");
    let response = place.router.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut next = async || {
        let frame = tokio::time::timeout(Duration::from_secs(5), body.frame()).await.expect("in time");
        frame
            .map(|frame| String::from_utf8(frame.expect("readable").into_data().expect("data").to_vec()).expect("text"))
    };
    let first = next().await.expect("a first event at once");
    assert!(first.starts_with("id: 1\nevent: status\ndata: {\"state\":\"volumenotwritable\","), "{first}");
    place.app.readiness.set_storage(None);
    let second = next().await.expect("an event for the change");
    assert!(second.starts_with("id: 2\nevent: status\ndata: {\"state\":\"ready\","), "{second}");
    assert_eq!(next().await, None, "the stream ends when ready");
}

#[tokio::test]
async fn a_drain_refuses_everything_but_probes_and_the_operators_calls() {
    let place = Place::new();
    assert_eq!(place.post("/api/v1/drain", json!({})).await.json(), json!({"state": "draining"}));
    let refused = place.get("/api/v1/tree").await;
    assert_eq!(refused.error(), (503, "draining".into()));
    assert_eq!(refused.header("x-workspace-state"), Some("stopping"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(place.get("/api/v1/runtime").await.error(), (503, "draining".into()));
    assert_eq!(place.get("/nope").await.error(), (503, "draining".into()));
    assert_eq!(place.get("/health").await.status, 200);
    assert_eq!(place.get("/ready").await.status, 503);
    assert_eq!(place.get("/api/v1/activity").await.status, 200);
    assert_eq!(place.post("/api/v1/drain", json!({})).await.status, 200);
}

#[tokio::test]
async fn a_conditional_drain_of_a_busy_workspace_answers_what_runs_and_changes_nothing() {
    let place = Place::new();
    let turn = place.app.activity.begin_turn().expect("open");
    let refused = place.post("/api/v1/drain", json!({"ifIdleSeconds": 0})).await;
    assert_eq!(refused.error(), (409, "conflict".into()));
    let activity = &refused.json()["error"]["activity"];
    assert_eq!(
        *activity,
        json!({"busy": true, "reasons": ["turn"], "idleSeconds": 0, "busySeconds": 0, "turns": 1, "processes": 0})
    );
    assert_eq!(place.get("/api/v1/tree").await.status, 200);
    drop(turn);
    let used_since = place.post("/api/v1/drain", json!({"ifIdleSeconds": 60})).await;
    assert_eq!(used_since.error(), (409, "conflict".into()));
    assert_eq!(place.post("/api/v1/drain", json!({"ifIdleSeconds": 0})).await.status, 200);
}

#[tokio::test]
async fn a_drain_without_a_stop_is_taken_back() {
    let place = Place::new();
    assert_eq!(place.post("/api/v1/drain", json!({"holdSeconds": 0})).await.status, 200);
    assert_eq!(place.get("/api/v1/tree").await.status, 200);
    for bad in [json!({"holdSeconds": 86_401}), json!({"graceSeconds": 86_401}), json!({"hold": 1}), json!([])] {
        assert_eq!(place.post("/api/v1/drain", bad).await.error(), (400, "validation_error".into()));
    }
}

#[tokio::test]
async fn a_drain_notice_reaches_running_turns_and_event_streams_and_changes_nothing() {
    let place = Place::new();
    place.script.calls.lock().expect("no panic").push_back(vec![crate::session::tests::Act::Hang]);
    let request = Place::request("POST", "/api/v1/agent/chat").header("content-type", "application/json");
    let body = Body::from(json!({"id": "s", "message": "go"}).to_string());
    let chat = place.router.clone().oneshot(request.body(body).expect("request")).await.expect("infallible");
    let mut chat = chat.into_body();
    let opened = chat.frame().await.expect("a first frame").expect("readable").into_data().expect("data");
    assert!(opened.starts_with(b": stream-open\n\n"), "{opened:?}");
    let mut events = Client::connect(&place, "/api/v1/events?topics=sessions", None).await;
    assert_eq!(events.next().await.expect("a greeting").data["topic"], "sessions");
    assert_eq!(place.post("/api/v1/drain-notice", json!({"seconds": 90})).await.status, 204);
    let notice = events.next_named("notice").await.data;
    let text = "This workspace is about to be stopped, in 90 s. Using it keeps it running.";
    assert_eq!(notice, json!({"level": "warn", "text": text, "stopInSeconds": 90}));
    let expected = format!("\"data\":{{\"level\":\"warn\",\"text\":\"{text}\"}},\"transient\":true");
    loop {
        let frame = tokio::time::timeout(Duration::from_secs(30), chat.frame()).await.expect("in time");
        let frame = frame.expect("goes on").expect("readable").into_data().expect("data");
        if String::from_utf8_lossy(&frame).contains(&expected) {
            break;
        }
    }
    assert_eq!(place.get("/api/v1/tree").await.status, 200);
    for bad in [json!({}), json!({"seconds": 86_401}), json!({"seconds": -1}), json!({"seconds": 1, "x": 1})] {
        assert_eq!(place.post("/api/v1/drain-notice", bad).await.error(), (400, "validation_error".into()));
    }
    place.app.sessions.stop_all(crate::harness::AbortReason::Drain).await;
}

#[tokio::test(start_paused = true)]
async fn turns_get_their_grace_and_are_then_closed() {
    let place = Place::new();
    let closed = Arc::new(AtomicUsize::new(0));
    place.app.shutdown.on_close("test", {
        let closed = closed.clone();
        move |why| {
            assert_eq!(why, Closing::Drain);
            let closed = closed.clone();
            Box::pin(async move {
                closed.fetch_add(1, Ordering::SeqCst);
            })
        }
    });
    let _turn = place.app.activity.begin_turn().expect("open");
    place.post("/api/v1/drain", json!({"graceSeconds": 20, "holdSeconds": 600})).await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(closed.load(Ordering::SeqCst), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn background_requests_are_no_use() {
    let place = Place::new();
    let idle = |headers: &[(&str, &str)], uri: &str| {
        let mut request = Place::request("GET", uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).expect("request")
    };
    // Only requests that are no use leave an idle time of a second alone.
    let one_second_idle = async {
        while place.app.activity.report().idle_seconds == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), one_second_idle).await.expect("time passes");
    for request in [
        idle(&[("x-workspace-background", "1")], "/api/v1/tree"),
        idle(&[("last-event-id", "7")], "/api/v1/tree"),
        idle(&[], "/api/v1/runtime"),
        idle(&[], "/api/v1/activity"),
        idle(&[], "/ready"),
    ] {
        place.send(request).await;
        assert!(place.app.activity.report().idle_seconds >= 1);
    }
    place.get("/api/v1/tree").await;
    assert_eq!(place.app.activity.report().idle_seconds, 0);
}

#[tokio::test]
async fn the_runtime_route_tells_mode_isolation_and_versions() {
    let place = Place::with(Arguments { workspace_id: Some("w-1".into()), ..Arguments::default() });
    let answer = place.get("/api/v1/runtime").await.json();
    assert_eq!(
        answer,
        json!({
            "mode": "direct",
            "isolation": {"kind": "None", "network": "Inherit", "probes": ["no commands in this test"]},
            "workspaceId": "w-1",
            "root": "/workspace",
            "versions": {"server": env!("CARGO_PKG_VERSION")},
        })
    );
}

#[tokio::test]
async fn before_the_parts_are_put_together_the_public_routes_answer_and_the_rest_is_provisioning() {
    let readiness = Arc::new(crate::readiness::Readiness::new());
    let router = crate::http::starting::router(Some("uid-1".into()), std::time::Instant::now(), readiness.clone());
    let get = async |uri: &str| {
        let request = Place::request("GET", uri).body(Body::empty()).expect("request");
        let response = router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("readable").to_bytes();
        (parts, serde_json::from_slice::<serde_json::Value>(&body).expect("JSON"))
    };
    let (head, _) = get("/health").await;
    assert_eq!((head.status.as_u16(), &head.headers["x-boring-agent-pod"]), (200, &"uid-1".parse().expect("header")));
    let (head, body) = get("/ready").await;
    assert_eq!((head.status.as_u16(), body["reason"].as_str()), (503, Some("Starting")));
    readiness.set_storage(Some("read-only".into()));
    assert_eq!(get("/ready").await.1["reason"], "VolumeNotWritable");
    let (head, body) = get("/api/v1/tree").await;
    assert_eq!((head.status.as_u16(), body["error"]["code"].as_str()), (503, Some("provisioning")));
    assert_eq!(&head.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_pause_for_a_snapshot_keeps_writes_waiting_and_reads_going() {
    let place = Arc::new(Place::new());
    assert_eq!(place.post("/api/v1/quiesce", json!({"maxSeconds": 10})).await.json(), json!({"state": "quiesced"}));
    let writing = tokio::spawn({
        let place = place.clone();
        async move { place.post("/api/v1/files", json!({"path": "f", "content": "x"})).await.status.as_u16() }
    });
    assert_eq!(place.get("/api/v1/tree").await.json()["entries"], json!([]));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!writing.is_finished());
    for _ in 0..2 {
        assert_eq!(place.post("/api/v1/unquiesce", json!({})).await.json(), json!({"state": "running"}));
    }
    assert_eq!(writing.await.expect("no panic"), 200);
    for bad in [json!({"maxSeconds": 0}), json!({"maxSeconds": 11}), json!({}), json!({"maxSeconds": 1, "x": 1})] {
        assert_eq!(place.post("/api/v1/quiesce", bad).await.error(), (400, "validation_error".into()));
    }
}
