//! Sessions.
pub mod fold;
