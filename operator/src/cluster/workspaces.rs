//! One live read of a workspace, for the `token` command.

use kube::{Api, Client};

use super::{Calls, ClusterError};
use crate::{
    crd::AgentWorkspace,
    telemetry::{Kind, Verb},
};

/// What a token needs to know about a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// `metadata.uid`.
    pub workspace_uid: String,
    /// `status.pod.uid`; `None` when no pod is running.
    pub pod_uid: Option<String>,
    /// `spec.owner.user`.
    pub owner: Option<String>,
    /// `status.phase`, for the message.
    pub phase: Option<String>,
}

/// Reads the workspace; `None` when there is none.
pub async fn running_pod(
    client: Client,
    calls: &Calls,
    namespace: &str,
    name: &str,
) -> Result<Option<RunningPod>, ClusterError> {
    let api: Api<AgentWorkspace> = Api::namespaced(client, namespace);
    let found = calls.run(Kind::AgentWorkspace, Verb::Get, api.get_opt(name)).await?;
    Ok(found.map(|workspace| {
        let status = workspace.status.unwrap_or_default();
        RunningPod {
            workspace_uid: workspace.metadata.uid.unwrap_or_default(),
            pod_uid: status.pod.map(|pod| pod.uid),
            owner: workspace.spec.owner.map(|owner| owner.user),
            phase: status.phase.map(|phase| format!("{phase:?}")),
        }
    }))
}
