//! Workspaces that sleep: who wakes them, with how many writes, and what happens when a wake gets lost.

use std::time::Duration;

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use operator::{
    crd::{AgentWorkspaceWake, Intent},
    telemetry::WakeResult,
};
use serde_json::json;

use crate::{
    agent::Agent,
    support::eventually,
    world::{Gateway, World, answer, code, uid},
};

fn wakes(world: &World) -> Api<AgentWorkspaceWake> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

/// The wake now: intent and counter.
async fn wake(world: &World, name: &str) -> Option<(Intent, i64)> {
    let found = wakes(world).get_opt(name).await.expect("a read");
    found.map(|wake| (wake.spec.intent, wake.spec.counter))
}

async fn woken(world: &World, name: &str, counter: i64) {
    let expected = Some((Intent::Awake, counter));
    eventually(&format!("{name} has wake {counter}"), async || wake(world, name).await == expected).await;
}

/// A sleeping workspace that the gateway knows.
async fn asleep(world: &World, gateway: &Gateway, name: &str, token: &str, settled: i64) -> String {
    world.workspace(name, "alice", json!({"runPolicy": "OnDemand"})).await;
    world.status(name, json!({"phase": "Sleeping", "settledTransition": settled})).await;
    let host = world.host(name);
    eventually("it is seen asleep", async || {
        code(&gateway.get(&host, "/api/v1/tree", token).await) == (503, "sleeping")
    })
    .await;
    host
}

fn chat(gateway: &Gateway, host: &str, token: &str) -> impl Future<Output = (u16, serde_json::Value)> {
    answer(gateway.request("POST", host, "/api/v1/agent/chat").bearer_auth(token).body("hello"))
}

