//! The list of routes: one place from which both the router and the `OpenAPI` document are made.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Uri};
use axum::routing::get;
use axum::{Router, middleware};
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use super::error::{ApiError, Code};
use super::{
    AppState, auth, change, chat, chat_stream, cross_origin, events, files, follow_up, gate, health, lifecycle,
    openapi, quiesce, raw, runtime, search, sessions, settings, tree, ui, upload,
};

use crate::telemetry::Metrics;

/// Media type of the metrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every documented route. Parts merge their own `routes()` here.
pub fn documented() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .merge(health::routes())
        .merge(lifecycle::routes())
        .merge(runtime::routes())
        .merge(chat::routes())
        .merge(chat_stream::routes())
        .merge(follow_up::routes())
        .merge(sessions::routes())
        .merge(openapi::routes())
        .merge(files::routes())
        .merge(raw::routes())
        .merge(upload::routes())
        .merge(change::routes())
        .merge(tree::routes())
        .merge(search::routes())
        .merge(events::routes())
        .merge(ui::routes())
        .merge(settings::routes())
        .merge(auth::routes())
        .merge(quiesce::routes())
}

/// The router with its gate, ready to serve.
pub fn router(app: AppState) -> Router {
    let (router, _document) = documented().split_for_parts();
    let cross_origin = cross_origin::layer(&app.config.allowed_origins);
    let router = router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), gate::gate))
        .with_state(app);
    match cross_origin {
        Some(layer) => router.layer(layer),
        None => router,
    }
}

/// The router of the metrics port: one route, no token.
pub fn metrics_router(metrics: Arc<Metrics>) -> Router {
    let render = move || async move { ([(CONTENT_TYPE, OPEN_METRICS)], metrics.render()) };
    Router::new().route("/metrics", get(render)).fallback(not_found).method_not_allowed_fallback(method_not_allowed)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(Code::NotFound, format!("no route {}", printable(uri.path())))
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} is not a method of {}", printable(method.as_str()), printable(uri.path()));
    ApiError::new(Code::MethodNotAllowed, message)
}

/// At most 200 bytes of what the client sent, which is ASCII as the parser guarantees.
fn printable(text: &str) -> &str {
    text.get(..200).unwrap_or(text)
}
