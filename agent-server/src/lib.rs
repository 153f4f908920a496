//! The agent server as a library. The composition root (the only file that names concrete adapters together) is here.

pub mod catalog;
pub mod llm;
pub mod sandbox;
pub mod workspace;
