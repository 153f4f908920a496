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
    /// Runtime mode.
    mode: &'static str,
    /// What the sandbox enforces.
    #[schema(value_type = IsolationReport)]
    isolation: crate::sandbox::Isolation,
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
    /// Kind of isolation.
    kind: String,
    /// One sentence per thing probed.
    probes: Vec<String>,
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
        mode: app.config.mode.as_str(),
        isolation: app.sandbox.isolation(),
        workspace_id: app.config.workspace_id.clone(),
        root: app.workspace.shown_root().to_string(),
        versions: Versions { server: env!("CARGO_PKG_VERSION") },
    })
}
