//! What may change after creation, and what not: with the parent removed, removed and added again, in another unit.

use operator::crd::spec_rules;
use serde_json::{Value, json};

use crate::support::{Space, assert_refused};

fn rule(beginning: &str) -> &'static str {
    let found = spec_rules().iter().find(|rule| rule.message.starts_with(beginning));
    found.map_or_else(|| panic!("no rule begins with {beginning}"), |rule| rule.message)
}

#[tokio::test]
async fn what_cannot_be_changed_cannot_be_changed_by_any_way() {
    const OWNER: &str = "spec.owner cannot be changed";
    const OWNER_PRESENCE: &str = "spec.owner cannot be added";
    const CLASS: &str = "spec.storage.storageClassName cannot";
    const MODE: &str = "spec.storage.accessMode cannot";
    const EPHEMERAL: &str = "spec.storage.ephemeral cannot";
    const SIZE: &str = "spec.storage.size may grow";
    let owner = |user: &str| json!({"owner": {"user": user, "groups": ["a", "b"]}});
    let storage = |storage: Value| json!({"storage": storage});
    let cases = [
        (owner("alice"), owner("bob"), OWNER),
        (owner("alice"), json!({"owner": {"user": "alice", "groups": ["a"]}}), OWNER),
        (owner("alice"), json!({}), OWNER_PRESENCE),
        (json!({}), owner("alice"), OWNER_PRESENCE),
        (storage(json!({"storageClassName": "fast"})), storage(json!({"storageClassName": "slow"})), CLASS),
        (storage(json!({"storageClassName": "fast"})), storage(json!({})), CLASS),
        (storage(json!({"storageClassName": "fast"})), json!({}), CLASS),
        (json!({}), storage(json!({"storageClassName": "fast"})), CLASS),
        (storage(json!({})), storage(json!({"storageClassName": "fast"})), CLASS),
        (storage(json!({"accessMode": "ReadWriteOnce"})), storage(json!({"accessMode": "ReadWriteMany"})), MODE),
        (storage(json!({"accessMode": "ReadWriteOnce"})), json!({}), MODE),
        (json!({}), storage(json!({"accessMode": "ReadWriteMany"})), MODE),
        (json!({}), storage(json!({"ephemeral": {}})), EPHEMERAL),
        (storage(json!({"ephemeral": {}})), json!({}), EPHEMERAL),
        (storage(json!({"ephemeral": {}})), storage(json!({})), EPHEMERAL),
        (storage(json!({"size": "10Gi"})), storage(json!({"size": "9Gi"})), SIZE),
        (storage(json!({"size": "10Gi"})), storage(json!({"size": "10G"})), SIZE),
        (storage(json!({"size": "1Gi"})), storage(json!({"size": 1_073_741_823})), SIZE),
        (storage(json!({"size": 1_073_741_824})), storage(json!({"size": "1023Mi"})), SIZE),
        (storage(json!({"size": "10Gi"})), storage(json!({})), SIZE),
        (storage(json!({"size": "10Gi"})), json!({}), SIZE),
    ];
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    for (number, (before, after, beginning)) in cases.iter().enumerate() {
        let name = format!("case-{number}");
        workspaces.create(&name, before).await.unwrap_or_else(|error| panic!("{before}: {error}"));
        let case = json!({"from": before, "to": after});
        assert_refused(&workspaces.replace(&name, after).await, rule(beginning), &case);
    }
    space.remove().await;
}

#[tokio::test]
async fn removing_a_parent_and_adding_it_again_bypasses_nothing() {
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    let before = json!({"storage": {"retention": {"whenDeleted": "Retain"}}, "lifecycle": {"startTimeoutSeconds": 60}});
    workspaces.create("steps", &before).await.expect("created");
    // The parent holds nothing that is frozen, so it may go; what comes back with it is still compared with what held before.
    workspaces.replace("steps", &json!({})).await.expect("the parent may go");
    for storage in
        [json!({"storageClassName": "other"}), json!({"accessMode": "ReadWriteMany"}), json!({"ephemeral": {}})]
    {
        let after = json!({"storage": storage});
        assert_refused(&workspaces.replace("steps", &after).await, "cannot be", &after);
    }
    space.remove().await;
}

#[tokio::test]
async fn what_may_be_changed_may_be_changed() {
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    let mut spec = json!({"owner": {"user": "alice", "groups": ["a", "b"]}, "storage": {"size": "1Gi", "storageClassName": "fast"}});
    workspaces.create("changes", &spec).await.expect("created");
    for size in [json!("1024Mi"), json!(1_073_741_824), json!("2Gi"), json!("2.5Gi"), json!("3e9")] {
        spec["storage"]["size"] = size;
        workspaces.replace("changes", &spec).await.unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
    spec["owner"]["groups"] = json!(["b", "a"]);
    spec["runPolicy"] = json!("Stopped");
    spec["agent"] = json!({"image": "other", "systemPrompt": "speak"});
    spec["storage"]["retention"] = json!({"whenDeleted": "Delete"});
    workspaces.replace("changes", &spec).await.expect("groups are a set");
    space.remove().await;
}
