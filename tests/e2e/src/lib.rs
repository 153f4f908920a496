//! Shared parts of the black-box tests and benches: a client of the cluster through `kubectl`, a client of one
//! workspace, and a chat reader. Knows the products only from outside, but for the bench of the sandboxes.

pub mod bench;
pub mod chat;
pub mod cluster;
pub mod gateway;
pub mod sandboxes;
pub mod wheel;
pub mod workspace;
