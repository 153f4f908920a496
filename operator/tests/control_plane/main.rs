//! The whole controller against a real control plane, with exactly the generated rights.
//!
//! They need the feature `api-server-tests` and `API_SERVER_KUBECONFIG`, the path of a kubeconfig with all rights on a
//! cluster without nodes that may be changed (`make test` starts one): pods are simulated by writing their status. A
//! controller acts on all namespaces, so one test runs at a time.

#![allow(clippy::panic, reason = "a test fails by panicking, in its support too")]

mod bad_days;
mod deletion;
mod fake_agent;
mod life;
mod on_demand;
mod replicas;
mod rotation;
#[path = "../api_server/support.rs"]
#[allow(dead_code, reason = "shared with the other tests against an API server, which use more of it")]
mod support;
mod world;
