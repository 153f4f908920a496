//! Replaces the key pairs while pods run. Only the leader does.
//!
//! Owns the rhythm: reads the Secret, sees which pods miss a key, hands them to the queue, and writes the step that is due. What
//! is due is decided in `trust::rotation`.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    cluster::{Caches, GatewayKeys, Keys, KeysError, StoredKeys, WorkspaceKey},
    telemetry::Metrics,
    trust::{
        Signer,
        rotation::{self, Progress, Step, Times},
    },
};

use super::queue::Queue;

/// Pods are patched at no more than 50/s: 10,000 of them in 200 s, beside whatever else the API server does.
const PAUSE_BETWEEN_PODS: Duration = Duration::from_millis(20);

/// What a rotation needs.
pub struct Rotation {
    /// The Secret.
    pub keys: Keys,
    /// That of the gateway, which gets its part of every change.
    pub gateway_keys: GatewayKeys,
    /// Who signs.
    pub signer: Signer,
    /// What pods carry.
    pub caches: Arc<Caches>,
    /// Who patches them.
    pub queue: Arc<Queue>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// How often things happen.
    pub times: Times,
}

impl Rotation {
    /// Looks again and again, until it is dropped.
    pub async fn run(self) {
        let mut patched_since = None;
        loop {
            if let Err(error) = self.look(&mut patched_since).await {
                let (reason, error) = (error.reason(), &error as &dyn std::error::Error);
                tracing::warn!(reason, error, "the key pairs were not looked at");
            }
            tokio::time::sleep(self.times.look).await;
        }
    }

    async fn look(&self, patched_since: &mut Option<Timestamp>) -> Result<(), KeysError> {
        let stored = self.keys.read().await?;
        self.signer.replace(stored.ring.clone());
        self.gateway_keys.write(&stored.ring).await?;
        let outdated = self.outdated();
        self.metrics.rotation(stage(stored.progress()), outdated.len());
        *patched_since = if outdated.is_empty() { patched_since.or_else(|| Some(Timestamp::now())) } else { None };
        self.hand_out(outdated).await;
        if self.step(&stored, *patched_since).await? {
            self.hand_out(self.outdated()).await;
        }
        Ok(())
    }

    async fn hand_out(&self, outdated: Vec<WorkspaceKey>) {
        for key in outdated {
            self.queue.add(key);
            tokio::time::sleep(PAUSE_BETWEEN_PODS).await;
        }
    }

    /// Takes the step that is due; false when none is.
    async fn step(&self, stored: &StoredKeys, patched_since: Option<Timestamp>) -> Result<bool, KeysError> {
        let now = Timestamp::now();
        let situation = rotation::Situation {
            progress: stored.progress(),
            since: stored.since(),
            requested: stored.requested(),
            patched_since,
            times: self.times,
        };
        let Some(step) = rotation::next(&situation, now) else { return Ok(false) };
        let stored = self.keys.advance(stored, step, now).await?;
        tracing::info!(?step, "a step of the key rotation was taken");
        self.metrics.rotated(word(step));
        self.gateway_keys.write(&stored.ring).await?;
        self.signer.replace(stored.ring);
        Ok(true)
    }

    /// Workspaces whose living pod does not carry the published keys. A pod of nobody, or of a former workspace, is not waited for.
    fn outdated(&self) -> Vec<WorkspaceKey> {
        let keys = self.signer.keys();
        let mut outdated = Vec::new();
        self.caches.pods.for_each(|key, pod| {
            if pod.view.lives() && pod.view.keys.as_ref() != Some(&keys.public) {
                outdated.push((key.clone(), pod.controller.as_ref().map(|controller| controller.uid.clone())));
            }
        });
        let ours = |key: &WorkspaceKey, uid: Option<String>| {
            self.caches.workspaces.get(key).is_some_and(|workspace| Some(workspace.uid) == uid)
        };
        outdated.into_iter().filter_map(|(key, uid)| ours(&key, uid).then_some(key)).collect()
    }
}

/// Number of a stage in metrics.
const fn stage(progress: Progress) -> i64 {
    match progress {
        Progress::Steady => 0,
        Progress::Announced => 1,
        Progress::Promoted => 2,
    }
}

/// Word of a step in metrics.
const fn word(step: Step) -> &'static str {
    match step {
        Step::Announce => "announce",
        Step::Promote => "promote",
        Step::Retire => "retire",
    }
}
