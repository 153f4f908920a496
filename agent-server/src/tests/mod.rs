//! Tests across modules.

pub mod parsers;
