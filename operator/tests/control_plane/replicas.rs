//! Restart and handover.

use std::time::{Duration, Instant};

use kube::ResourceExt;
use operator::{
    cluster::{Calls, client_for_calls},
    config::Place,
    token::{TokenArguments, token},
};
use serde_json::json;

use crate::{fake_agent::FakeAgent, support::eventually, world::World};

#[tokio::test]
async fn a_restart_with_settled_workspaces_writes_nothing() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    let names: Vec<String> = (0..8).map(|number| format!("alice-{number}")).collect();
    let mut agents = Vec::new();
    for (number, name) in (31..).zip(&names) {
        world.create(name, json!({})).await;
        let agent = FakeAgent::start(world.workspaces(), name, number).await;
        world.start(name, &agent.ip).await;
        agents.push(agent);
    }
    controller.stop().await;
    let versions = async || {
        let list = world.workspaces().list(&kube::api::ListParams::default()).await.expect("a list");
        list.items.iter().map(ResourceExt::resource_version).collect::<Vec<_>>()
    };
    let before = versions().await;

    let controller = world.controller("two").await;
    eventually("every workspace was looked at", async || controller.reconciles() >= names.len() as u64).await;
    assert_eq!(controller.writes(), 0);
    assert_eq!(controller.failures(), 0);
    assert_eq!(versions().await, before);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn of_two_replicas_one_acts_and_the_other_takes_over_within_two_seconds() {
    let world = World::new().await;
    let one = world.controller("one").await;
    one.leads().await;
    let two = world.controller("two").await;
    eventually("the follower is ready", async || two.get("/readyz").await.0 == 200).await;
    assert!(two.get("/metrics").await.1.contains("agent_workspace_operator_leader 0"));
    world.create("alice", json!({})).await;
    world.pod("alice").await;
    assert_eq!(two.writes(), 0);

    let began = Instant::now();
    one.stop().await;
    two.leads().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    world.create("bob", json!({})).await;
    world.pod("bob").await;
    two.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_token_is_printed_with_the_operators_own_rights() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({"owner": {"user": "alice@example.com"}})).await;
    let arguments = TokenArguments {
        name: "alice".to_owned(),
        namespace: world.namespace.clone(),
        user: None,
        place: Place { namespace: world.system().to_owned() },
    };
    let print = async || {
        let client = client_for_calls(&world.config).expect("a client");
        let calls = Calls::new(std::sync::Arc::new(operator::telemetry::Metrics::new()));
        token(client, calls, &arguments).await.map_err(|error| error.reason())
    };
    world.pod("alice").await;
    assert_eq!(print().await, Err("NotRunning"));
    let agent = FakeAgent::start(world.workspaces(), "alice", 41).await;
    world.start("alice", &agent.ip).await;
    let text = print().await.expect("a token");
    assert_eq!(text.split('.').count(), 3);
    controller.stop().await;
    world.remove().await;
}
