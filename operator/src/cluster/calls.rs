//! One bounded, counted call.

use std::{future::Future, sync::Arc, time::Duration};

use crate::telemetry::{CallResult, Kind, Metrics, Verb};

use super::ClusterError;

/// A read of one object or of the few events of one pod is served from the API server's cache or one etcd range.
pub const READ_LIMIT: Duration = Duration::from_secs(5);
/// A write passes admission; webhooks of others may take up to 10 s by default, and failing before they do helps nobody.
pub const WRITE_LIMIT: Duration = Duration::from_secs(12);

/// Runs calls: each ends within its limit and is counted once.
#[derive(Clone, Debug)]
pub struct Calls {
    metrics: Arc<Metrics>,
}

impl Calls {
    /// Counts into `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    /// Awaits `call` for at most the limit of its verb.
    pub async fn run<T>(
        &self,
        kind: Kind,
        verb: Verb,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        let limit = match verb {
            Verb::Get | Verb::List => READ_LIMIT,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => WRITE_LIMIT,
        };
        self.run_within(limit, kind, verb, call).await
    }

    /// Awaits `call` for at most `limit`.
    pub async fn run_within<T>(
        &self,
        limit: Duration,
        kind: Kind,
        verb: Verb,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        let result = match tokio::time::timeout(limit, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(ClusterError::new(kind, verb, error)),
            Err(_) => Err(ClusterError::TimedOut { kind, verb, limit }),
        };
        let label = result.as_ref().map_or_else(ClusterError::result, |_| CallResult::Ok);
        self.metrics.called(kind, verb, label);
        result
    }
}
