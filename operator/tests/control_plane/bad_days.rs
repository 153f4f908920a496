//! Names that are taken, quotas, conflicts: each ends in a condition, without a hot loop and without damage.

use k8s_openapi::api::{
    core::v1::{ResourceQuota, Service},
    networking::v1::NetworkPolicy,
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use operator::crd::Phase;
use serde_json::json;

use crate::{fake_agent::FakeAgent, world::World};

#[tokio::test]
async fn a_foreign_object_with_a_childs_name_is_left_alone_and_named() {
    let world = World::new().await;
    let foreign: Service = serde_json::from_value(json!({
        "metadata": {"name": "alice-agent", "labels": {"app.kubernetes.io/managed-by": "Helm"}},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
    }))
    .expect("a service");
    let foreign = world.services().create(&PostParams::default(), &foreign).await.expect("created");
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    world.has_condition("alice", "Stalled", "True", "NameConflict").await;
    let status = world.status("alice").await;
    let stalled = status.conditions.iter().find(|condition| condition.type_ == "Stalled").expect("a condition");
    assert!(stalled.message.contains("alice-agent") && stalled.message.contains("Helm"), "{}", stalled.message);
    let after = world.services().get("alice-agent").await.expect("it exists");
    assert_eq!(after.resource_version(), foreign.resource_version());
    assert!(controller.writes() <= 2, "{} writes", controller.writes());
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn an_exhausted_quota_is_reported_and_overcome_when_it_is_raised() {
    let world = World::new().await;
    let quotas: kube::Api<ResourceQuota> = kube::Api::namespaced(world.client.clone(), &world.namespace);
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))
            .expect("a quota");
    quotas.create(&PostParams::default(), &quota).await.expect("created");
    // The quota counts once its controller has seen it.
    crate::support::eventually("the quota counts", async || {
        quotas.get("none").await.expect("it exists").status.and_then(|status| status.hard).is_some()
    })
    .await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    world.has_condition("alice", "Stalled", "True", "QuotaExceeded").await;
    let patch = Patch::Merge(json!({"spec": {"hard": {"pods": "5"}}}));
    quotas.patch("none", &PatchParams::default(), &patch).await.expect("patched");
    let agent = FakeAgent::start(world.workspaces(), "alice", 21).await;
    world.start("alice", &agent.ip).await;
    assert!(controller.writes() <= 12, "{} writes", controller.writes());
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn writes_of_others_to_the_same_object_cost_conflicts_but_nothing_else() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    controller.leads().await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 22).await;
    world.create("alice", json!({})).await;
    let workspaces = world.workspaces();
    let busy = tokio::spawn(async move {
        let mut interval = tokio::time::interval(std::time::Duration::from_millis(200));
        for count in 0.. {
            interval.tick().await;
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/count": count.to_string()}}}));
            workspaces.patch("alice", &PatchParams::default(), &patch).await.expect("patched");
        }
    });
    world.start("alice", &agent.ip).await;
    world.change("alice", json!({"runPolicy": "Stopped"})).await;
    crate::support::eventually("the pod is being deleted", async || {
        world.pod("alice").await.metadata.deletion_timestamp.is_some()
    })
    .await;
    world.finish_pod("alice").await;
    world.reaches("alice", Phase::Stopped).await;
    busy.abort();
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_service_and_a_policy_that_somebody_edits_are_put_back_and_what_is_added_stays() {
    let world = World::new().await;
    let controller = world.controller("one").await;
    world.create("alice", json!({})).await;
    let agent = FakeAgent::start(world.workspaces(), "alice", 22).await;
    world.start("alice", &agent.ip).await;
    let (services, policies) = (world.services(), world.policies());
    let service = services.get("alice-agent").await.expect("a service");
    let policy = policies.get("alice-agent").await.expect("a policy");
    let labels = policy.labels().clone();
    let writes = controller.writes();

    let edit = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    let open = Patch::Merge(json!({"metadata": {"labels": {"example.com/team": "a"}}, "spec": {"egress": [{}]}}));
    policies.patch("alice-agent", &edit, &open).await.expect("edited");
    let elsewhere = Patch::Merge(json!({"spec": {"selector": {"app": "evil"}}}));
    services.patch("alice-agent", &edit, &elsewhere).await.expect("edited");
    // Without this label the watch does not see it any more.
    let hidden = Patch::Merge(json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}));
    policies.patch("alice-agent", &edit, &hidden).await.expect("edited");

    crate::support::eventually("both are as before", async || {
        let now: NetworkPolicy = policies.get("alice-agent").await.expect("a policy");
        let labelled = labels.iter().all(|(name, value)| now.labels().get(name) == Some(value));
        let same = services.get("alice-agent").await.expect("a service").spec == service.spec;
        same && labelled && now.spec == policy.spec
    })
    .await;
    let policy = policies.get("alice-agent").await.expect("a policy");
    assert_eq!(policy.labels().get("example.com/team").map(String::as_str), Some("a"));
    assert!(controller.writes() - writes <= 4, "{} writes", controller.writes() - writes);
    assert_eq!(controller.failures(), 0);
    controller.stop().await;
    world.remove().await;
}
