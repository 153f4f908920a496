//! Decides. PURE: no client, clock, environment, randomness, file; time comes in as an argument.
//!
//! [`plan`] turns what was observed into one comparable [`Plan`]; `cluster` carries it out and decides nothing. Depends on
//! `crd` alone.

mod activity;
mod builtin;
mod cause;
mod children;
mod config;
mod end;
mod ending;
mod endpoint;
mod life;
mod lifecycle;
mod observed;
mod outcome;
mod ownership;
mod pod_view;
mod provisioning;
mod quantity;
mod run_state;
mod running;
mod sandbox;
mod schedule;
mod stages;
mod starting;
mod status;
mod stopping;
mod storage;
mod valid;

pub use activity::{Activity, Answer, HOLD_SECONDS};
pub use builtin::{EFFECTIVE, RUN_POLICY, VISIBILITY, WAKE_MODE, WAKE_TIMEOUT_SECONDS};
pub use children::{HTTP_PORT, METRICS_PORT, labels as child_labels};
pub use config::{BUBBLEWRAP_PROFILE, ClusterDns, Config, LabelSelectorText, Peer};
pub use endpoint::{ModelService, ServiceView, model_service};
pub use observed::{
    AgentIsolation, AgentReadiness, ClaimPhase, ClaimView, ForeignObject, NodeState, Observed, ReadinessReason, Seen,
    SimpleView, StorageClassView, WakeView, WorkspaceView, WriteFailure, WriteFailureKind,
};
pub use outcome::{
    Child, ChildKind, Drain, DrainQuestion, EventKind, EventToPublish, LookUp, Plan, PodDeletion, PodMetadataPatch,
    StatusPatch,
};
pub use pod_view::{ContainerEnd, ContainerWait, Disruption, PodEvent, PodPhase, PodStages, PodView};
pub use provisioning::TemplateSource;
pub use sandbox::{BubblewrapSeccomp, Sandbox};
pub use stages::start_stages;
pub use valid::{Invalid, Storage, Valid, agent_name, claim_name};

use jiff::Timestamp;

/// Decides what to do about one workspace.
///
/// # Contract
/// Deterministic. Never decides on a second pod, never creates a pod while the workspace is off or
/// while `own_write_pending`, and never writes a status that differs from the observed one only in times.
pub fn plan(config: &Config, observed: &Observed, now: Timestamp) -> Plan {
    lifecycle::decide(config, observed, now)
}

/// Bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

#[cfg(test)]
mod tests;
