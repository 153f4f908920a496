//! The standard tools over a folder and a real sandbox.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod bash;
mod bench;
mod definitions;
mod edit;
mod hostile;
mod listing;
mod read;
mod search;
