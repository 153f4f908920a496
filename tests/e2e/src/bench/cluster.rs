//! Figures of the operator on a real cluster: apply to first answer, writes and reconciles per workspace, memory.

use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::{Figure, Goal, resident_mebibytes};
use crate::cluster::{Cluster, OPERATOR_NAMESPACE};
use crate::workspace::{MODEL_URL, Workspace};

/// Workspaces one after another, as the goal is stated.
const WORKSPACES: usize = 20;

/// Name of the user that the operator's writes appear under in the audit log.
const OPERATOR_USER: &str = "system:serviceaccount:agent-workspace-system:agent-workspace-operator";

/// Runs all figures; `audit_log` is the API server's audit file at level Metadata.
pub async fn run(audit_log: &Path) -> anyhow::Result<Vec<Figure>> {
    let cluster = Cluster::default();
    let namespace = cluster.namespace("bench").await?;
    let key = ["create", "secret", "generic", "agent-model", "-n", &namespace, "--from-literal=token=scripted-key"];
    cluster.kubectl(&key).await?;
    let reconciles_before = reconciles(&cluster).await?;
    let mut answered = Vec::with_capacity(WORKSPACES);
    for index in 0..WORKSPACES {
        let workspace = Workspace::new(&cluster, &namespace, &format!("bench-{index}"));
        answered.push(apply_to_answer(&workspace).await?.as_secs_f64());
    }
    let reconciles_after = reconciles(&cluster).await?;
    let writes = writes_per_workspace(audit_log, &namespace)?;
    let memory = operator_memory()?;
    cluster.delete_namespace(&namespace).await?;
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    let per_workspace = vec![(reconciles_after - reconciles_before) / WORKSPACES as f64];
    Ok(vec![
        Figure::new("apply to first answered chat", "s", answered, Goal::MedianAtMost(3.0)),
        Figure::new("operator: API writes from create to Ready", "", writes, Goal::MaxAtMost(6.0)),
        Figure::new("operator: reconciles per workspace, mean", "", per_workspace, Goal::MaxAtMost(4.0)),
        Figure::new("operator: idle memory of each replica", "MiB", memory, Goal::MaxAtMost(30.0)),
    ])
}

async fn apply_to_answer(workspace: &Workspace) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let spec = json!({
        "owner": {"user": "bench@example.com"},
        "agent": {
            "model": {"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL},
            "credentials": [{"name": "model-key", "secretKeyRef": {"name": "agent-model", "key": "token"}, "purpose": "ModelKey"}],
        },
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "storage": {"size": "100Mi", "retention": {"whenDeleted": "Delete"}},
    });
    workspace.apply(&spec).await?;
    workspace.wait_for("Ready", "True", Some("Running")).await?;
    let turn = workspace.connect().await?.chat("first", "Say something short.").await?;
    anyhow::ensure!(turn.last_type() == Some("finish"), "the first chat did not finish: {:?}", turn.chunks);
    Ok(begin.elapsed())
}

/// Sum of the reconcile counter over both replicas' metrics, read through the API server's proxy.
async fn reconciles(cluster: &Cluster) -> anyhow::Result<f64> {
    let selector = "app.kubernetes.io/name=agent-workspace-operator";
    let pods = cluster.kubectl(&["get", "pods", "-n", OPERATOR_NAMESPACE, "-l", selector, "-o", "name"]).await?;
    let mut sum = 0.0;
    for pod in pods.lines() {
        let pod = pod.trim_start_matches("pod/");
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
        let text = cluster.kubectl(&["get", "--raw", &path]).await?;
        sum += text
            .lines()
            .filter(|line| line.starts_with("agent_workspace_operator_reconcile_duration_seconds_count"))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum::<f64>();
    }
    Ok(sum)
}

/// Writes by the operator for each workspace of the namespace: create, update, patch, delete of anything but events,
/// told apart by the workspace's name in the object's name.
fn writes_per_workspace(audit_log: &Path, namespace: &str) -> anyhow::Result<Vec<f64>> {
    let mut counts = vec![0.0; WORKSPACES];
    let file = std::fs::File::open(audit_log).with_context(|| format!("open {}", audit_log.display()))?;
    for line in std::io::BufReader::new(file).lines() {
        let Ok(entry) = serde_json::from_str::<Value>(&line?) else { continue };
        let object = &entry["objectRef"];
        let write = matches!(entry["verb"].as_str(), Some("create" | "update" | "patch" | "delete"));
        if !write
            || entry["stage"] != "ResponseComplete"
            || entry["user"]["username"] != OPERATOR_USER
            || object["namespace"] != namespace
            || object["resource"] == "events"
        {
            continue;
        }
        let name = object["name"].as_str().unwrap_or_default();
        let index = (0..WORKSPACES).find(|index| {
            let own = format!("bench-{index}");
            name == own || name.strip_prefix(&own).is_some_and(|rest| rest.starts_with('-'))
        });
        // A create is logged without a name only for generated names, which the operator does not use.
        let index = index.with_context(|| format!("a write that belongs to no workspace: {object}"))?;
        counts[index] += 1.0;
    }
    Ok(counts)
}

/// Memory of every `operator controller` process of this machine's cluster.
fn operator_memory() -> anyhow::Result<Vec<f64>> {
    let mut memory = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = arguments.split('\0');
        if arguments.next().is_some_and(|program| program.ends_with("operator"))
            && arguments.next() == Some("controller")
        {
            memory.push(resident_mebibytes(pid)?);
        }
    }
    anyhow::ensure!(!memory.is_empty(), "no operator process on this machine");
    Ok(memory)
}
