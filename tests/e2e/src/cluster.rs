//! The cluster as a user sees it: `kubectl` and nothing else. Owns process calls and waiting; must not know the products' code.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// Namespace of the operator, as the chart's documentation names it.
pub const OPERATOR_NAMESPACE: &str = "agent-workspace-system";

/// Pause between two looks at the cluster while waiting.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The cluster of the current `KUBECONFIG`.
#[derive(Debug, Clone)]
pub struct Cluster {
    kubectl: String,
}

impl Default for Cluster {
    fn default() -> Self {
        Self { kubectl: std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into()) }
    }
}

impl Cluster {
    /// Runs `kubectl` and returns its standard output; a non-zero exit is an error that holds its standard error.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.kubectl_with_input(arguments, "").await
    }

    /// As [`Cluster::kubectl`], with text on standard input.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let mut child = Command::new(&self.kubectl)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.kubectl))?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Applies manifests as YAML or JSON text, strictly.
    pub async fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        self.kubectl_with_input(&["apply", "--validate=strict", "-f", "-"], manifest).await.map(drop)
    }

    /// One object as JSON; `None` when it does not exist.
    pub async fn get(&self, namespace: &str, kind: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let text = self.kubectl(&["get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found"]).await?;
        if text.trim().is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&text)?)) }
    }

    /// Waits until `holds` is true of the object (or of its absence). The error shows the last state seen.
    pub async fn wait(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
        limit: Duration,
        what: &str,
        holds: impl Fn(Option<&Value>) -> bool,
    ) -> anyhow::Result<Option<Value>> {
        let start = Instant::now();
        loop {
            let object = self.get(namespace, kind, name).await?;
            if holds(object.as_ref()) {
                return Ok(object);
            }
            if start.elapsed() > limit {
                let state = object.map_or_else(|| "absent".into(), |object| object["status"].to_string());
                bail!("{kind} {namespace}/{name}: not {what} within {limit:?}; status: {state}");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Creates a namespace with a name of its own for one test and returns its name.
    pub async fn namespace(&self, prefix: &str) -> anyhow::Result<String> {
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
        let name = format!("{prefix}-{:x}", nanos & 0xff_ffff_ffff);
        self.kubectl(&["create", "namespace", &name]).await?;
        Ok(name)
    }

    /// Deletes a namespace without waiting for its end.
    pub async fn delete_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.kubectl(&["delete", "namespace", name, "--wait=false"]).await.map(drop)
    }

    /// A user token for a workspace, printed by the operator's own command in its pod.
    pub async fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let deployment = "deploy/agent-workspace-operator";
        let arguments =
            ["exec", "-n", OPERATOR_NAMESPACE, deployment, "--", "operator", "token", name, "--namespace", namespace];
        Ok(self.kubectl(&arguments).await?.trim().to_owned())
    }

    /// Forwards a free local port to a port of a pod.
    pub async fn port_forward(&self, namespace: &str, pod: &str, port: u16) -> anyhow::Result<PortForward> {
        let mut child = Command::new(&self.kubectl)
            .args([
                "port-forward",
                "-n",
                namespace,
                &format!("pod/{pod}"),
                &format!(":{port}"),
                "--address",
                "127.0.0.1",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("kubectl has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(Duration::from_secs(20), lines.next_line())
            .await
            .context("kubectl port-forward printed nothing within 20 s")??
            .context("kubectl port-forward ended")?;
        // "Forwarding from 127.0.0.1:40123 -> 8787"
        let address = line.split_whitespace().nth(2).with_context(|| format!("unexpected line {line:?}"))?;
        let base_url = format!("http://{address}");
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(PortForward { base_url, _child: child })
    }
}

/// A running port forward; ends when dropped.
#[derive(Debug)]
pub struct PortForward {
    /// `http://127.0.0.1:PORT`.
    pub base_url: String,
    _child: Child,
}

/// The condition of a type in an object's status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Whether a condition has this status, and this reason if one is given.
pub fn has_condition(object: Option<&Value>, kind: &str, status: &str, reason: Option<&str>) -> bool {
    object.and_then(|object| condition(object, kind)).is_some_and(|condition| {
        condition["status"] == status && reason.is_none_or(|reason| condition["reason"] == reason)
    })
}
