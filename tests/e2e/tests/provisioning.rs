//! A fresh workspace on a real cluster: template and libraries are there when it is ready, once; and the model behind chat
//! completions answers.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::process::Command;
use std::time::Duration;

use e2e::chat::Turn;
use e2e::cluster::{Cluster, has_condition};
use e2e::wheel::WHEEL;
use e2e::workspace::{Connection, KIND, MODEL_URL, START_LIMIT, Workspace};
use reqwest::Method;
use serde_json::{Value, json};

/// A start that makes two Python environments on a busy two-core machine: 10–20 s, so five minutes are ample.
const PREPARED_LIMIT: Duration = Duration::from_secs(300);

fn wheel() -> String {
    let output = Command::new("python3").args(["-c", WHEEL]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn namespace(cluster: &Cluster) -> String {
    let namespace = cluster.namespace("fresh").await.unwrap();
    let secret = ["create", "secret", "generic", "agent-model", "-n", &namespace, "--from-literal=token=scripted-key"];
    cluster.kubectl(&secret).await.unwrap();
    namespace
}

fn spec(more: &Value) -> Value {
    let mut spec = json!({
        "owner": {"user": "alice@example.com"},
        "agent": {
            "model": {"provider": "openai", "id": "scripted-model", "baseUrl": MODEL_URL},
            "credentials": [{"name": "model-key", "secretKeyRef": {"name": "agent-model", "key": "token"}, "purpose": "ModelKey"}],
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "storage": {"size": "200Mi", "retention": {"whenDeleted": "Delete"}},
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

async fn ready(workspace: &Workspace) {
    let what = "ready with template and libraries";
    let holds = |object: Option<&Value>| {
        object.is_some_and(|object| object["status"]["observedGeneration"] == object["metadata"]["generation"])
            && has_condition(object, "Ready", "True", Some("Running"))
    };
    workspace.cluster.wait(&workspace.namespace, KIND, &workspace.name, PREPARED_LIMIT, what, holds).await.unwrap();
}

async fn run(connection: &Connection, command: &str) -> String {
    let steps = json!([[{"tool": "bash", "input": {"command": command}}], [{"text": "{{lastToolResult}}"}]]);
    let turn: Turn = connection.chat("s1", &format!("Run this.\n```model-script\n{steps}\n```")).await.unwrap();
    assert_eq!(turn.last_type(), Some("finish"), "{:?}", turn.chunks);
    turn.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_workspace_has_its_template_and_libraries_once() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster).await;
    let workspace = Workspace::new(&cluster, &namespace, "alice");
    let template = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "agent-files", "namespace": namespace},
        "data": {"AGENTS.md": "Be kind.\n", "pip.conf": "[global]\nno-index = true\nfind-links = .\n"},
        "binaryData": {"greeting-1.0-py3-none-any.whl": wheel()},
    });
    workspace
        .apply(&spec(&json!({"template": {"configMapName": "agent-files"}, "libraries": {"python": ["greeting"]}})))
        .await
        .unwrap();
    // Without its ConfigMap it says what is missing.
    cluster
        .wait(&namespace, KIND, "alice", START_LIMIT, "stalled", |object| {
            has_condition(object, "Stalled", "True", Some("ConfigMapNotFound"))
        })
        .await
        .unwrap();
    cluster.apply(&template.to_string()).await.unwrap();
    ready(&workspace).await;
    let connection = workspace.connect().await.unwrap();
    let file = connection.get("/api/v1/files?path=AGENTS.md").await.unwrap();
    assert_eq!(file["content"], "Be kind.\n");
    assert!(run(&connection, "greet && python3 -c 'import greeting'").await.contains("hello from a library"));
    assert!(
        run(&connection, "ls -a /run/boring-agent/template && test ! -w /run/boring-agent/template && echo fixed")
            .await
            .contains("fixed")
    );

    // Changed by the user, and the ConfigMap changed too: a new pod takes neither away.
    let body = json!({"path": "AGENTS.md", "content": "Mine."});
    assert_eq!(connection.send(Method::POST, "/api/v1/files", Some(&body)).await.unwrap().status(), 200);
    assert!(run(&connection, "rm pip.conf && echo gone").await.contains("gone"));
    workspace.patch(&json!({"runPolicy": "Stopped"})).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Stopped")).await.unwrap();
    workspace.patch(&json!({"runPolicy": "Always"})).await.unwrap();
    ready(&workspace).await;
    let connection = workspace.connect().await.unwrap();
    assert_eq!(connection.get("/api/v1/files?path=AGENTS.md").await.unwrap()["content"], "Mine.");
    assert_eq!(connection.send(Method::GET, "/api/v1/files?path=pip.conf", None).await.unwrap().status(), 404);
    assert!(run(&connection, "greet").await.contains("hello from a library"));
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_comes_out_of_an_image_and_one_that_does_not_hold_it_is_said() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster).await;
    let plain = Workspace::new(&cluster, &namespace, "plain");
    plain.apply(&spec(&json!({}))).await.unwrap();
    plain.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let pod = cluster.get(&namespace, "pod", &plain.pod_name()).await.unwrap().unwrap();
    // The agent's own image is one that every test cluster holds; it has `cp` and a folder with files.
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap();
    let with = |path: &str| spec(&json!({"template": {"image": image, "path": path}}));
    let workspace = Workspace::new(&cluster, &namespace, "unpacked");
    workspace.apply(&with("/etc/skel")).await.unwrap();
    ready(&workspace).await;
    let connection = workspace.connect().await.unwrap();
    let file = connection.get("/api/v1/files?path=.bashrc").await.unwrap();
    assert!(!file["content"].as_str().unwrap().is_empty());
    let wrong = Workspace::new(&cluster, &namespace, "wrong");
    wrong.apply(&with("/no/such/folder")).await.unwrap();
    let said = cluster
        .wait(&namespace, KIND, "wrong", START_LIMIT, "restarting", |object| {
            object.is_some_and(|object| object["status"]["lastTermination"]["exitCode"] == 1)
        })
        .await
        .unwrap()
        .unwrap();
    assert!(said["status"]["conditions"].to_string().contains("no/such/folder"), "{}", said["status"]);
    cluster.delete_namespace(&namespace).await.unwrap();
}
