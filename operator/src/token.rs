//! `operator token NAME`: a token with which one person reaches one running workspace for ten minutes.
//!
//! Owns what is read and what is said when there is nothing to sign for. Must not know how tokens are made (`trust`).

use clap::Args;
use jiff::Timestamp;
use kube::Client;

use crate::{
    cluster::{Calls, ClusterError, Keys, KeysError, rbac::KEYS_SECRET_NAME, running_pod},
    config::Place,
    trust::{PRINTED_TOKEN_SECONDS, PRINTED_TOKEN_SUBJECT, Scope, TrustError, audience},
};

/// Flags of `operator token`.
#[derive(Args, Clone, Debug)]
pub struct TokenArguments {
    /// Name of the workspace.
    pub name: String,
    /// Namespace of the workspace.
    #[arg(long, short)]
    pub namespace: String,
    /// User the token speaks for; by default the workspace's owner.
    #[arg(long)]
    pub user: Option<String>,
    /// Where the operator's keys are.
    #[command(flatten)]
    pub place: Place,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// No such workspace.
    #[error("there is no AgentWorkspace {name} in namespace {namespace}")]
    NoWorkspace {
        /// Namespace asked for.
        namespace: String,
        /// Name asked for.
        name: String,
    },
    /// It has no running pod, and a token is for one pod.
    #[error(
        "AgentWorkspace {namespace}/{name} has no running pod (phase {phase}): set spec.runPolicy to Always and wait with `kubectl wait -n {namespace} --for=condition=Ready agentworkspace/{name}`"
    )]
    NotRunning {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its phase.
        phase: String,
    },
    /// The API server.
    #[error("cannot read the workspace")]
    Cluster(#[from] ClusterError),
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Signing.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

impl TokenError {
    /// Stable word.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoWorkspace { .. } => "NotFound",
            Self::NotRunning { .. } => "NotRunning",
            Self::Cluster(error) => error.reason(),
            Self::Keys(_) => "KeysUnusable",
            Self::Trust(error) => error.reason(),
        }
    }
}

/// Reads workspace and keys, and signs.
pub async fn token(client: Client, calls: Calls, wanted: &TokenArguments) -> Result<String, TokenError> {
    let (namespace, name) = (wanted.namespace.clone(), wanted.name.clone());
    let Some(found) = running_pod(client.clone(), &calls, &namespace, &name).await? else {
        return Err(TokenError::NoWorkspace { namespace, name });
    };
    let Some(pod_uid) = found.pod_uid else {
        let phase = found.phase.unwrap_or_else(|| "unknown: is the operator running?".to_owned());
        return Err(TokenError::NotRunning { namespace, name, phase });
    };
    let keys = Keys::new(client, calls, &wanted.place.namespace, KEYS_SECRET_NAME).read().await?;
    let subject = wanted.user.clone().or(found.owner).unwrap_or_else(|| PRINTED_TOKEN_SUBJECT.to_owned());
    let audience = audience(&namespace, &name, &found.workspace_uid, &pod_uid);
    Ok(keys.ring.sign(Scope::User, audience, &subject, Timestamp::now(), PRINTED_TOKEN_SECONDS)?)
}

#[cfg(test)]
mod tests;
