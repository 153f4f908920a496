//! Tests across modules.

mod parsers;
