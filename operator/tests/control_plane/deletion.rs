//! What stays and what goes with a workspace.

use kube::api::DeleteParams;
use operator::crd::Phase;
use serde_json::json;

use crate::{fake_agent::FakeAgent, support::eventually, world::World};

async fn delete_running(world: &World, last: u8, spec: serde_json::Value) {
    world.create("alice", spec).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", last).await;
    world.start("alice", &agent.ip).await;
    world.workspaces().delete("alice", &DeleteParams::default()).await.expect("deleted");
    eventually("the pod is being deleted", async || {
        world
            .pods()
            .get_opt("alice-agent")
            .await
            .expect("a read")
            .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    if world.pods().get_opt("alice-agent").await.expect("a read").is_some() {
        world.finish_pod("alice").await;
    }
    eventually("service and policy are gone", async || {
        world.services().get_opt("alice-agent").await.expect("a read").is_none()
            && world.policies().get_opt("alice-agent").await.expect("a read").is_none()
    })
    .await;
}

#[tokio::test]
async fn a_deleted_workspace_keeps_its_claim_and_a_new_one_of_the_same_owner_gets_it_back() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    let spec = json!({"owner": {"user": "alice@example.com"}});
    delete_running(&world, 11, spec.clone()).await;
    let kept = world.claims().get("alice-home").await.expect("the claim is kept");
    assert!(kept.metadata.deletion_timestamp.is_none());

    world.create("alice", spec).await;
    world.pod("alice").await;
    let claim = world.claims().get("alice-home").await.expect("the claim");
    assert_eq!(claim.metadata.uid, kept.metadata.uid);
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn the_claim_of_another_owner_is_not_handed_over() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    delete_running(&world, 12, json!({"owner": {"user": "alice@example.com"}})).await;
    world.create("alice", json!({"owner": {"user": "mallory@example.com"}})).await;
    world.has_condition("alice", "Stalled", "True", "NameConflict").await;
    assert!(world.pods().get_opt("alice-agent").await.expect("a read").is_none());
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn with_retention_delete_the_claim_goes_with_the_workspace() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    delete_running(&world, 13, json!({"storage": {"retention": {"whenDeleted": "Delete"}}})).await;
    eventually("the claim is gone", async || world.claims().get_opt("alice-home").await.expect("a read").is_none())
        .await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_workspace_in_a_namespace_that_is_deleted_goes_without_a_fight() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    controller.leads().await;
    let space = crate::support::Space::new(json!({})).await.with_service_account().await;
    let name = space.name.clone();
    let workspaces: kube::Api<operator::crd::AgentWorkspace> = kube::Api::namespaced(world.client.clone(), &name);
    let workspace = operator::crd::AgentWorkspace::new("alice", serde_json::from_value(json!({})).expect("a spec"));
    workspaces.create(&kube::api::PostParams::default(), &workspace).await.expect("created");
    eventually("it starts", async || {
        let status = workspaces.get("alice").await.expect("it exists").status.unwrap_or_default();
        status.phase == Some(Phase::Starting)
    })
    .await;
    space.remove().await;
    eventually("the namespace is gone", async || !crate::world::namespace_exists(&world.client, &name).await).await;
    let writes = controller.writes();
    assert!(writes < 30, "{writes} writes");
    controller.stop().await;
    world.remove().await;
}
