//! The sandboxes on this machine, run through the real binary as its supervisor.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod execution;
mod isolation;
mod lost_server;
mod place;
mod selection;
mod unavailable;
