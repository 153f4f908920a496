//! A pod that is Ready, or was.

use jiff::Timestamp;

use crate::crd::{ConditionType, FailurePolicy, Phase, PodReference, Reason};

use super::{
    AgentReadiness, LookUp, Plan, PodView, ReadinessReason,
    cause::{self, Finding},
    end::End,
    lifecycle::{Situation, close},
    starting::{HEALTHY_SECONDS, start_after},
    status::{Draft, Progress, Truth, after, condition, milliseconds_between, seconds, seconds_between},
    storage,
};

/// The server is asked how it is when its pod is this old, then at twice the age each time: what it only learns from use
/// (a key that the provider refuses) is seen soon after a start, and an old workspace costs next to nothing.
const FIRST_CHECK_SECONDS: i64 = 30;
/// Longest distance of two checks: 10,000 workspaces cost 2.8 calls a second.
const LONGEST_CHECK_SECONDS: i64 = 3600;
/// A check is due for this long after its time; the next decision asks then, and not each one.
const CHECK_WINDOW_SECONDS: i64 = 20;

/// A pod that lost its readiness is looked at again this often, since what keeps it may change without a notice.
const UNREADY_LOOK_SECONDS: i64 = 60;

/// A Service that was missing is looked for again this often.
const MODEL_SERVICE_LOOK_SECONDS: i64 = 60;

/// Whether the status is about this pod.
pub(super) fn is_current(situation: &Situation<'_>, pod: &PodView) -> bool {
    situation.status().pod.as_ref().is_some_and(|known| known.uid == pod.uid)
}

/// The pod is Ready.
pub(super) fn pod_ready(situation: &Situation<'_>, pod: &PodView) -> Plan {
    let current = situation.status().phase == Some(Phase::Running) && is_current(situation, pod);
    let answer = situation.observed.agent_readiness.as_ref().filter(|answer| answer.pod_uid == pod.uid);
    let due = if current {
        check_due(situation, pod, answer)
    } else {
        // What it said just before came from a pod that was not Ready: that it could not be reached, or nothing of its isolation.
        answer.is_none_or(|answer| answer.asked_at != situation.now)
    };
    if let (true, Some(ip)) = (due, &pod.ip) {
        return Plan {
            look_up: vec![LookUp::AgentReadiness { pod_uid: pod.uid.clone(), ip: ip.clone() }],
            ..Plan::default()
        };
    }
    let mut draft = situation.draft();
    if !current {
        arrived(&mut draft, situation, pod);
    }
    report(&mut draft, situation, pod, answer);
    let healthy_at = forget_failures(&mut draft, situation);
    let next_check = after(ready_since(pod), next_check_seconds(seconds_between(ready_since(pod), situation.now)));
    // Services of others are not watched.
    let look = situation.model_pods().is_err().then(|| after(situation.now, MODEL_SERVICE_LOOK_SECONDS));
    let requeue_at = [Some(next_check), healthy_at, look].into_iter().flatten().min();
    close(draft, Plan { requeue_at, ..Plan::default() })
}

fn ready_since(pod: &PodView) -> Timestamp {
    pod.ready_since.unwrap_or(pod.created)
}

/// 30, 60, 120, … 1,920, then every 3,600 seconds; the first that lies after `age`.
fn next_check_seconds(age: i64) -> i64 {
    let mut next = FIRST_CHECK_SECONDS;
    while next <= age {
        next += next.min(LONGEST_CHECK_SECONDS);
    }
    next
}

/// Whether the time of a check has just passed and nobody asked since.
fn check_due(situation: &Situation<'_>, pod: &PodView, answer: Option<&AgentReadiness>) -> bool {
    let since = ready_since(pod);
    let age = seconds_between(since, situation.now);
    let mut last = 0;
    while next_check_seconds(last) <= age {
        last = next_check_seconds(last);
    }
    let asked = answer.is_some_and(|answer| answer.asked_at >= after(since, last));
    last > 0 && age - last < CHECK_WINDOW_SECONDS && !asked
}

/// The moment of readiness.
fn arrived(draft: &mut Draft<'_>, situation: &Situation<'_>, pod: &PodView) {
    draft.new.phase = Some(Phase::Running);
    draft.new.started_at = Some(seconds(situation.now));
    draft.new.pod = Some(PodReference {
        name: situation.valid.agent_name(),
        uid: pod.uid.clone(),
        node_name: pod.node_name.clone(),
        ip: pod.ip.clone(),
    });
    if let Some(start) = &mut draft.new.last_start {
        start.ready_after_milliseconds = Some(milliseconds_between(start.requested_at.0, situation.now));
    }
}

