//! Sleep and wake against a real API server. An idle timeout is at least a minute; the tests make it pass by moving the time of
//! the start back, as a restarted operator would find it.

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use operator::crd::{
    AgentWorkspace, AgentWorkspaceWake, AgentWorkspaceWakeSpec, Intent, Phase, StartReason, StopReason,
};
use serde_json::json;

use crate::{fake_agent::FakeAgent, support::eventually, world::World};

fn wakes(world: &World) -> Api<AgentWorkspaceWake> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

/// What a gateway writes.
async fn wake(world: &World, workspace: &AgentWorkspace, intent: Intent, counter: i64) {
    let mut object = AgentWorkspaceWake::new(&workspace.name_any(), AgentWorkspaceWakeSpec { intent, counter });
    object.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
            "name": workspace.name_any(), "uid": workspace.uid().expect("a uid"),
        }))
        .expect("a reference"),
    ]);
    let parameters = PatchParams::apply("gateway").force();
    wakes(world).patch(&workspace.name_any(), &parameters, &Patch::Apply(&object)).await.expect("written");
}

/// The idle deadline of a pod that became Ready now is a minute away: it is as if it had been Ready for an hour.
async fn an_hour_passes(world: &World, name: &str) {
    let patch = Patch::Merge(json!({"status": {"startedAt": "2026-01-01T00:00:00Z"}}));
    world.workspaces().patch_status(name, &PatchParams::default(), &patch).await.expect("patched");
    // A status is the operator's own and asks for nothing; a change of the spec does.
    world.change(name, json!({"agent": {"systemPrompt": "look again"}})).await;
}

#[tokio::test]
async fn an_idle_workspace_sleeps_and_a_request_wakes_it() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    let spec =
        json!({"runPolicy": "OnDemand", "lifecycle": {"idleTimeoutSeconds": 60, "startOnCreate": "OnFirstRequest"}});
    let workspace = world.create("alice", spec).await;
    let status = world.reaches("alice", Phase::Sleeping).await;
    assert_eq!(status.settled_transition, Some(0));
    assert!(world.pods().get_opt("alice-agent").await.expect("a read").is_none());

    let agent = FakeAgent::start(world.workspaces(), "alice", 51).await;
    wake(&world, &workspace, Intent::Awake, 1).await;
    world.start("alice", &agent.ip).await;
    let status = world.status("alice").await;
    assert_eq!(status.settled_transition, Some(1));
    assert_eq!(status.last_start.map(|start| start.reason), Some(StartReason::Wake));

    agent.works(true);
    an_hour_passes(&world, "alice").await;
    eventually("it is asked", async || agent.questions() > 0).await;
    assert_eq!(world.status("alice").await.phase, Some(Phase::Running), "it works");
    assert!(agent.drains().is_empty());

    agent.works(false);
    // Another replica takes over and knows nothing of the answer before.
    controller.stop().await;
    let controller = world.controller("two").await;
    eventually("it is being stopped", async || {
        world
            .pods()
            .get_opt("alice-agent")
            .await
            .expect("a read")
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    let drains = agent.drains();
    assert_eq!(drains[0].body, json!({"ifIdleSeconds": 60, "holdSeconds": 30}));
    assert_eq!(drains[0].phase.as_deref(), Some("Running"), "asked before anything is decided");
    assert_eq!(drains[1].phase.as_deref(), Some("Stopping"), "the status is written before the pod is deleted");
    world.finish_pod("alice").await;
    let status = world.reaches("alice", Phase::Sleeping).await;
    assert_eq!(status.last_stop.map(|stop| stop.reason), Some(StopReason::Idle));
    let writes = controller.writes();

    // An old number starts nothing; a greater one does.
    wake(&world, &workspace, Intent::Awake, 1).await;
    wake(&world, &workspace, Intent::Awake, 2).await;
    world.start("alice", &agent.ip).await;
    assert_eq!(world.status("alice").await.settled_transition, Some(2));
    assert!(controller.writes() - writes <= 4, "{} writes", controller.writes() - writes);

    wake(&world, &workspace, Intent::Stopped, 3).await;
    eventually("it is being stopped", async || world.pod("alice").await.metadata.deletion_timestamp.is_some()).await;
    world.finish_pod("alice").await;
    let status = world.reaches("alice", Phase::Stopped).await;
    assert_eq!(status.last_stop.map(|stop| stop.reason), Some(StopReason::User));
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_wake_of_a_former_workspace_starts_nothing() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    let spec = json!({"runPolicy": "OnDemand", "lifecycle": {"startOnCreate": "OnFirstRequest"}});
    let workspace = world.create("alice", spec).await;
    world.reaches("alice", Phase::Sleeping).await;
    let stale = AgentWorkspaceWake::new("alice", AgentWorkspaceWakeSpec { intent: Intent::Awake, counter: 9 });
    wakes(&world).create(&PostParams::default(), &stale).await.expect("created");
    world.change("alice", json!({"agent": {"systemPrompt": "look again"}})).await;
    let generation = world.workspaces().get("alice").await.expect("it exists").metadata.generation;
    eventually("it was looked at", async || world.status("alice").await.observed_generation == generation).await;
    assert_eq!(world.status("alice").await.phase, Some(Phase::Sleeping));
    wake(&world, &workspace, Intent::Awake, 9).await;
    world.reaches("alice", Phase::Starting).await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn an_expired_workspace_is_deleted_when_it_says_so() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({"lifecycle": {"expiresAt": "2026-01-01T00:00:00Z", "expirePolicy": "Delete"}})).await;
    eventually("it is gone", async || world.workspaces().get_opt("alice").await.expect("a read").is_none()).await;
    world.create("bob", json!({"lifecycle": {"expiresAt": "2026-01-01T00:00:00Z"}})).await;
    world.reaches("bob", Phase::Stopped).await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}
