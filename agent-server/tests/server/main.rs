//! The running binary over real sockets: start, limits, drain, end.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod binary;
mod connections;
mod life;
mod volumes;
