//! The chart's settings for sandboxes, turned while the operator runs: weaker modes only where permitted, and pods without
//! a profile. Runs by itself, since the settings are those of the whole cluster.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use e2e::cluster::{Cluster, OPERATOR_NAMESPACE, condition};
use e2e::sandboxes::{Profile, applied, attack, keep_profiles, namespace, replace_profile, running, sandbox_ready};
use serde_json::{Value, json};

/// `helm upgrade` with these values on top of those in force.
async fn set(cluster: &Cluster, profile: &str, allow_degrade: bool) {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/agent-workspace-operator");
    let output = Command::new("helm")
        .args(["upgrade", "agent-workspace-operator", chart, "--namespace", OPERATOR_NAMESPACE, "--reuse-values"])
        .args(["--set", &format!("sandbox.seccompProfile={profile},sandbox.allowDegrade={allow_degrade}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let deployment = "deployment/agent-workspace-operator";
    cluster.kubectl(&["rollout", "status", deployment, "-n", OPERATOR_NAMESPACE, "--timeout=90s"]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_settings_decide_on_weaker_modes_and_on_pods_without_a_profile() {
    let cluster = Cluster::default();
    let before: Value = {
        let output = Command::new("helm")
            .args(["get", "values", "agent-workspace-operator", "--all", "-o", "json", "-n", OPERATOR_NAMESPACE])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let own_profile = before["sandbox"]["seccompProfile"].as_str().unwrap().to_owned();
    assert_eq!(before["sandbox"]["allowDegrade"], false);

    let restricted = namespace(&cluster, "sandbox-degrade", "restricted").await.unwrap();
    replace_profile(&cluster, &restricted, &Profile::RuntimeDefault).await.unwrap();
    let degrade = json!({"mode": "Bubblewrap", "onUnavailable": "Degrade"});
    let workspace = applied(&cluster, &restricted, "degrade", &degrade).await.unwrap();
    let object = workspace.wait_for("Stalled", "True", Some("InvalidSpec")).await.unwrap();
    let message = condition(&object, "Stalled").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("--allow-sandbox-degrade"), "{message}");

    set(&cluster, &own_profile, true).await;
    let object = workspace.wait_for("SandboxReady", "True", Some("Degraded")).await.unwrap();
    assert_eq!(object["status"]["isolation"], "Landlock");
    let message = condition(&object, "SandboxReady").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("the system refuses user namespaces"), "{message}");
    workspace.wait_for("Ready", "True", Some("Running")).await.unwrap();
    let told = ["get", "events", "-n", &restricted, "-o", "jsonpath={range .items[*]}{.type} {.reason}{\"\\n\"}{end}"];
    let events = cluster.kubectl(&told).await.unwrap();
    assert!(events.lines().any(|line| line == "Warning Degraded"), "{events}");
    attack(&workspace, "Landlock", "Inherit").await.unwrap();
    keep_profiles(&cluster, &restricted).await.unwrap();

    set(&cluster, "unconfined", false).await;
    let privileged = namespace(&cluster, "sandbox-unconfined", "privileged").await.unwrap();
    let bubblewrap = json!({"mode": "Bubblewrap"});
    let (workspace, object) = running(&cluster, &privileged, "unconfined", &bubblewrap).await.unwrap();
    assert_eq!(object["status"]["isolation"], "Bubblewrap");
    let pod = cluster.get(&privileged, "pod", &workspace.pod_name()).await.unwrap().unwrap();
    assert_eq!(pod["spec"]["securityContext"]["seccompProfile"], json!({"type": "Unconfined"}));
    attack(&workspace, "Bubblewrap", "Inherit").await.unwrap();
    let refused = applied(&cluster, &restricted, "unconfined", &bubblewrap).await.unwrap();
    let object = refused.wait_for("Stalled", "True", Some("PodSecurityViolation")).await.unwrap();
    assert_eq!(sandbox_ready(&object), ("False", "PodSecurityViolation"));

    set(&cluster, &own_profile, false).await;
    for namespace in [restricted, privileged] {
        cluster.delete_namespace(&namespace).await.unwrap();
    }
}
