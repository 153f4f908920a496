//! Leader election by a Lease: at most one replica acts.
//!
//! Owns the rules of the election and its thread. The thread has a runtime and a connection of its own, so that a busy or stuck
//! controller cannot delay a renewal; when a renewal is late all the same, the process ends, because another replica may act by
//! then. No clock of another machine is compared: a Lease has expired when it did not change for its duration on *our* clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::cluster::{ClusterError, Leases};

/// How long a Lease holds without renewal: what a crash of the leader costs.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this long ends its process, 5 s before anybody else may begin.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// A leader renews this often: five tries before the deadline.
pub const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// A follower looks this often, which bounds a handover: at most 1 s after the release, plus a write.
pub const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// One call of the election; two fit into the renewal deadline with room for pauses.
pub const CALL_LIMIT: Duration = Duration::from_secs(4);

/// Where this replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds the Lease.
    Leading,
    /// Somebody else does, or was faster.
    Following {
        /// Who, if known.
        holder: Option<String>,
    },
}

/// Why the election ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to: the Lease is released if it was held.
    Resigned,
    /// The Lease was lost: the process must end at once.
    Lost,
}

#[derive(Clone, Debug, PartialEq)]
struct Record {
    holder: Option<String>,
    renewed: Option<MicroTime>,
    transitions: Option<i32>,
}

/// One replica in the election.
#[derive(Debug)]
pub struct Candidate {
    leases: Leases,
    identity: String,
    /// The last record of somebody else, and since when it is unchanged on our clock.
    observed: Option<(Record, Instant)>,
}

impl Candidate {
    /// `identity` is the pod's name: unique among replicas.
    pub fn new(leases: Leases, identity: &str) -> Self {
        Self { leases, identity: identity.to_owned(), observed: None }
    }

    /// Takes part until `resign` is cancelled or the Lease is lost; `leading` follows the standing.
    pub async fn run(mut self, leading: &watch::Sender<bool>, resign: &CancellationToken) -> End {
        if !self.acquire(resign).await {
            return End::Resigned;
        }
        tracing::info!(lease = self.leases.name(), identity = %self.identity, "this replica leads");
        leading.send_replace(true);
        let end = self.hold(resign).await;
        leading.send_replace(false);
        if end == End::Resigned {
            self.release().await;
        }
        end
    }

    /// Until leading (true) or asked to resign (false).
    async fn acquire(&mut self, resign: &CancellationToken) -> bool {
        let mut last = None;
        loop {
            let step = tokio::select! {
                () = resign.cancelled() => return false,
                step = self.step() => step,
            };
            match step {
                Ok(Standing::Leading) => return true,
                Ok(Standing::Following { holder }) => {
                    if last.as_ref() != Some(&holder) {
                        tracing::info!(lease = self.leases.name(), holder, "another replica leads");
                        last = Some(holder);
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the leader election cannot reach its lease"
                    );
                }
            }
            tokio::select! {
                () = resign.cancelled() => return false,
                () = sleep(RETRY_PERIOD) => {}
            }
        }
    }

    /// Renews until asked to resign, or until a renewal is late.
    async fn hold(&mut self, resign: &CancellationToken) -> End {
        let mut deadline = Instant::now() + RENEW_DEADLINE;
        loop {
            tokio::select! {
                () = resign.cancelled() => return End::Resigned,
                () = sleep(RENEW_PERIOD) => {}
            }
            let began = Instant::now();
            match timeout_at(deadline, self.step()).await {
                Ok(Ok(Standing::Leading)) => deadline = began + RENEW_DEADLINE,
                Ok(Ok(Standing::Following { holder: Some(holder) })) => {
                    tracing::error!(lease = self.leases.name(), holder, "the lease was taken over");
                    return End::Lost;
                }
                // Somebody wrote between our look and our write; the next look tells who.
                Ok(Ok(Standing::Following { holder: None })) => {
                    tracing::warn!(lease = self.leases.name(), "the lease was written by somebody else");
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the lease was not renewed");
                }
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                tracing::error!(lease = self.leases.name(), "the lease was not renewed in time");
                return End::Lost;
            }
        }
    }

    /// One look at the Lease, and one write if it is ours, free or expired.
    pub async fn step(&mut self) -> Result<Standing, ClusterError> {
        let Some(lease) = self.leases.get().await? else {
            let fresh = Lease {
                metadata: ObjectMeta { name: Some(self.leases.name().to_owned()), ..ObjectMeta::default() },
                spec: Some(self.spec(None)),
            };
            return written(self.leases.create(&fresh).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        if let Some(other) = holder.filter(|holder| *holder != self.identity)
            && !self.expired(&spec)
        {
            return Ok(Standing::Following { holder: Some(other) });
        }
        let taken = Lease { spec: Some(self.spec(Some(&spec))), ..lease };
        written(self.leases.replace(&taken).await)
    }

    fn expired(&mut self, spec: &LeaseSpec) -> bool {
        let record = Record {
            holder: spec.holder_identity.clone(),
            renewed: spec.renew_time.clone(),
            transitions: spec.lease_transitions,
        };
        let duration = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE_DURATION, Duration::from_secs);
        match &self.observed {
            Some((known, since)) if *known == record => since.elapsed() >= duration,
            _ => {
                self.observed = Some((record, Instant::now()));
                false
            }
        }
    }

    fn spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let ours = old.is_some_and(|old| old.holder_identity.as_deref() == Some(&self.identity));
        let transitions = old.and_then(|old| old.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if ours { old.and_then(|old| old.acquire_time.clone()) } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours || old.is_none() { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }

    /// Empties the Lease, so that the next replica begins within one look instead of one Lease duration.
    async fn release(&self) {
        let result = async {
            let Some(mut lease) = self.leases.get().await? else { return Ok(()) };
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.identity) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.leases.replace(&lease).await.map(drop)
        };
        match result.await {
            Ok(()) => tracing::info!(lease = self.leases.name(), "the lease is released"),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lease was not released and runs out by itself"
                );
            }
        }
    }
}

/// A lost race is no error. For a leader it means that the Lease is somebody else's; the next look tells.
fn written(result: Result<Lease, ClusterError>) -> Result<Standing, ClusterError> {
    match result {
        Ok(_) => Ok(Standing::Leading),
        Err(ClusterError::Conflict { .. } | ClusterError::AlreadyExists { .. }) => {
            Ok(Standing::Following { holder: None })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