fn report(draft: &mut Draft<'_>, situation: &Situation<'_>, pod: &PodView, answer: Option<&AgentReadiness>) {
    let took = draft.new.last_start.as_ref().and_then(|start| start.ready_after_milliseconds);
    let place = pod.node_name.as_deref().unwrap_or("its node");
    let message = match took {
        Some(took) => {
            format!("the pod is ready on {place}, {}.{:03} s after the start was decided", took / 1000, took % 1000)
        }
        None => format!("the pod is ready on {place}"),
    };
    draft.set(ConditionType::Ready, Truth::True, Reason::Running, &message);
    draft.set(ConditionType::Running, Truth::True, Reason::Running, &message);
    situation.valid.sandbox.report(draft, answer.and_then(|answer| answer.isolation.as_ref()));
    agent_ready(draft, situation, answer);
    storage::while_running(draft, situation);
    draft.new.rendered_revision = Some(situation.revision.clone());
    if pod.revision.as_deref() == Some(situation.revision.as_str()) {
        draft.remove(ConditionType::UpdateAvailable);
    } else {
        draft.set(
            ConditionType::UpdateAvailable,
            Truth::True,
            Reason::RevisionChanged,
            "the spec or the operator's settings changed since the start; set spec.runPolicy to Stopped and back to Always to apply them",
        );
    }
    draft.progress(match &situation.observed.write_failure {
        Some(failure) => Progress::Stalled(
            failure.kind.reason(),
            format!("{} cannot be written: {}", failure.child.as_str(), cause::quote(&failure.message)),
        ),
        None => Progress::Settled,
    });
}

/// AgentReady from what the server said; without an answer what was known stays.
fn agent_ready(draft: &mut Draft<'_>, situation: &Situation<'_>, answer: Option<&AgentReadiness>) {
    let has = |reason| answer.is_some_and(|answer| answer.reasons.contains(&reason));
    if has(ReadinessReason::ModelKeyRejected) {
        let secret = situation.valid.model_key.as_ref().map_or("its secret", |secret| secret.name.as_str());
        let message = format!("the model provider refuses the key; put a valid one into secret {secret}");
        draft.set(ConditionType::AgentReady, Truth::False, Reason::ModelKeyRejected, message);
    } else if let Err(message) = situation.model_pods() {
        draft.set(ConditionType::AgentReady, Truth::False, Reason::ModelEndpointUnusable, message);
    } else if situation.valid.lacks_model_key() || has(ReadinessReason::ModelKeyMissing) {
        model_key_missing(draft);
    } else {
        let known = condition(&draft.new, ConditionType::AgentReady).is_some_and(|known| known.status != "Unknown");
        let unanswered = answer.is_none_or(|answer| answer.reasons.contains(&ReadinessReason::Unreachable));
        if !(known && unanswered) {
            draft.set(ConditionType::AgentReady, Truth::True, Reason::Available, "the agent server reports no problem");
        }
    }
}

/// AgentReady before there is a server to ask.
pub(super) fn agent_ready_before_start(draft: &mut Draft<'_>, situation: &Situation<'_>) {
    if let Err(message) = situation.model_pods() {
        draft.set(ConditionType::AgentReady, Truth::False, Reason::ModelEndpointUnusable, message);
    } else if situation.valid.lacks_model_key() {
        model_key_missing(draft);
    } else {
        draft.set(ConditionType::AgentReady, Truth::Unknown, Reason::Pending, "known when the pod is ready");
    }
}

fn model_key_missing(draft: &mut Draft<'_>) {
    let message =
        "files and history work, chat does not: add a credential with purpose ModelKey to spec.agent.credentials";
    draft.set(ConditionType::AgentReady, Truth::False, Reason::ModelKeyMissing, message);
}

/// Ten healthy minutes close the book on earlier failures. Returns when that will be.
fn forget_failures(draft: &mut Draft<'_>, situation: &Situation<'_>) -> Option<Timestamp> {
    let healthy_at = after(draft.new.started_at.as_ref()?.0, HEALTHY_SECONDS);
    let start = draft.new.last_start.as_mut()?;
    start.failures?;
    if healthy_at > situation.now {
        return Some(healthy_at);
    }
    start.failures = None;
    None
}

/// Since when the status says so: by the operator's own clock, and not by that of the node.
fn unready_since(situation: &Situation<'_>) -> Timestamp {
    condition(situation.status(), ConditionType::Ready)
        .filter(|ready| ready.status == "False")
        .map_or(situation.now, |ready| ready.last_transition_time.0)
}

/// The pod was Ready and is not now: said at once, since requests fail.
pub(super) fn pod_lost_readiness(situation: &Situation<'_>, pod: &PodView) -> Plan {
    let (reason, message, kind) = match cause::find(situation.observed, pod, situation.now) {
        Finding::AskEvents => {
            return Plan { look_up: vec![LookUp::PodEvents { pod_uid: pod.uid.clone() }], ..Plan::default() };
        }
        Finding::AskReadiness { ip } => {
            return Plan { look_up: vec![LookUp::AgentReadiness { pod_uid: pod.uid.clone(), ip }], ..Plan::default() };
        }
        Finding::Known(cause) => (cause.reason, cause.message, cause.condition),
        Finding::Waiting(message) => (Reason::NotReady, format!("the pod was ready and is not now: {message}"), None),
    };
    let timeout = situation.valid.life.unhealthy_timeout_seconds;
    let recreate = situation.valid.life.failure_policy == FailurePolicy::Recreate;
    let over = after(unready_since(situation), timeout);
    if recreate && over <= situation.now {
        return start_after(situation, &End::unresponsive(pod, timeout, &message));
    }
    let mut draft = situation.draft();
    draft.not_ready(reason, &message);
    if let Some(kind) = kind {
        draft.set(kind, Truth::False, reason, &message);
    }
    draft.progress(Progress::Converging(reason, message));
    let look = after(situation.now, UNREADY_LOOK_SECONDS);
    let requeue_at = Some(if recreate { look.min(over) } else { look });
    close(draft, Plan { requeue_at, ..Plan::default() })
}
