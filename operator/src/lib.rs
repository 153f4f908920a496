//! Kubernetes operator for AgentWorkspace objects.
//!
//! `crd` (types) ← `plan` (pure decisions) ← `cluster` (effects) ← `reconcile` ← `controller`.

pub mod agent;
pub mod cluster;
pub mod crd;
pub mod generate;
pub mod leader;
pub mod plan;
pub mod telemetry;
pub mod trust;
