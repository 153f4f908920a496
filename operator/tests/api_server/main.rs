//! Tests against a real API server: what it refuses and with which words, and that it takes what the operator renders.
//!
//! They need the feature `api-server-tests` and `API_SERVER_KUBECONFIG`, the path of a kubeconfig with all rights on a
//! cluster that may be changed (`make test` starts one without nodes). Each test works in namespaces of its own.

#![allow(clippy::panic, reason = "a test fails by panicking, in its support too")]

mod children;
mod definition;
mod refusals;
mod support;
mod transitions;
mod wakes;
