//! The definition as a whole: defaults, selection, columns, and objects that were written before its rules.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::DeleteParams};
use operator::crd;
use serde_json::{Value, json};

use crate::support::{Space, Workspaces, assert_refused, client, eventually, install};

#[tokio::test]
async fn a_fresh_object_is_marked_as_not_looked_at() {
    let space = Space::new(json!({})).await;
    let created = space.workspaces().create("fresh", &json!({})).await.expect("created");
    assert_eq!(created.data["status"], json!({"observedGeneration": -1}));
    assert_eq!(created.data["spec"], json!({}), "nothing is filled into the user's spec");
    space.remove().await;
}

#[tokio::test]
async fn workspaces_are_selected_by_run_policy() {
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    workspaces.create("one", &json!({"runPolicy": "Always"})).await.expect("created");
    workspaces.create("two", &json!({"runPolicy": "Stopped"})).await.expect("created");
    assert_eq!(workspaces.select("spec.runPolicy=Stopped").await, ["two"]);
    space.remove().await;
}

#[tokio::test]
async fn the_status_keeps_what_the_operator_writes_and_no_more() {
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    workspaces.create("status", &json!({})).await.expect("created");
    let condition = |status: &str| {
        json!({"conditions": [{
            "type": "Ready", "status": status, "reason": "Running", "message": "", "lastTransitionTime": "2026-03-01T08:00:00Z"
        }]})
    };
    let written = workspaces.patch_status("status", &condition("True")).await.expect("patched");
    assert_eq!(written.data["status"]["conditions"][0]["type"], "Ready");
    let refused = workspaces.patch_status("status", &condition("Perhaps")).await;
    assert_refused(&refused, "status.conditions[0].status: Unsupported value", &condition("Perhaps"));
    let pruned = workspaces.patch_status("status", &json!({"password": "x"})).await.expect("patched");
    assert_eq!(pruned.data["status"].get("password"), None);
    space.remove().await;
}

/// The definition under another group, where it may be changed without disturbing other tests.
fn renamed(group: &str, with_rules: bool) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(crd::agent_workspace_definition()).expect("plain data");
    value["metadata"]["name"] = json!(format!("agentworkspaces.{group}"));
    value["spec"]["group"] = json!(group);
    value["spec"]["names"]["shortNames"] = json!([]);
    if !with_rules {
        remove_rules(&mut value);
    }
    serde_json::from_value(value).expect("a definition")
}

fn remove_rules(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(remove_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_rules),
        _ => {}
    }
}

#[tokio::test]
async fn an_object_from_before_a_rule_of_spec_can_still_be_reported_on_and_repaired() {
    const GROUP: &str = "before-rules.boring.test";
    let space = Space::new(json!({})).await;
    install(&client().await, &renamed(GROUP, false)).await;
    let workspaces = Workspaces::new(&space, GROUP);
    let broken = json!({
        "storage": {"size": "1Ki"}, "scheduling": {"priorityClassName": "system-x"},
        "agent": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}, "podMetadata": {"labels": {"app": "x"}},
    });
    workspaces.create("old", &broken).await.expect("there is no rule yet");
    install(&client().await, &renamed(GROUP, true)).await;
    eventually("the rules are in force", async || workspaces.create("new", &broken).await.is_err()).await;
    workspaces.patch_status("old", &json!({"phase": "Pending"})).await.expect("the status can be written");
    let mut repaired = broken.clone();
    repaired["storage"] = json!({"size": "1Gi"});
    workspaces.replace("old", &repaired).await.expect("one fault can be repaired while the others stay");
    let definitions: Api<CustomResourceDefinition> = Api::all(client().await);
    definitions.delete(&format!("agentworkspaces.{GROUP}"), &DeleteParams::default()).await.expect("deleted");
    space.remove().await;
}

#[tokio::test]
async fn people_see_the_columns() {
    let space = Space::new(json!({})).await;
    space.workspaces().create("columns", &json!({})).await.expect("created");
    let path = format!("/apis/{}/v1alpha1/namespaces/{}/agentworkspaces", crd::GROUP, space.name);
    let request = axum::http::Request::get(path)
        .header(axum::http::header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .expect("a request");
    let table: Value = space.client.request(request).await.expect("a table");
    let columns: Vec<(String, i64)> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| {
            (column["name"].as_str().unwrap_or_default().to_owned(), column["priority"].as_i64().unwrap_or_default())
        })
        .collect();
    let always = ["Name", "Phase", "Ready", "URL", "Age"];
    let expected = ["Name", "Phase", "Ready", "URL", "Reason", "Node", "Isolation", "Last-Activity", "Storage", "Age"]
        .map(|name| (name, i64::from(!always.contains(&name))));
    assert_eq!(columns, expected.map(|(name, priority)| (name.to_owned(), priority)));
    space.remove().await;
}
