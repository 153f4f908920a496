//! What the operator remembers of a workspace between two decisions. All of it may be lost at a restart.

use jiff::Timestamp;

use crate::plan::{Activity, AgentReadiness, ChildKind, WriteFailure};

/// Remembered for one life (UID) of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The last refused write of a child, with the generation it was made for and how often in a row.
    pub write_failure: Option<RememberedFailure>,
    /// The last answer of the pod's `/ready`.
    pub agent_readiness: Option<AgentReadiness>,
    /// The pod that was created for the present start. Forgotten when it is deleted by us or its end is recorded: until then its
    /// absence means that somebody else took it.
    pub created_pod: Option<String>,
    /// The agent's last answer to the question of an idle stop.
    pub activity: Option<Activity>,
    /// Version of the workspace whose write came too late: nothing is written until the watch brings another one.
    pub conflicted_version: Option<u64>,
}

/// A refused write.
#[derive(Clone, Debug)]
pub struct RememberedFailure {
    /// What decisions see.
    pub failure: WriteFailure,
    /// `metadata.generation` at that time: another spec is another attempt.
    pub generation: i64,
    /// Refusals in a row.
    pub count: u32,
}

impl Memory {
    /// A write of this child succeeded.
    pub fn write_succeeded(&mut self, child: ChildKind) {
        if self.write_failure.as_ref().is_some_and(|remembered| remembered.failure.child == child) {
            self.write_failure = None;
        }
    }

    /// A write was refused; `retry_at` is computed from the count by the caller.
    pub fn write_refused(&mut self, failure: WriteFailure, generation: i64) {
        let count = self.failures_in_a_row(failure.child) + 1;
        self.write_failure = Some(RememberedFailure { failure, generation, count });
    }

    /// Refusals of this child in a row so far.
    pub fn failures_in_a_row(&self, child: ChildKind) -> u32 {
        self.write_failure
            .as_ref()
            .filter(|remembered| remembered.failure.child == child)
            .map_or(0, |remembered| remembered.count)
    }

    /// What still holds for this generation and this pod.
    pub fn refresh(&mut self, generation: i64, pod_uid: Option<&str>) {
        if self.write_failure.as_ref().is_some_and(|remembered| remembered.generation != generation) {
            self.write_failure = None;
        }
        if self.agent_readiness.as_ref().is_some_and(|answer| Some(answer.pod_uid.as_str()) != pod_uid) {
            self.agent_readiness = None;
        }
        if self.activity.as_ref().is_some_and(|activity| Some(activity.pod_uid.as_str()) != pod_uid) {
            self.activity = None;
        }
    }
}

/// The pause after the `count`-th refusal in a row: 5 s doubled each time, at most 5 min. `spread` in 0…1 adds up to a fifth,
/// so that many workspaces refused by the same quota do not come back in step.
pub fn backoff(count: u32, spread: f64) -> jiff::SignedDuration {
    let seconds = (5_u64 << count.saturating_sub(1).min(6)).min(300);
    let milliseconds = seconds * 1000;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let extra = (milliseconds as f64 * 0.2 * spread.clamp(0.0, 1.0)) as u64;
    jiff::SignedDuration::from_millis(i64::try_from(milliseconds + extra).unwrap_or(i64::MAX))
}

/// `now` plus the pause.
pub fn retry_at(now: Timestamp, count: u32, spread: f64) -> Timestamp {
    now.checked_add(backoff(count, spread)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_from_five_seconds_to_five_minutes() {
        let seconds: Vec<i64> = (1..=9).map(|count| backoff(count, 0.0).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(backoff(1, 1.0).as_millis(), 6000);
        assert_eq!(backoff(u32::MAX, 0.0).as_secs(), 300);
    }
}
