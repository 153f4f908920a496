//! The HTTP interface: what every handler shares, and the list of routes.
//!
//! Owns routes, framing and the order of checks on a request. Must not know a concrete workspace, sandbox or model:
//! handlers see traits and `App`.
//!
//! How a part adds routes:
//! 1. write handlers with `#[utoipa::path(...)]` that take `State(app): State<AppState>` and return [`ApiResult`];
//! 2. give the module a `pub fn routes() -> OpenApiRouter<AppState>` and merge it in `router::documented`;
//! 3. run `agent-server gen openapi > agent-server/openapi.json`.
//!
//! What a handler can rely on (`gate`): the caller is authenticated with the right scope, the workspace is not
//! draining, the request counts as use while it is answered unless it is on the list of background routes, a panic
//! becomes a 500 in the one error shape, `x-request-id` and security headers are set, the request is counted.
//! Read bodies with [`body::JsonBody`] or [`body::collect`], queries with [`body::Query`]: their faults have the one
//! shape too, and a client that stops sending is cut off. Event streams go through [`sse::response`].

pub mod auth;
pub mod body;
pub mod change;
pub mod chat;
pub mod chat_body;
pub mod chat_stream;
pub mod connection;
pub mod cross_origin;
pub mod error;
pub mod events;
pub mod files;
pub mod follow_up;
pub mod gate;
pub mod health;
pub mod lifecycle;
pub mod openapi;
pub mod parse_errors;
pub mod quiesce;
pub mod raw;
pub mod router;
pub mod runtime;
pub mod search;
pub mod server;
pub mod session_feed;
pub mod sessions;
pub mod settings;
pub mod sse;
pub mod starting;
pub mod tree;
pub mod ui;
pub mod upload;
pub mod write_limit;

use std::sync::Arc;
use std::time::Instant;

pub use error::{ApiError, ApiResult, Code};
pub use router::{metrics_router, router};

use crate::activity::Activity;
use crate::auth::Authenticator;
use crate::config::{Config, RuntimeMode};
use crate::quiesce::Quiesce;
use crate::readiness::Readiness;
use crate::sandbox::Sandbox;
use crate::session::Sessions;
use crate::shutdown::Shutdown;
use crate::telemetry::Metrics;
use crate::ui_bridge::UiBridge;
use crate::workspace::Workspace;

/// What handlers share. Composed in `lib.rs`; each part adds its own field there.
pub struct App {
    /// Settings.
    pub config: Arc<Config>,
    /// The pause for snapshots.
    pub quiesce: Arc<Quiesce>,
    /// Runtime mode that serves.
    pub mode: RuntimeMode,
    /// The mode that was wanted, and why it cannot be had, where another one serves.
    pub degraded: Option<(RuntimeMode, String)>,
    /// Files.
    pub workspace: Arc<dyn Workspace>,
    /// Commands.
    pub sandbox: Arc<dyn Sandbox>,
    /// Sessions and their turns.
    pub sessions: Arc<Sessions>,
    /// The bridge to the user interface.
    pub ui_bridge: Arc<UiBridge>,
    /// Use and drain.
    pub activity: Arc<Activity>,
    /// Readiness.
    pub readiness: Arc<Readiness>,
    /// What is closed at the end.
    pub shutdown: Arc<Shutdown>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Token verification.
    pub authenticator: Authenticator,
    /// Start of the process.
    pub started_at: Instant,
}

/// State of every handler.
pub type AppState = Arc<App>;

#[cfg(test)]
mod tests;
