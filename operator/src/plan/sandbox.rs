//! How commands are run: from `spec.sandbox` to what the pod needs for it and what the status says of it.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::SeccompProfile, apimachinery::pkg::api::resource::Quantity};

use crate::crd::{
    ConditionType, EnvironmentVariable, OnUnavailable, ProcMount, Reason, Sandbox as RawSandbox, SandboxLimits,
    SandboxMode, SandboxNetwork,
};

use super::{
    AgentIsolation, Config, Invalid,
    cause::quote,
    quantity::Amount,
    status::{Draft, Truth},
};

/// The server hands variables with this prefix to commands, without it.
const VARIABLE_PREFIX: &str = "BORING_AGENT_COMMAND_VARIABLE_";
/// What the server refuses as the name of a variable of commands.
const RESERVED_PREFIXES: [&str; 3] = ["LD_", "BORING_AGENT_", "BASH_FUNC_"];
const RESERVED_NAMES: [&str; 2] = ["BASH_ENV", "ENV"];
/// The server's own bounds (docs/configuration.md).
const LEAST_MEMORY: u64 = 16 << 20;
const LEAST_BYTES: u64 = 4096;

/// The seccomp profile of pods in mode Bubblewrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BubblewrapSeccomp {
    /// A file below the kubelet's seccomp folder.
    Localhost(String),
    /// No filter of the runtime; only namespaces of level `privileged` admit that.
    Unconfined,
}

/// How commands are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Kind of isolation.
    pub mode: SandboxMode,
    /// Commands have no network.
    pub isolated: bool,
    /// Commands see their own processes in /proc.
    pub full_proc: bool,
    /// Mode Landlock may serve in place of Bubblewrap.
    pub degrade: bool,
    /// Environment of commands.
    pub env: BTreeMap<String, String>,
    /// Limits, by the server's variable.
    limits: BTreeMap<&'static str, String>,
    /// The seccomp profile in mode Bubblewrap.
    seccomp: BubblewrapSeccomp,
}

impl Sandbox {
    /// Parses `spec.sandbox`.
    pub fn parse(config: &Config, raw: RawSandbox) -> Result<Self, Invalid> {
        let mode = raw.mode.unwrap_or(SandboxMode::Direct);
        let refuse = |what: &str| Err(Invalid::spec(format!("spec.sandbox.{what}")));
        let isolated = raw.network == Some(SandboxNetwork::Isolated);
        if isolated && mode == SandboxMode::Direct {
            return refuse("network: Isolated needs mode Bubblewrap or Landlock");
        }
        if raw.proc_mount.is_some() && mode != SandboxMode::Bubblewrap {
            return refuse("procMount is for mode Bubblewrap only");
        }
        let degrade = raw.on_unavailable == Some(OnUnavailable::Degrade);
        if degrade && mode != SandboxMode::Bubblewrap {
            return refuse("onUnavailable: Degrade is for mode Bubblewrap only");
        }
        if degrade && !config.allow_degrade {
            return refuse(
                "onUnavailable: Degrade is not permitted by the operator (--allow-sandbox-degrade); use Fail or mode Landlock",
            );
        }
        Ok(Self {
            mode,
            isolated,
            full_proc: raw.proc_mount == Some(ProcMount::Full),
            degrade,
            env: environment(raw.env)?,
            limits: limits(raw.limits.unwrap_or_default())?,
            seccomp: config.bubblewrap_seccomp.clone(),
        })
    }

    /// Libraries are installed by a command. Without a network they can only come from files, and a workspace gets those by
    /// its template.
    pub(super) fn admits_libraries(&self, libraries: &[String], has_template: bool) -> Result<(), Invalid> {
        if !self.isolated || libraries.is_empty() || has_template {
            return Ok(());
        }
        Err(Invalid::spec(
            "spec.libraries are installed by a command, which spec.sandbox.network: Isolated keeps from every index: bring them by spec.template with a pip.conf that names their folder, or use Inherit",
        ))
    }

