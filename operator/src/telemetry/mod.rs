//! What the operator tells about itself: logs, metrics, and how fresh its view of the cluster is.
//!
//! Owns their names and formats. Must not know what the rest of the operator does.

mod freshness;
mod gateway;
mod logs;
mod metrics;

pub use freshness::{Freshness, FreshnessLayer, WATCH_TIMEOUT};
pub use gateway::{Ending, GatewayMetrics, WakeResult};
pub use logs::{LogFormat, start_logs};
pub use metrics::{CallResult, Kind, Metrics, Outcome, Verb};
