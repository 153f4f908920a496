//! The operator's calls to an agent server: readiness, drain and the question of an idle stop (`docs/contract.md`).
//!
//! Owns HTTP to pods, each call bounded in time and bytes. Must not know when to call.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use reqwest::{Client, StatusCode, redirect};
use serde::Deserialize;

use crate::{
    plan::{Activity, AgentIsolation, AgentReadiness, Answer, Drain, DrainQuestion, HOLD_SECONDS, ReadinessReason},
    trust::{LIFECYCLE_SUBJECT, LIFECYCLE_TOKEN_SECONDS, Scope, Signer, TrustError, audience},
};

/// Port of the agent server.
const PORT: u16 = 8787;
/// Inside a cluster a connection takes a millisecond; a pod that does not answer must not hold up its own stop.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// The server answers drain at once, running turns end later.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// `/ready` does nothing but look at its own state.
const READY_LIMIT: Duration = Duration::from_secs(2);
/// A readiness answer is a few hundred bytes.
const BODY_BYTES: usize = 16 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The address of the pod is none.
    #[error("{0:?} is not an address")]
    Address(String),
    /// No token could be signed.
    #[error("cannot sign a token for the pod")]
    Token(#[source] TrustError),
    /// No answer, or none in time.
    #[error("the agent server does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// An answer outside of the contract.
    #[error("the agent server answered {status}")]
    Refused {
        /// Its status code.
        status: StatusCode,
    },
}

impl AgentError {
    /// Stable word for metrics and logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Address(_) => "BadAddress",
            Self::Token(_) => "SigningFailed",
            Self::Unreachable(_) => "Unreachable",
            Self::Refused { .. } => "Refused",
        }
    }
}

/// Whose pod is called: a part of the token's audience.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Namespace of the workspace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub workspace_uid: &'a str,
}

/// Calls agent servers.
#[derive(Clone, Debug)]
pub struct AgentClient {
    http: Client,
    signer: Signer,
    port: u16,
}

impl AgentClient {
    /// Signs with the lifecycle key in use. No proxy and no redirect: a pod's address is called and nothing else.
    pub fn new(signer: Signer) -> Result<Self, reqwest::Error> {
        let http = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            // One call per pod and state: keeping connections would only hold sockets of pods that are gone.
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self { http, signer, port: PORT })
    }

    /// Asks the server to refuse new work and to end running turns within the grace period.
    pub async fn drain(&self, target: Target<'_>, drain: &Drain, now: Timestamp) -> Result<(), AgentError> {
        let body = serde_json::json!({ "graceSeconds": drain.grace_seconds });
        let request = self.drain_request(target, &drain.pod_uid, &drain.ip, &body, now)?;
        let answer = request.send().await.map_err(AgentError::Unreachable)?;
        match answer.status() {
            StatusCode::OK => Ok(()),
            status => Err(AgentError::Refused { status }),
        }
    }

    /// Asks the server to take no more work if it was not used for so long. No answer is an answer too: [`Answer::Unknown`].
    pub async fn drain_if_idle(&self, target: Target<'_>, question: &DrainQuestion, now: Timestamp) -> Activity {
        let answer = match self.ask_drain(target, question, now).await {
            Ok(answer) => answer,
            Err(error) => {
                let (reason, error) = (error.reason(), &error as &dyn std::error::Error);
                tracing::info!(
                    namespace = target.namespace,
                    name = target.name,
                    reason,
                    error,
                    "no answer to an idle stop"
                );
                Answer::Unknown
            }
        };
        Activity { pod_uid: question.pod_uid.clone(), asked_at: now, answer }
    }

    async fn ask_drain(
        &self,
        target: Target<'_>,
        question: &DrainQuestion,
        now: Timestamp,
    ) -> Result<Answer, AgentError> {
        let body = serde_json::json!({ "ifIdleSeconds": question.if_idle_seconds, "holdSeconds": HOLD_SECONDS });
        let request = self.drain_request(target, &question.pod_uid, &question.ip, &body, now)?;
        let mut answer = request.send().await.map_err(AgentError::Unreachable)?;
        let status = answer.status();
        match status {
            StatusCode::OK => Ok(Answer::Accepted),
            StatusCode::CONFLICT => {
                let body = bounded_body(&mut answer).await?;
                let refused: InUse = serde_json::from_slice(&body).map_err(|_| AgentError::Refused { status })?;
                let ActivityReport { busy, idle_seconds, busy_seconds } = refused.error.activity;
                Ok(Answer::InUse { busy, idle_seconds, busy_seconds })
            }
            status => Err(AgentError::Refused { status }),
        }
    }

    fn drain_request(
        &self,
        target: Target<'_>,
        pod_uid: &str,
        ip: &str,
        body: &serde_json::Value,
        now: Timestamp,
    ) -> Result<reqwest::RequestBuilder, AgentError> {
        let audience = audience(target.namespace, target.name, target.workspace_uid, pod_uid);
        let token = self
            .signer
            .keys()
            .ring
            .sign(Scope::Lifecycle, audience, LIFECYCLE_SUBJECT, now, LIFECYCLE_TOKEN_SECONDS)
            .map_err(AgentError::Token)?;
        let request = self.http.post(self.url(ip, "api/v1/drain")?).bearer_auth(token).json(body);
        Ok(request.timeout(DRAIN_LIMIT))
    }

    /// Asks `/ready`. No answer is an answer too: [`ReadinessReason::Unreachable`].
    pub async fn readiness(&self, pod_uid: &str, ip: &str, now: Timestamp) -> AgentReadiness {
        let (reasons, message, isolation) = match self.ask_ready(ip).await {
            Ok(answer) => answer,
            Err(error) => (vec![ReadinessReason::Unreachable], Some(chain(&error)), None),
        };
        AgentReadiness { pod_uid: pod_uid.to_owned(), asked_at: now, reasons, message, isolation }
    }

    async fn ask_ready(&self, ip: &str) -> Result<ReadyAnswer, AgentError> {
        let request = self.http.get(self.url(ip, "ready")?).timeout(READY_LIMIT);
        let mut answer = request.send().await.map_err(AgentError::Unreachable)?;
        let status = answer.status();
        let body = bounded_body(&mut answer).await?;
        let ready: Ready = serde_json::from_slice(&body).map_err(|_| AgentError::Refused { status })?;
        let isolation = ready.isolation.map(|isolation| AgentIsolation {
            kind: isolation.kind,
            isolated: isolation.network == "Isolated",
            degraded: isolation.degraded,
        });
        match (status, ready.status.as_str()) {
            (StatusCode::OK, "ok") => Ok((Vec::new(), None, isolation)),
            (StatusCode::OK, "degraded") => Ok((words(&ready.reasons, status)?, ready.message, isolation)),
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable") => {
                let reason = ready.reason.into_iter().collect::<Vec<_>>();
                Ok((words(&reason, status)?, ready.message, isolation))
            }
            _ => Err(AgentError::Refused { status }),
        }
    }

    fn url(&self, ip: &str, path: &str) -> Result<String, AgentError> {
        let port = self.port;
        match ip.parse() {
            Ok(IpAddr::V4(ip)) => Ok(format!("http://{ip}:{port}/{path}")),
            Ok(IpAddr::V6(ip)) => Ok(format!("http://[{ip}]:{port}/{path}")),
            Err(_) => Err(AgentError::Address(ip.to_owned())),
        }
    }
}

