//! Metrics of the gateway. As in `metrics`: units are seconds, labels come from enums only.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Unit,
};

use super::Metrics;

/// How a request ended at the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Ending {
    /// The pod answered.
    Forwarded,
    /// The gateway's own routes.
    Own,
    /// No workspace was addressed, or the request is not acceptable.
    Rejected,
    /// Nobody was known.
    Unauthenticated,
    /// Somebody was known who may not, or there is no such workspace.
    Forbidden,
    /// The workspace does not serve, and the request does not wake it or waited in vain.
    NotServing,
    /// The pod broke off before its answer.
    PodFailed,
    /// A limit of the gateway.
    Overloaded,
    /// The API server could not be asked.
    Unavailable,
}

/// How a written wake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WakeResult {
    /// Written.
    Written,
    /// Another gateway was faster.
    Overtaken,
    /// Not written.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndingLabel {
    ending: Ending,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: WakeResult,
}

/// Health and files take a millisecond, a search tens, a chat answers its headers at once.
const UPSTREAM_BUCKETS: [f64; 9] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 60.0];
/// A start takes 1–3 s with everything there, minutes with a node to add.
const HOLD_BUCKETS: [f64; 9] = [0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 120.0];

/// The gateway's metrics.
#[derive(Debug)]
pub struct GatewayMetrics {
    requests: Family<EndingLabel, Counter>,
    wakes: Family<ResultLabel, Counter>,
    upstream: Histogram,
    holds: Histogram,
    held: Gauge,
    connections: Gauge,
    streams: Gauge,
}

impl GatewayMetrics {
    /// Registers everything with `metrics`.
    pub fn new(metrics: &Metrics) -> Self {
        let ours = Self {
            requests: Family::default(),
            wakes: Family::default(),
            upstream: Histogram::new(UPSTREAM_BUCKETS),
            holds: Histogram::new(HOLD_BUCKETS),
            held: Gauge::default(),
            connections: Gauge::default(),
            streams: Gauge::default(),
        };
        metrics.extend(|registry| {
            registry.register("requests", "Requests by how they ended", ours.requests.clone());
            registry.register("wakes", "Wakes by result of the write", ours.wakes.clone());
            let (name, help) = ("upstream_duration", "Time from a request to the headers of the pod's answer");
            registry.register_with_unit(name, help, Unit::Seconds, ours.upstream.clone());
            let (name, help) = ("hold_duration", "Time that a request waited for its workspace");
            registry.register_with_unit(name, help, Unit::Seconds, ours.holds.clone());
            registry.register("held_requests", "Requests that wait for their workspace now", ours.held.clone());
            registry.register("connections", "Open connections of callers", ours.connections.clone());
            registry.register("open_streams", "Open event streams and sockets", ours.streams.clone());
        });
        ours
    }

    /// One finished request.
    pub fn ended(&self, ending: Ending) {
        self.requests.get_or_create(&EndingLabel { ending }).inc();
    }

    /// Requests that ended so.
    pub fn requests(&self, ending: Ending) -> u64 {
        self.requests.get(&EndingLabel { ending }).map_or(0, |counter| counter.get())
    }

    /// One wake.
    pub fn woke(&self, result: WakeResult) {
        self.wakes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Wakes with this result.
    pub fn wakes(&self, result: WakeResult) -> u64 {
        self.wakes.get(&ResultLabel { result }).map_or(0, |counter| counter.get())
    }

    /// A pod answered.
    pub fn answered(&self, took: Duration) {
        self.upstream.observe(took.as_secs_f64());
    }

    /// A request begins to wait.
    pub fn hold_began(&self) {
        self.held.inc();
    }

    /// A request waited.
    pub fn hold_ended(&self, took: Duration) {
        self.held.dec();
        self.holds.observe(took.as_secs_f64());
    }

    /// Requests that wait now.
    pub fn held(&self) -> i64 {
        self.held.get()
    }

    /// Connections of callers, changed by one.
    pub fn connection_opened(&self) {
        self.connections.inc();
    }

    /// The other half of [`GatewayMetrics::connection_opened`].
    pub fn connection_closed(&self) {
        self.connections.dec();
    }

    /// Open streams.
    pub fn streams(&self, count: usize) {
        self.streams.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
