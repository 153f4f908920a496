//! Kubernetes operator for AgentWorkspace objects.
//!
//! `crd` (types) ← `plan` (pure decisions) ← `cluster` (effects) ← `reconcile` ← `controller`.

pub mod crd;
pub mod generate;
pub mod plan;
pub mod trust;
