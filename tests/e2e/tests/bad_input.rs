//! Bad input on a real cluster: each ends in a refusal that names the rule, or in a condition a user can act on.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::cluster::{Cluster, condition};
use e2e::workspace::{MODEL_URL, Workspace};
use serde_json::{Value, json};

fn spec() -> Value {
    json!({
        "owner": {"user": "alice@example.com"},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "storage": {"ephemeral": {"sizeLimit": "100Mi"}},
        "lifecycle": {"startTimeoutSeconds": 30},
    })
}

/// Merges a patch into the common spec, applies it, waits for a condition and checks that its message holds the words.
async fn expect(name: &str, patch: Value, kind: &str, reason: &str, words: &[&str]) {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    let workspace = Workspace::new(&cluster, &namespace, name);
    let mut spec = spec();
    merge(&mut spec, patch);
    workspace.apply(&spec).await.unwrap();
    let status = if kind == "Stalled" { "True" } else { "False" };
    let object = workspace.wait_for(kind, status, Some(reason)).await.unwrap();
    let message = condition(&object, kind).unwrap()["message"].as_str().unwrap().to_owned();
    for word in words {
        assert!(message.contains(word), "message does not hold {word:?}: {message}");
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}

fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                // As in a merge patch, null removes.
                if value.is_null() {
                    target.remove(&key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_is_named() {
    let credentials =
        json!([{"name": "model-key", "secretKeyRef": {"name": "agent-absent", "key": "token"}, "purpose": "ModelKey"}]);
    expect("secret", json!({"agent": {"credentials": credentials}}), "Stalled", "SecretNotFound", &["agent-absent"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_provider_rejects_is_told_by_chat_and_condition() {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    let secret = ["create", "secret", "generic", "agent-model", "-n", &namespace, "--from-literal=token=invalid-key"];
    cluster.kubectl(&secret).await.unwrap();
    let workspace = Workspace::new(&cluster, &namespace, "rejected");
    let mut spec = spec();
    let credential =
        json!({"name": "model-key", "secretKeyRef": {"name": "agent-model", "key": "token"}, "purpose": "ModelKey"});
    let model = json!({"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL});
    merge(&mut spec, json!({"agent": {"credentials": [credential], "model": model}}));
    workspace.apply(&spec).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let turn = workspace.connect().await.unwrap().chat("s1", "Hello.").await.unwrap();
    assert_eq!(turn.last_type(), Some("error"), "{:?}", turn.chunks);
    // The operator asks a server of this age every 30 s; files and history go on working, so Ready stays True.
    let object = workspace.wait_for("AgentReady", "False", Some("ModelKeyRejected")).await.unwrap();
    assert_eq!(condition(&object, "Ready").unwrap()["status"], "True");
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_outside_the_allowed_names_is_refused() {
    let credentials =
        json!([{"name": "model-key", "secretKeyRef": {"name": "database", "key": "token"}, "purpose": "ModelKey"}]);
    expect(
        "secret",
        json!({"agent": {"credentials": credentials}}),
        "Stalled",
        "SecretNotAllowed",
        &["database", "agent-"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_image_is_named() {
    let agent = json!({"image": "registry.invalid/no/such:image"});
    expect("image", json!({"agent": agent}), "Stalled", "ImagePull", &["registry.invalid/no/such:image"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_size_is_said_to_be_unschedulable() {
    expect(
        "size",
        json!({"resources": {"requests": {"cpu": "4000"}}}),
        "Stalled",
        "StartTimeout",
        &["cpu", "spec.resources"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_class_that_does_not_exist_is_named() {
    let storage = json!({"size": "1Gi", "storageClassName": "no-such-class", "ephemeral": null});
    expect("class", json!({"storage": storage}), "StorageReady", "NoStorageClass", &["no-such-class"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_never_binds_is_named() {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "nobody-provisions"},
        "provisioner": "example.com/nobody", "volumeBindingMode": "Immediate"});
    Cluster::default().apply(&class.to_string()).await.unwrap();
    let storage = json!({"size": "1Gi", "storageClassName": "nobody-provisions", "ephemeral": null});
    expect(
        "volume",
        json!({"storage": storage}),
        "StorageReady",
        "VolumePending",
        &["nobody-provisions", "kubectl describe pvc"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_with_our_childs_name_is_left_alone_and_named() {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    let workspace = Workspace::new(&cluster, &namespace, "clash");
    let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": workspace.pod_name(), "namespace": namespace},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}}});
    cluster.apply(&foreign.to_string()).await.unwrap();
    workspace.apply(&spec()).await.unwrap();
    let object = workspace.wait_for("Stalled", "True", Some("NameConflict")).await.unwrap();
    assert!(condition(&object, "Stalled").unwrap()["message"].as_str().unwrap().contains("clash-agent"));
    let service = cluster.get(&namespace, "service", "clash-agent").await.unwrap().unwrap();
    assert_eq!(service["spec"]["selector"], json!({"app": "other"}));
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_refuses_the_pod_is_named() {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    cluster.kubectl(&["create", "quota", "none", "-n", &namespace, "--hard=pods=0"]).await.unwrap();
    let workspace = Workspace::new(&cluster, &namespace, "quota");
    // The quota controller needs a moment to count; until then everything is refused with another message.
    cluster
        .wait(&namespace, "resourcequota", "none", e2e::workspace::START_LIMIT, "counted", |quota| {
            quota.is_some_and(|quota| quota["status"]["hard"]["pods"] == "0")
        })
        .await
        .unwrap();
    workspace.apply(&spec()).await.unwrap();
    let object = workspace.wait_for("Ready", "False", Some("QuotaExceeded")).await.unwrap();
    assert!(condition(&object, "Ready").unwrap()["message"].as_str().unwrap().contains("none"));
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_deleted_with_a_running_workspace_goes_away() {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    let workspace = Workspace::new(&cluster, &namespace, "gone");
    workspace.apply(&spec()).await.unwrap();
    workspace.wait_for("Running", "True", None).await.unwrap();
    cluster.kubectl(&["delete", "namespace", &namespace, "--timeout=90s"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_outside_the_schema_are_refused_with_the_rule() {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bad").await.unwrap();
    let cases = [
        ("two--dashes", json!({}), "--"),
        ("ab", json!({}), "3"),
        ("mode", json!({"sandbox": {"mode": "Vercel"}}), "Direct"),
        ("env", json!({"agent": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}), "LD_"),
        ("policy", json!({"runPolicy": "Sometimes"}), "OnDemand"),
        ("unknown", json!({"nonsense": 1}), "nonsense"),
    ];
    for (name, patch, word) in cases {
        let mut spec = spec();
        merge(&mut spec, patch);
        let error = Workspace::new(&cluster, &namespace, name).apply(&spec).await.unwrap_err().to_string();
        assert!(error.contains(word), "{name}: {error}");
    }
    // A user who may create workspaces but not set owners cannot name somebody else.
    cluster
        .kubectl(&[
            "create",
            "role",
            "creator",
            "-n",
            &namespace,
            "--verb=create",
            "--resource=agentworkspaces.agents.boring.dev",
        ])
        .await
        .unwrap();
    cluster
        .kubectl(&["create", "rolebinding", "creator", "-n", &namespace, "--role=creator", "--user=mallory"])
        .await
        .unwrap();
    let manifest = json!({"apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
        "metadata": {"name": "stolen", "namespace": namespace}, "spec": spec()});
    let error = cluster
        .kubectl_with_input(&["create", "--as=mallory", "-f", "-"], &manifest.to_string())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("owner"), "{error}");
    cluster.delete_namespace(&namespace).await.unwrap();
}
