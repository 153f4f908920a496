//! The agent server as a library. The composition root (the only file that names concrete adapters together) is here.

pub mod activity;
pub mod auth;
pub mod catalog;
pub mod config;
pub mod http;
pub mod llm;
pub mod readiness;
pub mod sandbox;
pub mod shutdown;
pub mod telemetry;
pub mod workspace;
