//! How the agent's commands are run: `spec.sandbox`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EnvironmentVariable, Rule, quantity};

/// Rules on `spec.sandbox`: what of it does not fit together.
pub const fn sandbox_rules() -> &'static [Rule] {
    RULES
}

const RULES: &[Rule] = &[
    Rule {
        path: &["spec", "sandbox"],
        rule: "!has(self.network) || self.network == 'Inherit' || (has(self.mode) && self.mode != 'Direct')",
        message: "spec.sandbox.network: Isolated needs mode Bubblewrap or Landlock",
    },
    Rule {
        path: &["spec", "sandbox"],
        rule: "!has(self.procMount) || (has(self.mode) && self.mode == 'Bubblewrap')",
        message: "spec.sandbox.procMount is for mode Bubblewrap only",
    },
    Rule {
        path: &["spec", "sandbox"],
        rule: "!has(self.onUnavailable) || self.onUnavailable == 'Fail' || (has(self.mode) && self.mode == 'Bubblewrap')",
        message: "spec.sandbox.onUnavailable: Degrade is for mode Bubblewrap only",
    },
    Rule {
        path: &["spec", "sandbox", "env", "[]"],
        rule: "!self.name.matches('^(BORING_AGENT_|LD_|BASH_FUNC_).*') && self.name != 'BASH_ENV' && self.name != 'ENV'",
        message: "names that begin with BORING_AGENT_, LD_ or BASH_FUNC_, or are BASH_ENV or ENV, cannot be given to commands",
    },
    Rule {
        path: &["spec", "sandbox", "limits"],
        rule: "!has(self.memory) || quantity(string(self.memory)).compareTo(quantity('16Mi')) >= 0",
        message: "spec.sandbox.limits.memory must be at least 16Mi",
    },
    Rule {
        path: &["spec", "sandbox", "limits"],
        rule: "!has(self.fileSize) || quantity(string(self.fileSize)).compareTo(quantity('4Ki')) >= 0",
        message: "spec.sandbox.limits.fileSize must be at least 4Ki",
    },
    Rule {
        path: &["spec", "sandbox", "limits"],
        rule: "!has(self.workspaceMemory) || quantity(string(self.workspaceMemory)).compareTo(quantity('16Mi')) >= 0",
        message: "spec.sandbox.limits.workspaceMemory must be at least 16Mi",
    },
    Rule {
        path: &["spec"],
        rule: "!has(self.libraries) || !has(self.libraries.python) || self.libraries.python.size() == 0 || !has(self.sandbox) || !has(self.sandbox.network) || self.sandbox.network == 'Inherit' || has(self.template)",
        message: "spec.libraries are installed by a command, which spec.sandbox.network: Isolated keeps from every index: bring them by spec.template with a pip.conf that names their folder, or use Inherit",
    },
];

/// How the agent's commands are run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Kind of isolation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SandboxMode>,
    /// What commands reach of the network. Isolated needs mode Bubblewrap or Landlock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<SandboxNetwork>,
    /// What commands see of /proc. With mode Bubblewrap only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_mount: Option<ProcMount>,
    /// What happens when Bubblewrap cannot be had on the node. With mode Bubblewrap only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unavailable: Option<OnUnavailable>,
    /// Environment of commands, on top of what they always get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub env: Vec<EnvironmentVariable>,
    /// What a command, and all commands together, may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<SandboxLimits>,
}

/// Kind of isolation between the agent server and its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SandboxMode {
    /// Commands run in the agent's container, next to the server; keys and history are kept from them where the kernel has
    /// landlock, and nothing else is.
    Direct,
    /// Commands run in namespaces of their own. The node must allow user namespaces, and have the seccomp profile.
    Bubblewrap,
    /// Commands read the system and write the workspace and /tmp, and are refused dangerous system calls. Needs Linux 6.2.
    Landlock,
}

/// What commands reach of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SandboxNetwork {
    /// What the pod reaches.
    Inherit,
    /// Nothing.
    Isolated,
}

/// What commands see of /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProcMount {
    /// Nothing, unless the node permits more. Passes pod security level `restricted`.
    Empty,
    /// Their own processes. Needs user namespaces for pods (`hostUsers: false`) and a namespace of level `privileged`, or
    /// `baseline` from Kubernetes 1.35 on.
    Full,
}

/// What happens when the wanted mode cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnavailable {
    /// The workspace does not become ready.
    Fail,
    /// Mode Landlock is used instead, where the operator permits that, and reported.
    Degrade,
}

/// What a command, and all commands together, may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLimits {
    /// Memory of a command and all it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity::quantity")]
    pub memory: Option<Quantity>,
    /// Processes of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 32768))]
    pub processes: Option<i32>,
    /// Memory of all commands together; one command never gets more than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity::quantity")]
    pub workspace_memory: Option<Quantity>,
    /// Processes of all commands together; one command never gets more than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 131_072))]
    pub workspace_processes: Option<i32>,
    /// Largest file that a command may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity::quantity")]
    pub file_size: Option<Quantity>,
    /// Bytes of output; a command that writes more is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 65536, max = 1_099_511_627_776_i64))]
    pub output_bytes: Option<i64>,
    /// Seconds that a command may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub timeout_seconds: Option<i32>,
}
