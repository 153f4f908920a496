//! The gateway against a real API server, with exactly the generated rights.
//!
//! They need the feature `api-server-tests` and `API_SERVER_KUBECONFIG`, as `tests/control_plane` does. The part of the
//! operator is played by writing statuses, that of agent servers by a double on loopback addresses.

#![allow(clippy::panic, reason = "a test fails by panicking, in its support too")]

mod agent;
mod browsers;
mod people;
mod streams;
#[path = "../api_server/support.rs"]
#[allow(dead_code, reason = "shared with the other tests against an API server, which use more of it")]
mod support;
mod waiting;
mod waking;
mod world;
