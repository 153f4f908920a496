//! Workspaces for tests of sandbox modes: namespaces of a pod security level, manifests, the attack from inside. Must not
//! know what a mode promises.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};
use crate::workspace::{MODEL_URL, START_LIMIT, Workspace};

/// The attacks use things up until limits end them: 10 s each on an idle machine for a handful of them.
const CHECK_LIMIT: Duration = Duration::from_secs(400);

/// Every test cluster has it.
const BUSYBOX: &str = "agent-workspace-operator.test/busybox:1";

/// A namespace of a pod security level with a model key.
pub async fn namespace(cluster: &Cluster, prefix: &str, level: &str) -> anyhow::Result<String> {
    let namespace = cluster.namespace(prefix).await?;
    let label = format!("pod-security.kubernetes.io/enforce={level}");
    cluster.kubectl(&["label", "namespace", &namespace, &label]).await?;
    let secret = ["create", "secret", "generic", "agent-key", "--from-literal=token=model-key-1", "-n", &namespace];
    cluster.kubectl(&secret).await?;
    Ok(namespace)
}

/// A spec with this part `sandbox`.
pub fn spec(sandbox: &Value) -> Value {
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

/// A workspace that was applied and nothing more.
pub async fn applied(cluster: &Cluster, namespace: &str, name: &str, sandbox: &Value) -> anyhow::Result<Workspace> {
    let workspace = Workspace::new(cluster, namespace, name);
    workspace.apply(&spec(sandbox)).await?;
    Ok(workspace)
}

/// A workspace that runs and whose server told what separates commands from it.
pub async fn running(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    sandbox: &Value,
) -> anyhow::Result<(Workspace, Value)> {
    let workspace = applied(cluster, namespace, name, sandbox).await?;
    workspace.wait_for("Ready", "True", Some("Running")).await?;
    let object = workspace.wait_for("SandboxReady", "True", None).await?;
    Ok((workspace, object))
}

/// Runs `check-sandbox` in the pod, aimed at its server; every attack must end as promised.
pub async fn attack(workspace: &Workspace, kind: &str, network: &str) -> anyhow::Result<Value> {
    let pod = workspace.pod_name();
    let script = "PLANTED_API_KEY=planted-$$ agent-server check-sandbox --server-pid 1; true";
    let arguments = ["exec", "-n", &workspace.namespace, &pod, "--", "bash", "-c", script];
    let told = tokio::time::timeout(CHECK_LIMIT, workspace.cluster.kubectl(&arguments)).await;
    let text = told.with_context(|| pod.clone())??;
    let report: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(report["failedControls"] == json!([]), "{pod}: {}", report["failedControls"]);
    let rows = ["attacks", "network"].into_iter().filter_map(|part| report[part].as_array()).flatten();
    // The table is of one file system; in a pod the key lies in a volume of its own, which no hard link reaches.
    let beyond_links = |row: &&Value| kind == "None" && row["attack"] == "read the model key through a hard link";
    let broken: Vec<&Value> = rows.filter(|row| row["asPromised"] != json!(true) && !beyond_links(row)).collect();
    ensure!(broken.is_empty(), "{pod}: {broken:?}: {}", report["isolation"]);
    let isolation = &report["isolation"];
    ensure!(isolation["kind"] == kind && isolation["network"] == network, "{pod}: {isolation}");
    Ok(report)
}

/// Status and reason of SandboxReady.
pub fn sandbox_ready(object: &Value) -> (&str, &str) {
    let word = |field| condition(object, "SandboxReady").and_then(|condition| condition[field].as_str()).unwrap_or("");
    (word("status"), word("reason"))
}

/// Lets every pod that is created in the namespace from now on have this seccomp profile, whatever its manifest says: the
/// node's answer to the pod is then that of a platform whose profile it is.
pub async fn replace_profile(cluster: &Cluster, namespace: &str, profile: &Profile) -> anyhow::Result<()> {
    let value = match profile {
        Profile::RuntimeDefault => r#"{"type": "RuntimeDefault"}"#.to_owned(),
        Profile::Localhost(path) => format!(r#"{{"type": "Localhost", "localhostProfile": "{path}"}}"#),
    };
    let expression =
        format!(r#"[JSONPatch{{op: "add", path: "/spec/securityContext/seccompProfile", value: {value}}}]"#);
    let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [pods],
            },
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": namespace}, "spec": {"policyName": namespace},
    });
    cluster.apply(&policy.to_string()).await?;
    cluster.apply(&binding.to_string()).await?;
    let wanted: Value = serde_json::from_str(&value)?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try", "namespace": namespace},
        "spec": {
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 1000,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "none"},
            },
            "containers": [{
                "name": "try", "image": BUSYBOX,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
    .to_string();
    let begin = std::time::Instant::now();
    loop {
        let arguments = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        let made: Value = serde_json::from_str(&cluster.kubectl_with_input(&arguments, &pod).await?)?;
        if made["spec"]["securityContext"]["seccompProfile"] == wanted {
            return Ok(());
        }
        ensure!(begin.elapsed() < START_LIMIT, "the policy is not in force: {made}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Takes back what `replace_profile` did.
pub async fn keep_profiles(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
        cluster.kubectl(&["delete", kind, namespace, "--ignore-not-found"]).await?;
    }
    Ok(())
}

/// A seccomp profile that pods get in place of their own.
#[derive(Debug, Clone, Copy)]
pub enum Profile {
    /// That of the container runtime.
    RuntimeDefault,
    /// A file of the node.
    Localhost(&'static str),
}

/// Puts a file into the kubelet's folder of profiles, by a pod of the namespace (of level `privileged`).
pub async fn install_profile(cluster: &Cluster, namespace: &str, path: &str, profile: &Value) -> anyhow::Result<()> {
    let script = format!("mkdir -p \"/seccomp/$(dirname {path})\" && printf %s \"$PROFILE\" > /seccomp/{path}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "install", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "install", "image": BUSYBOX, "command": ["sh", "-c", script],
                "env": [{"name": "PROFILE", "value": profile.to_string()}],
                "volumeMounts": [{"name": "seccomp", "mountPath": "/seccomp"}],
            }],
            "volumes": [{"name": "seccomp", "hostPath": {"path": "/var/lib/kubelet/seccomp", "type": "DirectoryOrCreate"}}],
        },
    });
    cluster.apply(&pod.to_string()).await?;
    let ended = |pod: Option<&Value>| pod.is_some_and(|pod| pod["status"]["phase"] == "Succeeded");
    cluster.wait(namespace, "pod", "install", START_LIMIT, "installed", ended).await.map(drop)
}
