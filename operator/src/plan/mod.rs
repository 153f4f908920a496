//! Decides. PURE: no client, clock, environment, randomness, file; time comes in as an argument.
//!
//! [`plan`] turns what was observed into one comparable [`Plan`]; `cluster` carries it out and decides nothing. Depends on
//! `crd` alone.

mod config;
mod observed;
mod outcome;

pub use config::{ClusterDns, Config, LabelSelectorText, Peer};
pub use observed::{
    AgentReadiness, ClaimPhase, ClaimView, ContainerEnd, ContainerWait, ForeignObject, Observed, PodEvent, PodPhase,
    PodView, ReadinessReason, Seen, SimpleView, StorageClassView, WorkspaceView, WriteFailure, WriteFailureKind,
};
pub use outcome::{
    Child, ChildKind, Drain, EventKind, EventToPublish, LookUp, Plan, PodDeletion, PodKeys, StatusPatch,
};

use jiff::Timestamp;

/// Decides what to do about one workspace.
///
/// # Contract
/// Deterministic. Never decides on a second pod, never creates a pod while the workspace is off or
/// while `own_write_pending`, and never writes a status that differs from the observed one only in times.
pub fn plan(_config: &Config, _observed: &Observed, _now: Timestamp) -> Plan {
    Plan::default()
}
