//! Who reaches whom: the NetworkPolicy of a workspace on a cluster that enforces it. Each refusal has its counterpart that works.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::cluster::Cluster;
use e2e::workspace::{MODEL_URL, START_LIMIT, Workspace};
use serde_json::{Value, json};

/// Whether a TCP connection from a pod to an address is made within three seconds.
async fn opens(cluster: &Cluster, namespace: &str, pod: &str, host: &str, port: u64) -> bool {
    let script =
        format!("if timeout 3 bash -c '</dev/tcp/{host}/{port}' 2>/dev/null; then echo open; else echo closed; fi");
    let said = cluster.kubectl(&["exec", "-n", namespace, pod, "--", "bash", "-c", &script]).await.unwrap();
    match said.trim() {
        "open" => true,
        "closed" => false,
        other => panic!("{namespace}/{pod} to {host}:{port}: {other}"),
    }
}

async fn workspace(cluster: &Cluster, namespace: &str) -> (Workspace, Value) {
    let workspace = Workspace::new(cluster, namespace, "alice");
    let spec = json!({
        "owner": {"user": "alice@example.com"},
        "agent": {"model": {"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL}},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "storage": {"ephemeral": {"sizeLimit": "100Mi"}},
        // Where there is a gateway, only that would be let in.
        "access": {"exposure": "ClusterLocal"},
    });
    workspace.apply(&spec).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let pod = cluster.get(namespace, "pod", &workspace.pod_name()).await.unwrap().unwrap();
    (workspace, pod)
}

/// A pod of somebody else, with the image that the node has already.
async fn neighbour(cluster: &Cluster, namespace: &str, image: &Value) {
    let container =
        json!({"name": "shell", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"]});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "neighbour", "namespace": namespace},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    });
    cluster.apply(&pod.to_string()).await.unwrap();
    let runs = |pod: Option<&Value>| pod.is_some_and(|pod| pod["status"]["phase"] == "Running");
    cluster.wait(namespace, "pod", "neighbour", START_LIMIT, "running", runs).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_reached_from_its_own_namespace_and_reaches_nothing_of_the_cluster_but_its_model() {
    let cluster = Cluster::default();
    let (own, other) = (cluster.namespace("near").await.unwrap(), cluster.namespace("far").await.unwrap());
    let ((workspace, pod), (_, far)) = tokio::join!(self::workspace(&cluster, &own), self::workspace(&cluster, &other));
    let image = &pod["spec"]["containers"][0]["image"];
    tokio::join!(neighbour(&cluster, &own, image), neighbour(&cluster, &other, image));
    let address = |pod: &Value| pod["status"]["podIP"].as_str().unwrap().to_owned();

    let (near, far) = (address(&pod), address(&far));
    assert!(opens(&cluster, &own, "neighbour", &near, 8787).await, "from the own namespace");
    assert!(!opens(&cluster, &other, "neighbour", &near, 8787).await, "from another namespace");
    assert!(!opens(&cluster, &own, "neighbour", &near, 9464).await, "metrics, which nobody may read here");

    let from = workspace.pod_name();
    let (host, port) = MODEL_URL.trim_start_matches("http://").split_once(':').unwrap();
    assert!(opens(&cluster, &own, &from, host, port.parse().unwrap()).await, "the model");
    let endpoints = cluster.get("default", "endpoints", "kubernetes").await.unwrap().unwrap();
    let api = &endpoints["subsets"][0];
    let server = (api["addresses"][0]["ip"].as_str().unwrap(), api["ports"][0]["port"].as_u64().unwrap());
    let node = pod["status"]["hostIP"].as_str().unwrap();
    for (what, host, port) in [
        ("the API server", server.0, server.1),
        ("the API server's Service", "kubernetes.default.svc", 443),
        ("the kubelet", node, 10250),
        ("a workspace of another namespace", far.as_str(), 8787),
    ] {
        assert!(!opens(&cluster, &own, &from, host, port).await, "{what}");
    }
    // Where the API server and the kubelet are open to everybody else, it is the policy that keeps the workspace out.
    assert!(opens(&cluster, &own, "neighbour", server.0, server.1).await, "the API server from another pod");
    assert!(opens(&cluster, &own, "neighbour", node, 10250).await, "the kubelet from another pod");
    for namespace in [own, other] {
        cluster.delete_namespace(&namespace).await.unwrap();
    }
}
