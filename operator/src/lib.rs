//! Kubernetes operator for AgentWorkspace objects.
//!
//! `crd` (types) ← `plan` (pure decisions) ← `cluster` (effects) ← `reconcile` ← `controller`.

pub mod agent;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod crd;
pub mod gateway;
pub mod generate;
pub mod leader;
pub mod observed;
pub mod plan;
pub mod plugin;
pub mod reconcile;
pub mod server;
pub mod telemetry;
pub mod token;
pub mod trust;
