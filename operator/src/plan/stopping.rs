//! From the decision to stop until the pod is gone, and what a workspace without a pod says.

use jiff::Timestamp;

use crate::crd::{ConditionType, LastStop, Phase, Reason, StopActor, StopReason};

use super::{
    Config, Drain, LookUp, Observed, Plan, PodDeletion, PodView, Seen, Valid,
    ending::{Overdue, overdue},
    lifecycle::{begin, close},
    run_state::{Rest, Run, is_on},
    status::{Draft, Progress, Truth, after},
    storage,
    valid::{self, Life},
};

/// What an idle agent was asked is the least time without use.
fn last_activity(life: &Life, now: Timestamp) -> Option<Timestamp> {
    life.idle_timeout_seconds.map(|seconds| after(now, -seconds))
}

/// The workspace is to have no pod. `valid` is `None` when the rest of the spec cannot be used.
pub(super) fn off(
    config: &Config,
    observed: &Observed,
    valid: Option<&Valid>,
    life: &Life,
    run: &Run,
    stop: (StopReason, Rest),
    now: Timestamp,
) -> Plan {
    let (reason, rest) = stop;
    let status = &observed.workspace.status;
    let mut draft = begin(config, observed, Some(run), now);
    let mut plan = Plan::default();
    let stopping = status.phase == Some(Phase::Stopping);
    let pod = match &observed.pod {
        Seen::Ours(pod) => Some(pod),
        Seen::Missing | Seen::Unconfirmed | Seen::Foreign(_) => None,
    };
    if is_on(status) || (pod.is_some() && !stopping) {
        let by = match reason {
            StopReason::RunPolicy | StopReason::User => StopActor::User,
            _ => StopActor::Operator,
        };
        draft.new.last_stop = Some(LastStop { at: draft.time(), reason, by });
        draft.new.settled_transition = run.settled;
        if reason == StopReason::Idle {
            draft.new.last_activity_time = last_activity(life, now).map(super::status::seconds);
        }
    }
    draft.new.pod = None;
    match pod {
        Some(pod) => {
            if stopping && !pod.deleting {
                plan.drain = drain(life, pod);
                plan.delete_pod = Some(PodDeletion {
                    name: valid::agent_name(&observed.workspace.name),
                    uid: pod.uid.clone(),
                    grace_seconds: None,
                });
            }
            draft.new.phase = Some(Phase::Stopping);
            match pod_going(&mut draft, observed, life, pod, now) {
                Ok(requeue_at) => plan.requeue_at = requeue_at,
                Err(question) => return Plan { look_up: vec![question], ..Plan::default() },
            }
        }
        None => stopped(&mut draft, rest),
    }
    if let Some(valid) = valid {
        storage::while_off(&mut draft, valid, observed);
        // Whether the claim outlives the workspace may be changed at any time; nothing is created while off.
        if let Some(claim) = storage::changed_claim(valid, observed)
            && observed.write_failure.as_ref().is_none_or(|failure| failure.retry_at <= now)
        {
            plan.apply.push(claim);
        }
    }
    close(draft, plan)
}

fn pod_going(
    draft: &mut Draft<'_>,
    observed: &Observed,
    life: &Life,
    pod: &PodView,
    now: Timestamp,
) -> Result<Option<Timestamp>, LookUp> {
    Ok(match overdue(observed, pod, now)? {
        Overdue::Since { reason, message, again } => {
            draft.not_ready(reason, &message);
            draft.progress(Progress::Stalled(reason, message));
            Some(again)
        }
        Overdue::From(time) => {
            let why = draft.new.last_stop.as_ref().map_or(StopReason::RunPolicy, |stop| stop.reason);
            let message = format!("{}; the pod is being stopped", because(why, life));
            draft.not_ready(Reason::Stopping, &message);
            draft.progress(Progress::Converging(Reason::Stopping, message));
            time
        }
    })
}

/// Why it stops, as a sentence begins.
fn because(reason: StopReason, life: &Life) -> String {
    match reason {
        StopReason::RunPolicy => "spec.runPolicy is Stopped".to_owned(),
        StopReason::Failure => "the spec cannot be used any more".to_owned(),
        StopReason::User => "a stop was asked for".to_owned(),
        StopReason::Idle => match life.idle_timeout_seconds {
            Some(seconds) => {
                format!(
                    "nobody has used it for {seconds} s (spec.lifecycle.idleTimeoutSeconds), its agent did not say for {} s, or no start succeeded",
                    life.max_busy_seconds
                )
            }
            None => "nobody has used it".to_owned(),
        },
        StopReason::Schedule => "the time of a scheduled stop has come (spec.lifecycle.schedules)".to_owned(),
        StopReason::MaxRun => "the longest run is over (spec.lifecycle.maxRunSeconds)".to_owned(),
        StopReason::Expired => "it has expired (spec.lifecycle.expiresAt)".to_owned(),
    }
}

fn stopped(draft: &mut Draft<'_>, rest: Rest) {
    let (reason, message) = match rest {
        Rest::RunPolicy => (Reason::Stopped, "spec.runPolicy is Stopped; set it to OnDemand or Always to start"),
        Rest::Requested => (Reason::Stopped, "stopped on request; only an explicit start begins it again"),
        Rest::Expired => (Reason::Stopped, "spec.lifecycle.expiresAt has passed; set a later time to start"),
        Rest::Sleeping => (Reason::Sleeping, "asleep; the next request starts it"),
    };
    let phase = rest.phase();
    // The time to live counts from here, also when it slept before or never ran.
    if phase == Phase::Stopped && !matches!(draft.new.phase, Some(Phase::Stopping | Phase::Stopped)) {
        let (reason, by) = match rest {
            Rest::Expired => (StopReason::Expired, StopActor::Operator),
            Rest::Requested => (StopReason::User, StopActor::User),
            Rest::RunPolicy | Rest::Sleeping => (StopReason::RunPolicy, StopActor::User),
        };
        draft.new.last_stop = Some(LastStop { at: draft.time(), reason, by });
    }
    draft.new.phase = Some(phase);
    draft.new.isolation = None;
    draft.new.started_at = None;
    draft.set(ConditionType::Ready, Truth::True, reason, message);
    draft.set(ConditionType::Running, Truth::False, reason, message);
    for kind in [ConditionType::SandboxReady, ConditionType::AgentReady] {
        draft.set(kind, Truth::Unknown, reason, "known while the workspace runs");
    }
    draft.remove(ConditionType::UpdateAvailable);
    draft.progress(Progress::Settled);
}

/// A server that never answered, or has ended, needs no drain.
fn drain(life: &Life, pod: &PodView) -> Option<Drain> {
    // The server keeps 5 seconds of the grace period for itself (docs/contract.md).
    let grace_seconds = life.stop_grace_period_seconds.saturating_sub(5);
    let ip = pod.ip.clone().filter(|_| pod.ready)?;
    Some(Drain { pod_uid: pod.uid.clone(), ip, grace_seconds })
}
