//! Doubles.
