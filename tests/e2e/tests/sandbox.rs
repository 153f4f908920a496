//! Sandbox modes in real pods under the security contexts that the operator renders: attacked from inside, and reported.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use e2e::cluster::{Cluster, condition};
use e2e::workspace::{MODEL_URL, Workspace};
use serde_json::{Value, json};

/// The attacks use things up until limits end them: 10 s each on an idle machine for a handful of them.
const CHECK_LIMIT: Duration = Duration::from_secs(400);
/// Where the kubelet looks for profiles, in the node's own file system.
const PROFILE: &str = "agent-workspace-operator/bubblewrap.json";

/// A namespace of a pod security level.
async fn namespace(cluster: &Cluster, prefix: &str, level: &str) -> String {
    let namespace = cluster.namespace(prefix).await.unwrap();
    let label = format!("pod-security.kubernetes.io/enforce={level}");
    cluster.kubectl(&["label", "namespace", &namespace, &label]).await.unwrap();
    let secret = ["create", "secret", "generic", "agent-key", "--from-literal=token=model-key-1", "-n", &namespace];
    cluster.kubectl(&secret).await.unwrap();
    namespace
}

fn spec(sandbox: &Value) -> Value {
    json!({
        "agent": {
            "model": {"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL},
            "credentials": [
                {"name": "model-key", "secretKeyRef": {"name": "agent-key", "key": "token"}, "purpose": "ModelKey"},
            ],
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "storage": {"ephemeral": {"sizeLimit": "200Mi"}},
        "sandbox": sandbox,
    })
}

/// A workspace that runs and whose server told what separates commands from it.
async fn running(cluster: &Cluster, namespace: &str, name: &str, sandbox: &Value) -> (Workspace, Value) {
    let workspace = Workspace::new(cluster, namespace, name);
    workspace.apply(&spec(sandbox)).await.unwrap();
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let object = workspace.wait_for("SandboxReady", "True", None).await.unwrap();
    (workspace, object)
}

/// Runs `check-sandbox` in the pod, aimed at its server; every attack must end as promised.
async fn attack(workspace: &Workspace, kind: &str, network: &str) -> Value {
    let pod = workspace.pod_name();
    let script = "PLANTED_API_KEY=planted-$$ exec agent-server check-sandbox --server-pid 1; true";
    let arguments = ["exec", "-n", &workspace.namespace, &pod, "--", "bash", "-c", script];
    let told = tokio::time::timeout(CHECK_LIMIT, workspace.cluster.kubectl(&arguments)).await.unwrap();
    let text = match told {
        Ok(text) => text,
        Err(error) => panic!("{pod}: {error:#}"),
    };
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["failedControls"], json!([]), "{pod}");
    let rows = report["attacks"].as_array().unwrap().iter().chain(report["network"].as_array().unwrap());
    let broken: Vec<&Value> = rows.filter(|row| row["asPromised"] != json!(true)).collect();
    assert_eq!(broken, Vec::<&Value>::new(), "{pod}: {}", report["isolation"]);
    assert_eq!((&report["isolation"]["kind"], &report["isolation"]["network"]), (&json!(kind), &json!(network)));
    report
}

fn sandbox_ready(object: &Value) -> (&Value, &Value) {
    let condition = condition(object, "SandboxReady").unwrap();
    (&condition["status"], &condition["reason"])
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_and_landlock_hold_in_pods_of_the_level_restricted() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-restricted", "restricted").await;
    let (workspace, object) = running(&cluster, &namespace, "direct", &json!({"mode": "Direct"})).await;
    assert_eq!(object["status"]["isolation"], "DirectWithLandlockLayer");
    assert_eq!(sandbox_ready(&object), (&json!("True"), &json!("Available")));
    attack(&workspace, "DirectWithLandlockLayer", "Inherit").await;

    let limits = json!({"memory": "256Mi", "processes": 100, "timeoutSeconds": 60});
    let landlock = json!({"mode": "Landlock", "env": [{"name": "GREETING", "value": "hello"}], "limits": limits});
    let (workspace, object) = running(&cluster, &namespace, "landlock", &landlock).await;
    assert_eq!(object["status"]["isolation"], "Landlock");
    attack(&workspace, "Landlock", "Inherit").await;
    let connection = workspace.connect().await.unwrap();
    let runtime = connection.get("/api/v1/runtime").await.unwrap();
    assert_eq!((&runtime["mode"], &runtime["isolation"]["kind"]), (&json!("landlock"), &json!("Landlock")));
    assert_eq!(runtime["limits"]["command"]["memoryBytes"], 256 << 20);
    assert_eq!(runtime["limits"]["command"]["processes"], 100);

    let isolated = json!({"mode": "Landlock", "network": "Isolated"});
    let (workspace, _) = running(&cluster, &namespace, "isolated", &isolated).await;
    attack(&workspace, "Landlock", "Isolated").await;
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bubblewrap_holds_in_pods_of_the_level_restricted_with_the_charts_profile() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-bubblewrap", "restricted").await;
    for (name, network) in [("inherit", "Inherit"), ("isolated", "Isolated")] {
        let sandbox = json!({"mode": "Bubblewrap", "network": network});
        let (workspace, object) = running(&cluster, &namespace, name, &sandbox).await;
        assert_eq!(object["status"]["isolation"], "Bubblewrap");
        assert_eq!(sandbox_ready(&object), (&json!("True"), &json!("Available")));
        let pod = cluster.get(&namespace, "pod", &workspace.pod_name()).await.unwrap().unwrap();
        let profile = json!({"type": "Localhost", "localhostProfile": PROFILE});
        assert_eq!(pod["spec"]["securityContext"]["seccompProfile"], profile);
        let report = attack(&workspace, "Bubblewrap", network).await;
        let probes = report["isolation"]["probes"].to_string();
        assert!(probes.contains("/proc is empty"), "{probes}");
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bubblewrap_has_a_proc_of_its_own_with_user_namespaces_for_pods() {
    let cluster = Cluster::default();
    let refused = namespace(&cluster, "sandbox-proc-refused", "restricted").await;
    let full = json!({"mode": "Bubblewrap", "procMount": "Full"});
    let workspace = Workspace::new(&cluster, &refused, "full");
    workspace.apply(&spec(&full)).await.unwrap();
    let object = workspace.wait_for("Stalled", "True", Some("PodSecurityViolation")).await.unwrap();
    assert_eq!(sandbox_ready(&object), (&json!("False"), &json!("PodSecurityViolation")));
    cluster.delete_namespace(&refused).await.unwrap();

    let namespace = namespace(&cluster, "sandbox-proc", "privileged").await;
    let (workspace, object) = running(&cluster, &namespace, "full", &full).await;
    assert_eq!(object["status"]["isolation"], "Bubblewrap");
    let report = attack(&workspace, "Bubblewrap", "Inherit").await;
    let probes = report["isolation"]["probes"].to_string();
    assert!(probes.contains("commands have a /proc of their own"), "{probes}");
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_told_to_read_the_key_does_not_get_it_and_what_is_not_there_is_said() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-model", "restricted").await;
    for (name, sandbox) in [
        ("direct", json!({"mode": "Direct"})),
        ("landlock", json!({"mode": "Landlock"})),
        ("bubblewrap", json!({"mode": "Bubblewrap"})),
    ] {
        let (workspace, _) = running(&cluster, &namespace, name, &sandbox).await;
        let connection = workspace.connect().await.unwrap();
        let command = "cat /run/boring-agent/model-key/token; ls /var/lib/boring-agent; echo end-of-attempt";
        let script =
            json!([[{"tool": "bash", "input": {"command": command}}], [{"text": "It says: {{lastToolResult}}"}]]);
        let turn = connection.chat("attempt", &format!("```model-script\n{script}\n```")).await.unwrap();
        let said = turn.text();
        assert!(said.contains("It says") && said.contains("end-of-attempt"), "{name}: {said}");
        assert!(!said.contains("model-key-1"), "{name}: {said}");
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}