    /// The server's environment for it.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        let mode = match self.mode {
            SandboxMode::Direct => "direct",
            SandboxMode::Bubblewrap => "bubblewrap",
            SandboxMode::Landlock => "landlock",
        };
        let mut variables = BTreeMap::from([("BORING_AGENT_MODE".to_owned(), mode.to_owned())]);
        if self.isolated {
            variables.insert("BORING_AGENT_SANDBOX_NETWORK".to_owned(), "isolated".to_owned());
        }
        if self.degrade {
            variables.insert("BORING_AGENT_SANDBOX_ON_UNAVAILABLE".to_owned(), "degrade".to_owned());
        }
        variables.extend(self.limits.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        variables.extend(self.env.iter().map(|(name, value)| (format!("{VARIABLE_PREFIX}{name}"), value.clone())));
        variables
    }

    /// The pod's seccomp profile. Only Bubblewrap needs another than the runtime's: that one refuses namespaces.
    pub(super) fn seccomp_profile(&self) -> SeccompProfile {
        let profile = |type_: &str, localhost_profile| SeccompProfile { type_: type_.to_owned(), localhost_profile };
        match (self.mode, &self.seccomp) {
            (SandboxMode::Direct | SandboxMode::Landlock, _) => profile("RuntimeDefault", None),
            (SandboxMode::Bubblewrap, BubblewrapSeccomp::Localhost(path)) => profile("Localhost", Some(path.clone())),
            (SandboxMode::Bubblewrap, BubblewrapSeccomp::Unconfined) => profile("Unconfined", None),
        }
    }

    /// `hostUsers` of the pod: a full /proc needs user namespaces.
    pub(super) fn host_users(&self) -> Option<bool> {
        self.full_proc.then_some(false)
    }

    /// `procMount` of the container.
    pub(super) fn proc_mount(&self) -> Option<String> {
        self.full_proc.then(|| "Unmasked".to_owned())
    }

    /// Whether the isolation that a server reports is the wanted one or a permitted one.
    fn is_met_by(&self, kind: &str) -> bool {
        match self.mode {
            SandboxMode::Direct => matches!(kind, "DirectWithLandlockLayer" | "None"),
            SandboxMode::Landlock => kind == "Landlock",
            SandboxMode::Bubblewrap => kind == "Bubblewrap" || (self.degrade && kind == "Landlock"),
        }
    }

    /// `status.isolation` and SandboxReady of a pod that is Ready. Without an answer what was known stays.
    pub(super) fn report(&self, draft: &mut Draft<'_>, isolation: Option<&AgentIsolation>) {
        let Some(isolation) = isolation else {
            if draft.new.isolation.is_none() {
                draft.set(
                    ConditionType::SandboxReady,
                    Truth::Unknown,
                    Reason::Pending,
                    "the server has not reported yet",
                );
            }
            return;
        };
        draft.new.isolation = Some(isolation.kind.clone());
        let network = if isolation.isolated { "no network" } else { "the pod's network" };
        let mode = self.mode_word();
        let (truth, reason, message) = match (isolation.kind.as_str(), &isolation.degraded) {
            (kind, _) if !self.is_met_by(kind) || isolation.isolated != self.isolated => (
                Truth::False,
                Reason::SandboxUnavailable,
                format!("the server reports isolation {kind} with {network}, which is not what spec.sandbox (mode {mode}) asks for; start the workspace anew"),
            ),
            (kind, Some(why)) => (
                Truth::True,
                Reason::Degraded,
                format!("isolation {kind} with {network} in place of mode {mode}, as spec.sandbox.onUnavailable permits: {}", quote(why)),
            ),
            ("None", None) => (
                Truth::True,
                Reason::SecretsReadable,
                "commands run directly in the agent's container and can read every file of the server, keys and history included: the node's kernel has no landlock".to_owned(),
            ),
            ("DirectWithLandlockLayer", None) => (
                Truth::True,
                Reason::Available,
                format!("commands run directly in the agent's container with {network}; keys and history are kept from them"),
            ),
            (kind, None) => (Truth::True, Reason::Available, format!("commands run with isolation {kind} and {network}")),
        };
        draft.set(ConditionType::SandboxReady, truth, reason, message);
    }

    fn mode_word(&self) -> &'static str {
        match self.mode {
            SandboxMode::Direct => "Direct",
            SandboxMode::Bubblewrap => "Bubblewrap",
            SandboxMode::Landlock => "Landlock",
        }
    }
}

fn environment(raw: Vec<EnvironmentVariable>) -> Result<BTreeMap<String, String>, Invalid> {
    let reserved =
        |name: &str| RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || RESERVED_NAMES.contains(&name);
    match raw.iter().find(|variable| reserved(&variable.name)) {
        Some(variable) => Err(Invalid::spec(format!("spec.sandbox.env: {} cannot be set", variable.name))),
        None => Ok(raw.into_iter().map(|variable| (variable.name, variable.value)).collect()),
    }
}

fn limits(raw: SandboxLimits) -> Result<BTreeMap<&'static str, String>, Invalid> {
    let bytes = |field: &str, quantity: Option<Quantity>, least: u64| match quantity {
        None => Ok(None),
        Some(quantity) => match Amount::of(&quantity).and_then(Amount::whole) {
            Some(bytes) if bytes >= least => Ok(Some(bytes.to_string())),
            _ => Err(Invalid::spec(format!("spec.sandbox.limits.{field} must be at least {least} bytes"))),
        },
    };
    let number = |field: &str, number: Option<i64>| match number {
        Some(number) if number < 10 => Err(Invalid::spec(format!("spec.sandbox.limits.{field} is too small"))),
        number => Ok(number.map(|number| number.to_string())),
    };
    let set = [
        ("BORING_AGENT_LIMIT_MEMORY_BYTES", bytes("memory", raw.memory, LEAST_MEMORY)?),
        ("BORING_AGENT_LIMIT_FILE_SIZE_BYTES", bytes("fileSize", raw.file_size, LEAST_BYTES)?),
        ("BORING_AGENT_LIMIT_WORKSPACE_MEMORY_BYTES", bytes("workspaceMemory", raw.workspace_memory, LEAST_MEMORY)?),
        (
            "BORING_AGENT_LIMIT_WORKSPACE_PROCESSES",
            number("workspaceProcesses", raw.workspace_processes.map(i64::from))?,
        ),
        ("BORING_AGENT_LIMIT_PROCESSES", number("processes", raw.processes.map(i64::from))?),
        ("BORING_AGENT_LIMIT_OUTPUT_BYTES", number("outputBytes", raw.output_bytes)?),
        ("BORING_AGENT_LIMIT_TIMEOUT_SECONDS", number("timeoutSeconds", raw.timeout_seconds.map(i64::from))?),
    ];
    Ok(set.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}
