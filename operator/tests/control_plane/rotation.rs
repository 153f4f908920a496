//! Key pairs are replaced while pods run, and no pod is left behind.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use operator::{cluster::rbac::KEYS_SECRET_NAME, crd::ANNOTATION_KEYS};
use serde_json::{Value, json};

use crate::{fake_agent::FakeAgent, support::eventually, world::World};

/// Ids of the keys that the pod of a workspace carries.
async fn carried(world: &World, name: &str) -> Vec<String> {
    let keys: Value = serde_json::from_str(&world.pod(name).await.annotations()[ANNOTATION_KEYS]).expect("a key set");
    keys["keys"].as_array().expect("keys").iter().map(|key| key["kid"].as_str().expect("an id").to_owned()).collect()
}

async fn request(world: &World) {
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), world.system());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"agents.boring.dev/rotate-keys": "now"}}}));
    secrets.patch(KEYS_SECRET_NAME, &PatchParams::default(), &patch).await.expect("patched");
}

#[tokio::test]
async fn a_requested_rotation_ends_with_new_keys_in_the_same_pod() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 41).await;
    world.start("alice", &agent.ip).await;
    let (uid, before) = (world.pod("alice").await.uid(), carried(&world, "alice").await);
    assert_eq!(before.len(), 2);
    request(&world).await;
    eventually("the next keys are published beside the old ones", async || carried(&world, "alice").await.len() == 4)
        .await;
    eventually("the old keys are gone", async || carried(&world, "alice").await.len() == 2).await;
    let after = carried(&world, "alice").await;
    assert!(after.iter().all(|key| !before.contains(key)), "{before:?} {after:?}");
    assert_eq!(world.pod("alice").await.uid(), uid);
    let metrics = controller.get("/metrics").await.1;
    for step in ["announce", "promote", "retire"] {
        let line = format!("key_rotation_steps_total{{step=\"{step}\"}} 1");
        assert!(metrics.contains(&line), "{line} is missing in {metrics}");
    }
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_pod_that_missed_the_update_holds_up_the_rotation_until_it_is_patched() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 42).await;
    world.start("alice", &agent.ip).await;
    let old = world.pod("alice").await.annotations()[ANNOTATION_KEYS].clone();
    request(&world).await;
    eventually("the next keys are published", async || carried(&world, "alice").await.len() == 4).await;
    // Somebody restores an old copy of the pod's metadata: it is patched anew, and the wait begins again.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_KEYS: old}}}));
    world.pods().patch("alice-agent", &PatchParams::default(), &patch).await.expect("patched");
    eventually("it carries all keys again", async || carried(&world, "alice").await.len() == 4).await;
    eventually("the rotation ends", async || carried(&world, "alice").await.len() == 2).await;
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn labels_that_somebody_removes_from_the_pod_come_back() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 43).await;
    world.start("alice", &agent.ip).await;
    let before = world.pod("alice").await;
    for label in ["agents.boring.dev/workspace-uid", "app.kubernetes.io/managed-by"] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {label: null}}}));
        world.pods().patch("alice-agent", &PatchParams::default(), &patch).await.expect("patched");
        eventually("the labels are as before", async || world.pod("alice").await.labels() == before.labels()).await;
    }
    assert_eq!(world.pod("alice").await.uid(), before.uid());
    assert_eq!(world.status("alice").await.restarts, None);
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}
