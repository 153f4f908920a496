//! Observes reconciles by wrapping them: duration and outcome of each pass, one log line for each failure.
//!
//! Owns the translation of results into outcomes. Must not know what a pass does.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    reconcile::{Did, Done, ReconcileError, backoff},
    telemetry::{Metrics, Outcome},
};

/// A deadline that has passed when the pass ends is met a second later: should a decision name one in the past, that is no loop.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Counts one pass when it is dropped: also one that was cut short.
#[must_use]
pub struct Pass {
    metrics: Arc<Metrics>,
    began: Instant,
    outcome: Outcome,
}

impl Pass {
    /// The pass begins.
    pub fn begin(metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), began: Instant::now(), outcome: Outcome::Abandoned }
    }

    /// The pass ended; returns the pause until the next one, if there is to be one without a change. `errors` counts failed
    /// passes in a row before this one.
    pub fn end(
        mut self,
        workspace: &dyn std::fmt::Display,
        result: &Result<Done, ReconcileError>,
        errors: u32,
    ) -> Option<Duration> {
        match result {
            Ok(done) => {
                tracing::debug!(workspace = %workspace, did = ?done.did, again = ?done.again, "a reconcile ended");
                self.outcome = match done.did {
                    Did::Wrote => Outcome::Applied,
                    Did::Nothing => Outcome::Unchanged,
                    Did::Waits => Outcome::Waiting,
                };
                done.again.map(|again| {
                    Duration::try_from(again.duration_since(Timestamp::now())).unwrap_or_default().max(SHORTEST_PAUSE)
                })
            }
            Err(error) => {
                self.outcome = Outcome::Failed;
                let pause = Duration::try_from(backoff(errors + 1, rand::random())).unwrap_or_default();
                tracing::warn!(
                    workspace = %workspace, reason = error.reason(), retry_seconds = pause.as_secs(),
                    error = error as &dyn std::error::Error, "a reconcile failed"
                );
                Some(pause)
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.metrics.reconciled(self.outcome, self.began.elapsed());
    }
}