/// The body of an answer, as long as it is as short as ours are.
async fn bounded_body(answer: &mut reqwest::Response) -> Result<Vec<u8>, AgentError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(AgentError::Unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES {
            return Err(AgentError::Refused { status: answer.status() });
        }
    }
    Ok(body)
}

/// 409 of a drain.
#[derive(Debug, Deserialize)]
struct InUse {
    error: InUseError,
}

#[derive(Debug, Deserialize)]
struct InUseError {
    activity: ActivityReport,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActivityReport {
    busy: bool,
    idle_seconds: i64,
    busy_seconds: i64,
}

#[derive(Debug, Deserialize)]
struct Ready {
    status: String,
    #[serde(default)]
    reasons: Vec<String>,
    reason: Option<String>,
    message: Option<String>,
    isolation: Option<ReadyIsolation>,
}

#[derive(Debug, Deserialize)]
struct ReadyIsolation {
    kind: String,
    network: String,
    degraded: Option<String>,
}

type ReadyAnswer = (Vec<ReadinessReason>, Option<String>, Option<AgentIsolation>);

/// A word that is not in the contract makes the whole answer one outside of it: nothing is guessed.
fn words(words: &[String], status: StatusCode) -> Result<Vec<ReadinessReason>, AgentError> {
    if words.is_empty() {
        return Err(AgentError::Refused { status });
    }
    words
        .iter()
        .map(|word| match word.as_str() {
            "ModelKeyMissing" => Ok(ReadinessReason::ModelKeyMissing),
            "ModelKeyRejected" => Ok(ReadinessReason::ModelKeyRejected),
            "VolumeNotWritable" => Ok(ReadinessReason::VolumeNotWritable),
            "SandboxUnavailable" => Ok(ReadinessReason::SandboxUnavailable),
            "Provisioning" => Ok(ReadinessReason::Provisioning),
            "ProvisioningFailed" => Ok(ReadinessReason::ProvisioningFailed),
            "Draining" => Ok(ReadinessReason::Draining),
            "Starting" => Ok(ReadinessReason::Starting),
            _ => Err(AgentError::Refused { status }),
        })
        .collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
