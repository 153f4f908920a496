//! Health, readiness and metrics of the operator.
//!
//! Owns three routes. Must not know the controller: what it shows is handed in.

use std::{future::Future, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::telemetry::{Freshness, Metrics};

/// `OpenMetrics` text, as Prometheus asks for it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the routes show.
#[derive(Clone)]
pub struct Shown {
    /// Everything counted.
    pub metrics: Arc<Metrics>,
    /// State of the watches and of the start.
    pub freshness: Arc<Freshness>,
    /// Sets gauges that are computed when somebody looks.
    pub refresh: Arc<dyn Fn(&Metrics) + Send + Sync>,
}

/// The routes.
pub fn router(shown: Shown) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown)
}

/// Serves until `stop` resolves.
pub async fn serve(
    listener: TcpListener,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(shown)).with_graceful_shutdown(stop).await
}

/// Ready means: every watch has listed, is not refused and not stale. A replica that waits for the Lease is ready.
async fn ready(State(shown): State<Shown>) -> Response {
    let problems = shown.freshness.problems();
    if problems.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response()
}

async fn metrics(State(shown): State<Shown>) -> Response {
    for (kind, age) in shown.freshness.ages() {
        shown.metrics.watch_age(kind, age);
    }
    (shown.refresh)(&shown.metrics);
    match shown.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::to_bytes, http::Request};
    use tower::ServiceExt;

    use super::*;
    use crate::telemetry::Kind;

    fn shown() -> Shown {
        let freshness = Arc::new(Freshness::new(&[Kind::Pod]));
        freshness.started();
        Shown {
            metrics: Arc::new(Metrics::new()),
            freshness,
            refresh: Arc::new(|metrics| metrics.workspaces("Running", 3)),
        }
    }

    async fn get_text(shown: &Shown, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let answer = router(shown.clone()).oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_waits_for_the_first_list_and_names_a_refused_watch() {
        let shown = shown();
        let (status, text) = get_text(&shown, "/readyz").await;
        assert_eq!((status.as_u16(), text.as_str()), (503, "watch of Pod: first list is not complete\n"));
        shown.freshness.listed(Kind::Pod);
        assert_eq!(get_text(&shown, "/readyz").await, (StatusCode::OK, "ok\n".to_owned()));
        assert!(shown.freshness.failed(Kind::Pod, "forbidden".to_owned()), "the first failure is news");
        assert!(!shown.freshness.failed(Kind::Pod, "forbidden".to_owned()), "the second is not");
        assert_eq!(get_text(&shown, "/readyz").await.1, "watch of Pod: forbidden\n");
        assert_eq!(get_text(&shown, "/healthz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_computed_when_they_are_read() {
        let (status, text) = get_text(&shown(), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("agent_workspace_operator_workspaces{phase=\"Running\"} 3"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
