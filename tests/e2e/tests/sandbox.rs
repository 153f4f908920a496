//! Sandbox modes in real pods under the security contexts that the operator renders: attacked from inside, and reported.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::cluster::Cluster;
use e2e::sandboxes::{attack, namespace, running, sandbox_ready, spec};
use e2e::workspace::Workspace;
use serde_json::json;

/// Where the kubelet looks for profiles, in the node's own file system.
const PROFILE: &str = "agent-workspace-operator/bubblewrap.json";

#[tokio::test(flavor = "multi_thread")]
async fn direct_and_landlock_hold_in_pods_of_the_level_restricted() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-restricted", "restricted").await.unwrap();
    let (workspace, object) = running(&cluster, &namespace, "direct", &json!({"mode": "Direct"})).await.unwrap();
    assert_eq!(object["status"]["isolation"], "DirectWithLandlockLayer");
    assert_eq!(sandbox_ready(&object), ("True", "Available"));
    attack(&workspace, "DirectWithLandlockLayer", "Inherit").await.unwrap();

    let limits = json!({"memory": "256Mi", "processes": 100, "workspaceProcesses": 300, "timeoutSeconds": 60});
    let landlock = json!({"mode": "Landlock", "env": [{"name": "GREETING", "value": "hello"}], "limits": limits});
    let (workspace, object) = running(&cluster, &namespace, "landlock", &landlock).await.unwrap();
    assert_eq!(object["status"]["isolation"], "Landlock");
    attack(&workspace, "Landlock", "Inherit").await.unwrap();
    let connection = workspace.connect().await.unwrap();
    let runtime = connection.get("/api/v1/runtime").await.unwrap();
    assert_eq!((&runtime["mode"], &runtime["isolation"]["kind"]), (&json!("landlock"), &json!("Landlock")));
    assert_eq!(runtime["limits"]["command"]["memoryBytes"], 256 << 20);
    assert_eq!(runtime["limits"]["command"]["processes"], 100);
    assert_eq!(runtime["limits"]["workspace"]["processes"], 300);

    let isolated = json!({"mode": "Landlock", "network": "Isolated"});
    let (workspace, _) = running(&cluster, &namespace, "isolated", &isolated).await.unwrap();
    attack(&workspace, "Landlock", "Isolated").await.unwrap();
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bubblewrap_holds_in_pods_of_the_level_restricted_with_the_charts_profile() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-bubblewrap", "restricted").await.unwrap();
    for (name, network) in [("inherit", "Inherit"), ("isolated", "Isolated")] {
        let sandbox = json!({"mode": "Bubblewrap", "network": network});
        let (workspace, object) = running(&cluster, &namespace, name, &sandbox).await.unwrap();
        assert_eq!(object["status"]["isolation"], "Bubblewrap");
        assert_eq!(sandbox_ready(&object), ("True", "Available"));
        let pod = cluster.get(&namespace, "pod", &workspace.pod_name()).await.unwrap().unwrap();
        let profile = json!({"type": "Localhost", "localhostProfile": PROFILE});
        assert_eq!(pod["spec"]["securityContext"]["seccompProfile"], profile);
        let report = attack(&workspace, "Bubblewrap", network).await.unwrap();
        let probes = report["isolation"]["probes"].to_string();
        assert!(probes.contains("/proc is empty"), "{probes}");
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bubblewrap_has_a_proc_of_its_own_with_user_namespaces_for_pods() {
    let cluster = Cluster::default();
    let refused = namespace(&cluster, "sandbox-proc-refused", "restricted").await.unwrap();
    let full = json!({"mode": "Bubblewrap", "procMount": "Full"});
    let workspace = Workspace::new(&cluster, &refused, "full");
    workspace.apply(&spec(&full)).await.unwrap();
    let object = workspace.wait_for("Stalled", "True", Some("PodSecurityViolation")).await.unwrap();
    assert_eq!(sandbox_ready(&object), ("False", "PodSecurityViolation"));
    cluster.delete_namespace(&refused).await.unwrap();

    let namespace = namespace(&cluster, "sandbox-proc", "privileged").await.unwrap();
    let (workspace, object) = running(&cluster, &namespace, "full", &full).await.unwrap();
    assert_eq!(object["status"]["isolation"], "Bubblewrap");
    let report = attack(&workspace, "Bubblewrap", "Inherit").await.unwrap();
    let probes = report["isolation"]["probes"].to_string();
    assert!(probes.contains("commands have a /proc of their own"), "{probes}");
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_told_to_read_the_key_does_not_get_it_and_what_is_not_there_is_said() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-model", "restricted").await.unwrap();
    for (name, sandbox) in [
        ("direct", json!({"mode": "Direct"})),
        ("landlock", json!({"mode": "Landlock"})),
        ("bubblewrap", json!({"mode": "Bubblewrap"})),
    ] {
        let (workspace, _) = running(&cluster, &namespace, name, &sandbox).await.unwrap();
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
