//! The kind AgentWorkspaceWake: what requests want of a workspace. Written by the gateway alone, read by the operator.
//!
//! It has the name of its workspace and an owner reference to it. A number and not a time, so that no machine's clock
//! decides whether a wake came before or after a stop. A Lease would not do: rights on Leases cannot be limited by name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AgentWorkspace, Rule};

/// What the gateway wants of one workspace.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "agents.boring.dev",
    version = "v1alpha1",
    kind = "AgentWorkspaceWake",
    plural = "agentworkspacewakes",
    singular = "agentworkspacewake",
    namespaced,
    derive = "PartialEq",
    doc = "AgentWorkspaceWake says whether requests want the workspace of the same name to be awake. Written by the gateway alone.",
    printcolumn = r#"{"name":"Intent","type":"string","jsonPath":".spec.intent","description":"what is wanted"}"#,
    printcolumn = r#"{"name":"Counter","type":"integer","jsonPath":".spec.counter","description":"number of the last wake"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AgentWorkspaceWakeSpec {
    /// What is wanted.
    pub intent: Intent,
    /// Number of the last wake. The workspace is started when it is greater than `status.settledTransition` of the workspace.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub counter: i64,
}

/// What is wanted of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Intent {
    /// It is to run until it is idle.
    Awake,
    /// It is to stop, and only an explicit start wakes it again.
    Stopped,
}

impl AgentWorkspaceWake {
    /// Whether this object speaks for the workspace with this UID. One that was made for a former workspace of the same
    /// name does not, and is ignored until it is collected.
    pub fn belongs_to(&self, workspace_uid: &str) -> bool {
        self.metadata.owner_references.iter().flatten().any(|owner| is_owner(owner, workspace_uid))
    }
}

/// Group and kind tell, not the version: that changes with upgrades.
fn is_owner(owner: &OwnerReference, workspace_uid: &str) -> bool {
    owner.uid == workspace_uid
        && owner.kind == AgentWorkspace::kind(&())
        && owner.api_version.split_once('/').is_some_and(|(group, _)| group == AgentWorkspace::group(&()))
}

/// Rules on a wake.
pub const fn wake_rules() -> &'static [Rule] {
    &[Rule {
        path: &["spec"],
        rule: "self.counter >= oldSelf.counter",
        message: "spec.counter may grow but not shrink",
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(owner: &serde_json::Value) -> AgentWorkspaceWake {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspaceWake",
            "metadata": {"name": "alice", "ownerReferences": [owner]}, "spec": {"intent": "Awake", "counter": 1},
        }))
        .expect("a wake")
    }

    #[test]
    fn a_wake_speaks_for_the_workspace_that_owns_it_and_for_no_other() {
        let owner = |kind: &str, group: &str, uid: &str| {
            wake(&serde_json::json!({"apiVersion": format!("{group}/v1"), "kind": kind, "name": "alice", "uid": uid}))
        };
        assert!(owner("AgentWorkspace", "agents.boring.dev", "1").belongs_to("1"));
        assert!(!owner("AgentWorkspace", "agents.boring.dev", "2").belongs_to("1"));
        assert!(!owner("Pod", "agents.boring.dev", "1").belongs_to("1"));
        assert!(!owner("AgentWorkspace", "example.com", "1").belongs_to("1"));
        assert!(
            !AgentWorkspaceWake::new("alice", owner("AgentWorkspace", "agents.boring.dev", "1").spec).belongs_to("1")
        );
    }
}
