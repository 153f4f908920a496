//! Logs and metrics: where they go and what is counted for every route.
//!
//! Owns the metric registry and the log format. Must not know routes, sessions or tools; other parts register their
//! own families with [`Metrics::register`]. Labels come from route templates and enums only, never from names,
//! paths or messages.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Starts logging to standard error. Standard output belongs to the two lines that say where the server listens.
pub fn start_logging(config: &LogConfig) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.filter).map_err(|error| format!("log filter: {error}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(false).try_init(),
    };
    started.map_err(|error| format!("log: {error}"))
}

/// A route template such as `/api/v1/files`; a small fixed set, so it may be a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route(pub Arc<str>);

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        self.0.as_ref().encode(encoder)
    }
}

/// Labels of a request counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Route template; `unmatched` for everything else.
    pub route: Route,
    /// Method; `OTHER` for anything unusual.
    pub method: &'static str,
    /// Status code.
    pub status: u16,
}

/// Labels of a request duration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// Route template.
    pub route: Route,
}

/// 0.5 ms to 16 s in factors of about 3: 10 buckets per route.
fn request_seconds() -> Histogram {
    Histogram::new([0.0005, 0.0015, 0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0, 16.0])
}

/// What is counted.
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Requests by route, method and status.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds until the response head.
    pub request_seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Open connections on the HTTP port.
    pub connections: Gauge,
    /// Connections refused because the limit was reached.
    pub connections_refused: Counter,
    memory: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The registry with the families of this module.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("agent");
        let requests = Family::default();
        let durations = Family::new_with_constructor(request_seconds as fn() -> Histogram);
        let (connections, refused, memory) = (Gauge::default(), Counter::default(), Gauge::default());
        registry.register("http_requests", "Requests by route, method and status", requests.clone());
        registry.register("http_request_seconds", "Seconds until the response head", durations.clone());
        registry.register("http_connections", "Open connections", connections.clone());
        registry.register("http_connections_refused", "Connections refused at the limit", refused.clone());
        registry.register("process_resident_memory_bytes", "Resident memory of the server", memory.clone());
        Self {
            registry: Mutex::new(registry),
            requests,
            request_seconds: durations,
            connections,
            connections_refused: refused,
            memory,
        }
    }

    /// Registers families of another part, under the common prefix `agent_`.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The text of `GET /metrics`.
    pub fn render(&self) -> String {
        self.memory.set(i64::try_from(resident_bytes().unwrap_or(0)).unwrap_or(i64::MAX));
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = encode(&mut text, &registry) {
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }
}

/// Resident memory of this process in bytes, from the kernel's own account; `None` where there is none.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::{Metrics, RequestLabels, Route};

    #[test]
    fn metrics_are_rendered_with_their_labels_and_the_process_memory() {
        let metrics = Metrics::new();
        metrics
            .requests
            .get_or_create(&RequestLabels { route: Route("/api/v1/files".into()), method: "GET", status: 200 })
            .inc();
        let text = metrics.render();
        assert!(
            text.contains("agent_http_requests_total{route=\"/api/v1/files\",method=\"GET\",status=\"200\"} 1\n"),
            "{text}"
        );
        let memory = text.lines().find_map(|line| line.strip_prefix("agent_process_resident_memory_bytes "));
        assert!(memory.and_then(|value| value.parse::<u64>().ok()).is_some_and(|bytes| bytes > 1 << 20), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