#[tokio::test]
async fn many_requests_at_two_gateways_cause_one_wake_and_all_are_served() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    let token = world.person("alice").await;
    let agent = Agent::start("pod-1", 80).await;
    let host = asleep(&world, &one, "api", &token, 7).await;
    eventually("the other sees it too", async || {
        code(&two.get(&host, "/api/v1/tree", &token).await) == (503, "sleeping")
    })
    .await;
    let requests = (0..100).map(|index| chat(if index % 2 == 0 { &one } else { &two }, &host, &token));
    let starts = async {
        woken(&world, "api", 8).await;
        eventually("all are held", async || one.counted.held() + two.counted.held() == 100).await;
        world.status("api", json!({"phase": "Starting", "settledTransition": 8})).await;
        world.runs("api", "pod-1", &agent.ip).await;
    };
    let (answers, ()) = futures::join!(futures::future::join_all(requests), starts);
    let served = answers.iter().filter(|(status, shown)| *status == 200 && shown["bytes"] == 5).count();
    assert_eq!(served, 100);
    assert_eq!(wake(&world, "api").await, Some((Intent::Awake, 8)), "no further wake was written");
    let written = one.counted.wakes(WakeResult::Written) + two.counted.wakes(WakeResult::Written);
    assert_eq!(written, 1);
    let object = wakes(&world).get("api").await.expect("it exists");
    let workspace = world.workspaces().get("api").await.expect("it exists");
    assert_eq!(object.owner_references()[0].uid, uid(&workspace));
    one.stop().await;
    two.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_wake_that_a_stop_swallowed_or_that_was_deleted_is_written_again() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let agent = Agent::start("pod-1", 81).await;
    let host = asleep(&world, &gateway, "api", &token, 3).await;
    let troubles = async {
        woken(&world, "api", 4).await;
        // A stop that was decided meanwhile answers the wake: nothing starts.
        world.status("api", json!({"phase": "Stopping", "settledTransition": 4})).await;
        woken(&world, "api", 5).await;
        wakes(&world).delete("api", &DeleteParams::default()).await.expect("deleted");
        woken(&world, "api", 5).await;
        world.status("api", json!({"phase": "Starting", "settledTransition": 5})).await;
        world.runs("api", "pod-1", &agent.ip).await;
    };
    let ((status, _), ()) = futures::join!(chat(&gateway, &host, &token), troubles);
    assert_eq!(status, 200);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_wake_of_a_former_workspace_of_the_name_counts_for_nothing() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let former = json!({
        "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspaceWake",
        "metadata": {"name": "api", "namespace": world.namespace, "ownerReferences": [{
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace", "name": "api", "uid": "former"}]},
        "spec": {"intent": "Stopped", "counter": 90},
    });
    let object: AgentWorkspaceWake = serde_json::from_value(former).expect("an object");
    wakes(&world).create(&kube::api::PostParams::default(), &object).await.expect("created");
    let agent = Agent::start("pod-1", 82).await;
    let host = asleep(&world, &gateway, "api", &token, 1).await;
    let collected = async {
        // What the garbage collector does; it may be faster.
        let deleted = wakes(&world).delete("api", &DeleteParams::default()).await;
        assert!(deleted.is_ok() || matches!(&deleted, Err(kube::Error::Api(status)) if status.code == 404));
        woken(&world, "api", 2).await;
        world.status("api", json!({"phase": "Starting", "settledTransition": 2})).await;
        world.runs("api", "pod-1", &agent.ip).await;
    };
    let ((status, _), ()) = futures::join!(chat(&gateway, &host, &token), collected);
    assert_eq!(status, 200);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn an_explicit_stop_holds_against_requests_until_an_explicit_start() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let agent = Agent::start("pod-1", 83).await;
    let host = asleep(&world, &gateway, "api", &token, 3).await;
    let explicit =
        |what: &str| answer(gateway.request("POST", &host, &format!("/_workspace/{what}")).bearer_auth(&token));
    assert_eq!(explicit("stop").await, (202, json!({"state": "stopping"})));
    assert_eq!(wake(&world, "api").await, Some((Intent::Stopped, 4)));
    assert_eq!(code(&chat(&gateway, &host, &token).await), (503, "stopped"));

    let starts = async {
        woken(&world, "api", 5).await;
        world.status("api", json!({"phase": "Starting", "settledTransition": 5})).await;
        world.runs("api", "pod-1", &agent.ip).await;
    };
    let (started, ()) = futures::join!(explicit("start"), starts);
    assert_eq!(started, (200, json!({"state": "running"})));
    assert_eq!(chat(&gateway, &host, &token).await.0, 200);
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn what_requests_may_do_says_the_spec() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let host = asleep(&world, &gateway, "api", &token, 0).await;
    let change = async |wake: serde_json::Value| {
        let patch = Patch::Merge(json!({"spec": {"lifecycle": {"wake": wake}}}));
        world.workspaces().patch("api", &PatchParams::default(), &patch).await.expect("patched");
    };
    change(json!({"mode": "Manual"})).await;
    // The patch may not be seen yet, and then a request waits: it gives up by itself and leaves a wake, which is no harm here.
    eventually("requests do not wake it", async || {
        let asked = tokio::time::timeout(Duration::from_secs(1), chat(&gateway, &host, &token)).await;
        asked.is_ok_and(|answer| code(&answer) == (503, "sleeping"))
    })
    .await;
    change(json!({"mode": "OnRequest", "timeoutSeconds": 1})).await;
    eventually("a request gives up after a second", async || {
        let (status, said) = chat(&gateway, &host, &token).await;
        status == 503 && said["error"]["code"] == "starting" && said["error"]["retryAfter"] == 5
    })
    .await;
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_wake_without_any_reaction_says_that_no_operator_works() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let host = asleep(&world, &gateway, "api", &token, 3).await;
    let refused = chat(&gateway, &host, &token).await;
    assert_eq!((code(&refused), &refused.1["error"]["retryAfter"]), ((503, "controller_unavailable"), &json!(10)));
    assert_eq!(wake(&world, "api").await, Some((Intent::Awake, 4)));
    gateway.stop().await;
    world.remove().await;
}
