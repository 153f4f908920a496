//! Requests for workspaces that do not serve.

use serde_json::json;

use crate::{
    agent::Agent,
    support::eventually,
    world::{World, answer, code},
};

#[tokio::test]
async fn a_request_with_a_body_waits_for_the_pod_and_one_that_only_looks_does_not() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({"runPolicy": "Always"})).await;
    world.status("api", json!({"phase": "Starting"})).await;
    let host = world.host("api");
    eventually("the workspace is known", async || gateway.get(&host, "/api/v1/tree", &token).await.0 == 503).await;
    let look = gateway.get(&host, "/api/v1/tree", &token).await;
    assert_eq!((code(&look), &look.1["error"]["retryAfter"]), ((503, "starting"), &json!(5)));
    let background = gateway.request("POST", &host, "/api/v1/agent/chat").bearer_auth(&token).body("x");
    assert_eq!(code(&answer(background.header("x-workspace-background", "1")).await), (503, "starting"));

    let chat = answer(gateway.request("POST", &host, "/api/v1/agent/chat").bearer_auth(&token).body("hello"));
    let asked =
        answer(gateway.request("GET", &host, "/api/v1/tree").bearer_auth(&token).header("x-workspace-wake", "1"));
    let agent = Agent::start("pod-1", 60).await;
    let starts = async {
        eventually("both are held", async || gateway.counted.held() == 2).await;
        world.runs("api", "pod-1", &agent.ip).await;
    };
    let ((status, shown), (asked, _), ()) = futures::join!(chat, asked, starts);
    assert_eq!((status, &shown["bytes"], asked), (200, &json!(5), 200));
    assert_eq!(gateway.counted.held(), 0);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_browser_sees_that_something_happens_and_a_stalled_workspace_says_why_at_once() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({"runPolicy": "Always"})).await;
    world.status("api", json!({"phase": "Starting"})).await;
    let host = world.host("api");
    eventually("the workspace is known", async || gateway.get(&host, "/api/v1/tree", &token).await.0 == 503).await;
    let page = || gateway.request("GET", &host, "/").bearer_auth(&token).header("accept", "text/html").send();
    let progress = page().await.expect("a page");
    assert_eq!(
        (progress.status().as_u16(), &progress.headers()["x-workspace-state"]),
        (503, &"starting".parse().expect("a value"))
    );
    assert!(progress.text().await.expect("a body").contains("api is starting"));

    let stalled = json!({"type": "Stalled", "status": "True", "reason": "SecretNotFound", "message": "no secret agent-key", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    world.status("api", json!({"phase": "Pending", "conditions": [stalled]})).await;
    let chat = || answer(gateway.request("POST", &host, "/api/v1/agent/chat").bearer_auth(&token).body("x"));
    let refused = chat().await;
    assert_eq!(code(&refused), (503, "stalled"));
    assert_eq!(refused.1["error"]["message"], "SecretNotFound: no secret agent-key");
    let stopped = json!({"spec": {"runPolicy": "Stopped"}});
    let patch = kube::api::Patch::Merge(stopped);
    world.workspaces().patch("api", &kube::api::PatchParams::default(), &patch).await.expect("patched");
    world.status("api", json!({"phase": "Stopped", "conditions": []})).await;
    eventually("the stop is seen", async || code(&chat().await) == (503, "stopped")).await;
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_request_that_a_stopping_pod_refuses_is_sent_again_to_the_next_one() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({"runPolicy": "Always"})).await;
    let (first, second) = (Agent::start("pod-1", 61).await, Agent::start("pod-2", 62).await);
    world.runs("api", "pod-1", &first.ip).await;
    let host = world.host("api");
    gateway.serves(&host, &token).await;
    first.stop_serving(true);
    let chat = answer(gateway.request("POST", &host, "/api/v1/agent/chat").bearer_auth(&token).body("hello"));
    let moves = async {
        eventually("it is held", async || gateway.counted.held() == 1).await;
        world.runs("api", "pod-2", &second.ip).await;
    };
    let ((status, shown), ()) = futures::join!(chat, moves);
    assert_eq!((status, &shown["bytes"]), (200, &json!(5)));
    assert_eq!(second.seen(), ["/api/v1/agent/chat"]);
    gateway.stop().await;
    world.remove().await;
}
