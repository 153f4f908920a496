//! How long the stages of a start took, from what the pod says of itself. Times of other machines, to the second: good for a
//! dashboard, not for a decision.

use jiff::Timestamp;

use super::{PodView, status::milliseconds_between};

/// Words of the stages, in order.
pub const STAGES: [&str; 5] = ["pod", "schedule", "network", "container", "ready"];

/// Milliseconds of each stage that is known: decision → pod object → node → volumes and network → container runs → Ready.
pub fn start_stages(requested_at: Timestamp, pod: &PodView) -> Vec<(&'static str, i64)> {
    let reached = [Some(pod.created), pod.stages.scheduled, pod.stages.network, pod.stages.container, pod.ready_since];
    let mut before = requested_at;
    let mut stages = Vec::new();
    for (stage, at) in STAGES.into_iter().zip(reached) {
        // A stage that is not known is part of the next one.
        let Some(at) = at else { continue };
        stages.push((stage, milliseconds_between(before, at)));
        before = at.max(before);
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{
        PodStages,
        tests::{at, fresh, pending_pod, ready},
    };

    #[test]
    fn stages_follow_each_other_and_an_unknown_one_is_part_of_the_next() {
        let observed = fresh(serde_json::json!({}));
        let mut pod = ready(pending_pod(&observed, "pod-1", at(1)), at(9));
        let second = |seconds| Some(super::super::status::seconds(at(seconds)).0);
        pod.stages = PodStages { scheduled: second(2), network: None, container: second(6) };
        let requested = super::super::status::seconds(at(0)).0;
        assert_eq!(
            start_stages(requested, &pod),
            [("pod", 1000), ("schedule", 1000), ("container", 4000), ("ready", 3000)]
        );
    }
}
