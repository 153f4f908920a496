//! The main job on a real cluster, the way a user goes: apply, chat, lose the pod, stop, start, delete.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::chat::Turn;
use e2e::cluster::{Cluster, has_condition};
use e2e::workspace::{Connection, MODEL_URL, START_LIMIT, Workspace};
use reqwest::Method;
use serde_json::{Value, json};

/// A namespace with the secret that holds a key the scripted model accepts.
async fn namespace_with_key(cluster: &Cluster, prefix: &str) -> String {
    let namespace = cluster.namespace(prefix).await.unwrap();
    cluster
        .kubectl(&["create", "secret", "generic", "agent-model", "-n", &namespace, "--from-literal=token=scripted-key"])
        .await
        .unwrap();
    namespace
}

fn spec() -> Value {
    json!({
        "owner": {"user": "alice@example.com"},
        "agent": {
            "model": {"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL},
            "credentials": [{"name": "model-key", "secretKeyRef": {"name": "agent-model", "key": "token"}, "purpose": "ModelKey"}],
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "storage": {"size": "100Mi", "retention": {"whenDeleted": "Delete"}},
    })
}

async fn say(connection: &Connection, session: &str, message: &str) -> Turn {
    let turn = connection.chat(session, message).await.unwrap();
    assert_eq!((turn.last_type(), turn.done), (Some("finish"), true), "{:?}", turn.chunks);
    turn
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_answers_survives_the_loss_of_its_pod_stops_starts_and_is_deleted() {
    let cluster = Cluster::default();
    let namespace = namespace_with_key(&cluster, "life").await;
    let workspace = Workspace::new(&cluster, &namespace, "alice");
    workspace.apply(&spec()).await.unwrap();
    let ready = workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    assert_eq!(ready["status"]["phase"], "Running");

    // An answer that came from a tool call which wrote a file.
    let connection = workspace.connect().await.unwrap();
    let turn = say(&connection, "s1", "Create the file `notes/hello.txt` containing \"hello from the pod\"").await;
    assert!(turn.text().contains("hello from the pod"), "{}", turn.text());
    assert!(turn.of_type("tool-output-available").count() > 0);
    let file = connection.get("/api/v1/files?path=notes/hello.txt").await.unwrap();
    assert_eq!(file["content"].as_str().unwrap().trim_end(), "hello from the pod");
    let history = connection.history("s1").await.unwrap();
    assert_eq!(history.iter().map(|(role, _)| role.as_str()).collect::<Vec<_>>(), ["user", "assistant"]);

    // No route but the public ones answers without a token.
    for (path, status) in
        [("/health", 200), ("/ready", 200), ("/api/v1/files?path=notes/hello.txt", 401), ("/api/v1/drain", 401)]
    {
        assert_eq!(connection.send_without_token(Method::GET, path).await.unwrap().status(), status, "{path}");
    }

    // The pod is killed: a new one comes with the same session.
    let old_uid = ready["status"]["pod"]["uid"].clone();
    cluster
        .kubectl(&["delete", "pod", &workspace.pod_name(), "-n", &namespace, "--grace-period=0", "--force"])
        .await
        .unwrap();
    cluster
        .wait(&namespace, e2e::workspace::KIND, "alice", START_LIMIT, "running in a new pod", |object| {
            has_condition(object, "Ready", "True", Some("Running"))
                && object.is_some_and(|object| object["status"]["pod"]["uid"] != old_uid)
        })
        .await
        .unwrap();
    let connection = workspace.connect().await.unwrap();
    assert_eq!(connection.history("s1").await.unwrap(), history);
    say(&connection, "s1", "And once more.").await;
    let history = connection.history("s1").await.unwrap();
    assert_eq!(history.len(), 4);

    // Stopped: the pod goes, the claim and the user's object stay.
    workspace.patch(&json!({"runPolicy": "Stopped"})).await.unwrap();
    let stopped = workspace.wait_for("Ready", "True", Some("Stopped")).await.unwrap();
    assert_eq!((&stopped["status"]["phase"], &stopped["status"]["pod"]), (&json!("Stopped"), &Value::Null));
    workspace.wait_gone("pod", &workspace.pod_name()).await.unwrap();
    assert!(cluster.get(&namespace, "pvc", &workspace.claim_name()).await.unwrap().is_some());
    assert_eq!(stopped["metadata"].get("finalizers"), None);

    // Always again: history and files are still there.
    workspace.patch(&json!({"runPolicy": "Always"})).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let connection = workspace.connect().await.unwrap();
    assert_eq!(connection.history("s1").await.unwrap(), history);

    // Deleted with Retain: the claim stays; the same owner gets it back; deleted with Delete: it goes.
    workspace.patch(&json!({"storage": {"retention": {"whenDeleted": "Retain"}}})).await.unwrap();
    workspace
        .cluster
        .wait(&namespace, "pvc", &workspace.claim_name(), START_LIMIT, "without owner", |claim| {
            claim.is_some_and(|claim| claim["metadata"].get("ownerReferences").is_none())
        })
        .await
        .unwrap();
    cluster.kubectl(&["delete", "aw", "alice", "-n", &namespace]).await.unwrap();
    workspace.wait_gone("pod", &workspace.pod_name()).await.unwrap();
    assert!(cluster.get(&namespace, "pvc", &workspace.claim_name()).await.unwrap().is_some());
    workspace.apply(&spec()).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let connection = workspace.connect().await.unwrap();
    assert_eq!(connection.history("s1").await.unwrap(), history);
    cluster.kubectl(&["delete", "aw", "alice", "-n", &namespace]).await.unwrap();
    workspace.wait_gone("pvc", &workspace.claim_name()).await.unwrap();
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn git_works_in_the_workspace_and_commands_cannot_read_keys_or_state() {
    let cluster = Cluster::default();
    let namespace = namespace_with_key(&cluster, "tools").await;
    let workspace = Workspace::new(&cluster, &namespace, "bob");
    workspace.apply(&spec()).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let connection = workspace.connect().await.unwrap();
    let script = |command: &str| {
        let steps = json!([[{"tool": "bash", "input": {"command": command}}], [{"text": "{{lastToolResult}}"}]]);
        format!("Run this.\n```model-script\n{steps}\n```")
    };
    let git = "git init -q . && git config user.email a@b.c && git config user.name a && echo x > x && git add x && git commit -qm one && git status --porcelain && git log --format=%s";
    let turn = say(&connection, "git", &script(git)).await;
    assert!(turn.text().contains("one"), "{}", turn.text());
    // Each of these must fail; the marker shows that the shell itself ran.
    for secret in [
        "cat /run/boring-agent/model-key/token",
        "ls /var/lib/boring-agent/sessions",
        "cat /proc/1/environ",
        "kill -0 1",
    ] {
        let turn = say(&connection, "attack", &script(&format!("echo marker; {secret} && echo LEAKED"))).await;
        assert!(turn.text().contains("marker") && !turn.text().contains("LEAKED"), "{secret}: {}", turn.text());
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}
