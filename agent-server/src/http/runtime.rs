//! `GET /api/v1/runtime`: the runtime mode and what really separates commands from the server.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(runtime))
}

/// Answer of `GET /api/v1/runtime`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReport {
    /// Runtime mode that serves.
    mode: &'static str,
    /// Set if another mode was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<DegradedReport>,
    /// What the sandbox enforces.
    #[schema(value_type = IsolationReport)]
    isolation: crate::sandbox::Isolation,
    /// What commands may use.
    #[schema(value_type = Option<LimitsReport>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<crate::sandbox::limits::Limits>,
    /// Id of the workspace.
    workspace_id: String,
    /// Root of the files as commands see it.
    root: String,
    /// Versions.
    versions: Versions,
}

/// What the sandbox enforces, as probed at start.
#[derive(Debug, Serialize, ToSchema)]
pub struct IsolationReport {
    /// Kind of isolation: `Bubblewrap`, `Landlock`, `DirectWithLandlockLayer` or `None`.
    kind: String,
    /// Network of commands: `Inherit` or `Isolated`.
    network: String,
    /// One sentence per thing probed.
    probes: Vec<String>,
}

/// A mode serves in place of the wanted one, as the configuration permits.
#[derive(Debug, Serialize, ToSchema)]
pub struct DegradedReport {
    /// The mode that was wanted.
    from: &'static str,
    /// Why it cannot be had.
    reason: String,
}

/// What commands may use.
#[derive(Debug, Serialize, ToSchema)]
pub struct LimitsReport {
    /// Each command.
    command: CommandLimitsReport,
    /// All commands together.
    workspace: WorkspaceLimitsReport,
}

/// What one command may use.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandLimitsReport {
    /// Processes.
    processes: u64,
    /// Private memory in bytes; null where the machine does not tell its size.
    memory_bytes: Option<u64>,
    /// Largest file in bytes.
    file_size_bytes: u64,
    /// Output in bytes.
    output_bytes: u64,
}

/// What all commands may use together.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceLimitsReport {
    /// Processes.
    processes: u64,
    /// Private memory in bytes; null where the machine does not tell its size.
    memory_bytes: Option<u64>,
}

/// Versions of the parts.
#[derive(Debug, Serialize, ToSchema)]
pub struct Versions {
    /// The server.
    server: &'static str,
}

/// Mode, isolation and versions.
#[utoipa::path(get, path = "/api/v1/runtime", tag = "runtime", responses((status = 200, body = RuntimeReport)))]
async fn runtime(State(app): State<AppState>) -> Json<RuntimeReport> {
    Json(RuntimeReport {
        mode: app.mode.as_str(),
        degraded: app
            .degraded
            .as_ref()
            .map(|(from, reason)| DegradedReport { from: from.as_str(), reason: reason.clone() }),
        isolation: app.sandbox.isolation(),
        limits: app.sandbox.limits(),
        workspace_id: app.config.workspace_id.clone(),
        root: app.workspace.shown_root().to_string(),
        versions: Versions { server: env!("CARGO_PKG_VERSION") },
    })
}
