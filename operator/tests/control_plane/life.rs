//! The ordinary life of a workspace.

use kube::ResourceExt;
use operator::crd::{ANNOTATION_KEYS, Phase};
use serde_json::json;

use crate::{fake_agent::FakeAgent, support::eventually, world::World};

#[tokio::test]
async fn a_workspace_gets_its_children_and_is_ready_in_six_writes_and_four_reconciles() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    controller.leads().await;
    assert_eq!(controller.reconciles(), 0, "there is no workspace yet");
    let workspace = world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 1).await;
    world.start("alice", &agent.ip).await;

    let status = world.status("alice").await;
    let pod = world.pod("alice").await;
    let reference = status.pod.expect("a pod in the status");
    assert_eq!(Some(reference.uid), pod.uid());
    assert_eq!(
        (reference.ip.as_deref(), reference.node_name.as_deref()),
        (Some(agent.ip.as_str()), Some(format!("node-of-{}", world.namespace).as_str()))
    );
    assert_eq!(status.observed_generation, Some(1));
    world.has_condition("alice", "Ready", "True", "Running").await;

    let keys: serde_json::Value = serde_json::from_str(&pod.annotations()[ANNOTATION_KEYS]).expect("a key set");
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(2));
    let service = world.services().get("alice-agent").await.expect("a service");
    let policy = world.policies().get("alice-agent").await.expect("a policy");
    for references in [pod.owner_references(), service.owner_references(), policy.owner_references()] {
        let owner = &references[0];
        assert_eq!(Some(owner.uid.clone()), workspace.uid());
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    }
    let claim = world.claims().get("alice-home").await.expect("a claim");
    assert!(claim.owner_references().is_empty(), "a claim that is kept has no owner");

    assert!(controller.writes() <= 6, "{} writes", controller.writes());
    assert!(controller.reconciles() <= 4, "{} reconciles", controller.reconciles());
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_stop_is_written_before_the_server_is_drained_and_drained_before_the_pod_is_deleted() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({"lifecycle": {"stopGracePeriodSeconds": 60}})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 2).await;
    world.start("alice", &agent.ip).await;

    world.change("alice", json!({"runPolicy": "Stopped"})).await;
    eventually("the pod is being deleted", async || world.pod("alice").await.metadata.deletion_timestamp.is_some())
        .await;
    let stopping = world.workspaces().get("alice").await.expect("it exists");
    let status = stopping.status.clone().expect("a status");
    assert_eq!((status.phase, status.pod), (Some(Phase::Stopping), None));
    // One counter of the store behind both versions.
    let version = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let deleted = version(world.pod("alice").await.resource_version());
    assert!(version(stopping.resource_version()) < deleted, "the status is older than the deletion");
    let drains = agent.drains();
    assert_eq!(drains.len(), 1, "{drains:?}");
    assert_eq!((drains[0].token, drains[0].phase.as_deref()), (true, Some("Stopping")));
    assert_eq!(drains[0].body, json!({"graceSeconds": 55}));

    world.finish_pod("alice").await;
    world.reaches("alice", Phase::Stopped).await;
    world.has_condition("alice", "Ready", "True", "Stopped").await;
    assert!(world.claims().get_opt("alice-home").await.expect("a read").is_some(), "the claim is kept");

    world.change("alice", json!({"runPolicy": "Always"})).await;
    world.start("alice", &agent.ip).await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_pod_that_never_had_a_node_is_stopped_too() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    world.pod("alice").await;
    world.change("alice", json!({"runPolicy": "Stopped"})).await;
    world.reaches("alice", Phase::Stopped).await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_failed_pod_is_created_again_after_its_pause_and_a_deleted_one_at_once() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 3).await;
    world.start("alice", &agent.ip).await;
    let first = world.pod("alice").await.uid();
    world
        .patch_pod_status(
            "alice",
            json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}),
        )
        .await;
    eventually("another pod is there", async || {
        let pod = world.pods().get_opt("alice-agent").await.expect("a read");
        match pod {
            Some(pod) if pod.uid() == first && pod.metadata.deletion_timestamp.is_some() => {
                world.finish_pod("alice").await;
                false
            }
            Some(pod) => pod.uid() != first,
            None => false,
        }
    })
    .await;
    world.bind("alice").await;
    world.make_ready("alice", &agent.ip).await;
    let status = world.reaches("alice", Phase::Running).await;
    assert_eq!(status.restarts, Some(1));
    assert_eq!(status.last_termination.map(|end| end.reason), Some("Evicted".to_owned()));
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}
