//! From the decision to start until the pod is Ready, and from one failed pod to the next.

use jiff::Timestamp;

use crate::crd::{ConditionType, FailurePolicy, Phase, Reason, StartReason};

use super::{
    ChildKind, LookUp, Observed, Plan, PodView, WriteFailure,
    cause::{self, Cause, Finding, quote},
    children,
    end::End,
    ending::{Overdue, overdue},
    lifecycle::{Situation, announce_start, close},
    run_state::Wanted,
    running,
    status::{Draft, Progress, Truth, after, condition, has_reason, seconds_between},
    storage,
};

/// A healthy start is over by then; what takes longer is worth a word, and is looked at again at twice the age.
const FIRST_LOOK_SECONDS: i64 = 10;
/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE_SECONDS: i64 = 5;
/// Longest pause.
const LONGEST_PAUSE_SECONDS: i64 = 300;
/// A pod that was Ready this long ended for a new reason: failures are counted from one again.
pub(super) const HEALTHY_SECONDS: i64 = 600;
/// From this many failures in a row on a person is asked: with pauses of 5 and 10 s that is within a minute.
const CRASH_LOOP_FAILURES: i32 = 3;

/// There is no pod.
pub(super) fn no_pod(situation: &Situation<'_>) -> Plan {
    let status = situation.status();
    match status.phase {
        Some(Phase::Starting) => match lost_pod(situation.observed) {
            Some(uid) => start_after(situation, &End::vanished(Some(uid.to_owned()))),
            None => next_pod(situation),
        },
        Some(Phase::Running) => {
            let end = End::vanished(status.pod.as_ref().map(|pod| pod.uid.clone()));
            start_after(situation, &end)
        }
        _ => start(situation),
    }
}

/// The pod that was created for this start, when there is none now and its end was not recorded yet.
pub(super) fn lost_pod(observed: &Observed) -> Option<&str> {
    let ended = observed.workspace.status.last_termination.as_ref().and_then(|end| end.pod_uid.as_deref());
    observed.created_pod.as_deref().filter(|uid| Some(*uid) != ended)
}

/// A start was announced and its pod is to be created.
fn next_pod(situation: &Situation<'_>) -> Plan {
    let status = situation.status();
    if status.rendered_revision.as_deref() != Some(situation.revision.as_str()) {
        return start(situation);
    }
    if let Some((reason, message)) = storage::unusable(situation.observed, situation.valid) {
        return held(situation, reason, &message, Some(ConditionType::StorageReady), reason == Reason::VolumeLost);
    }
    if let Some(failure) = &situation.observed.write_failure {
        return refused(situation, failure);
    }
    if let Some(until) = pause_until(situation) {
        return close(quiet(situation), Plan { requeue_at: Some(until), ..Plan::default() });
    }
    let pod = children::pod(situation.valid, &situation.observed.token_keys);
    // An operator that was started anew does not know of the refusal: what the status says of it stays until the pod is there.
    let told_refusal = REFUSED.iter().any(|reason| has_reason(situation.status(), ConditionType::Ready, *reason));
    let draft = if told_refusal { situation.draft() } else { quiet(situation) };
    close(draft, Plan { create_pod: Some(pod), ..Plan::default() })
}

/// What a refused child says in Ready.
const REFUSED: [Reason; 4] =
    [Reason::QuotaExceeded, Reason::PodSecurityViolation, Reason::Forbidden, Reason::InvalidChild];

/// A child was refused; it is tried again when its time has come (see `lifecycle::on`), and the pod only when all others are there.
fn refused(situation: &Situation<'_>, failure: &WriteFailure) -> Plan {
    let kind = match (failure.child, failure.kind) {
        (ChildKind::Claim, _) => Some(ConditionType::StorageReady),
        (ChildKind::Pod, super::WriteFailureKind::PodSecurityViolation) => Some(ConditionType::SandboxReady),
        _ => None,
    };
    let plan = held(situation, failure.kind.reason(), &refusal(failure), kind, true);
    let create_pod =
        (failure.child == ChildKind::Pod).then(|| children::pod(situation.valid, &situation.observed.token_keys));
    Plan { create_pod, ..plan }
}

fn refusal(failure: &WriteFailure) -> String {
    let advice = match failure.kind {
        super::WriteFailureKind::QuotaExceeded => "lower spec.resources or raise the namespace's quota",
        super::WriteFailureKind::PodSecurityViolation => {
            "the namespace's pod security level refuses what spec.sandbox asks for; use another mode or procMount, or raise the level (docs/operations.md)"
        }
        super::WriteFailureKind::NamespaceTerminating => "the namespace is being deleted",
        super::WriteFailureKind::Forbidden => "an admission policy or the operator's permissions refuse it",
        super::WriteFailureKind::Invalid => "correct the spec",
    };
    format!("{} cannot be created, {advice}: {}", failure.child.as_str(), quote(&failure.message))
}

/// When the pause after the last failure ends, if that is still to come.
fn pause_until(situation: &Situation<'_>) -> Option<Timestamp> {
    let status = situation.status();
    let failures = status.last_start.as_ref().and_then(|start| start.failures).unwrap_or(0);
    let ended = status.last_termination.as_ref()?.at.0;
    let until = after(ended, pause_seconds(failures));
    (failures > 0 && until > situation.now).then_some(until)
}

/// 5, 10, 20, 40, 80, 160, 300, 300, … seconds.
pub(super) fn pause_seconds(failures: i32) -> i64 {
    match u32::try_from(failures) {
        Ok(0) | Err(_) => 0,
        // 2^6 × 5 s is beyond the longest pause already
        Ok(failures) => (FIRST_PAUSE_SECONDS << (failures - 1).min(6)).min(LONGEST_PAUSE_SECONDS),
    }
}

/// The pod is going and we want one: it is waited for.
pub(super) fn pod_ending(situation: &Situation<'_>, pod: &PodView) -> Plan {
    match situation.status().phase {
        // The start that was announced did not ask for this.
        Some(Phase::Starting) if !is_replaced(situation, pod) => start_after(situation, &End::taken_away(pod)),
        Some(Phase::Starting) => match overdue(situation.observed, pod, situation.now) {
            Err(question) => ask(question),
            Ok(Overdue::Since { reason, message, again }) => {
                Plan { requeue_at: Some(again), ..held(situation, reason, &message, None, true) }
            }
            Ok(Overdue::From(time)) => close(quiet(situation), Plan { requeue_at: time, ..Plan::default() }),
        },
        Some(Phase::Running) => start_after(situation, &End::taken_away(pod)),
        _ => start(situation),
    }
}

/// The pod was there when the present start was announced: it has to be gone first.
pub(super) fn is_replaced(situation: &Situation<'_>, pod: &PodView) -> bool {
    let start = situation.status().last_start.as_ref();
    situation.status().phase == Some(Phase::Starting)
        && start.and_then(|start| start.replaces_pod_uid.as_deref()) == Some(pod.uid.as_str())
}

/// It lives, and nothing becomes of it any more.
pub(super) fn pod_replaced(situation: &Situation<'_>, pod: &PodView) -> Plan {
    close(quiet(situation), Plan { delete_pod: Some(situation.pod_deletion(pod)), ..Plan::default() })
}

/// The pod ended by itself.
pub(super) fn pod_ended(situation: &Situation<'_>, pod: &PodView) -> Plan {
    let status = situation.status();
    let recorded = status.last_termination.as_ref().is_some_and(|end| end.pod_uid.as_deref() == Some(pod.uid.as_str()));
    if !recorded {
        let end = End::of(pod);
        // What a node did to the pod is no failure of the agent.
        let ignored = situation.valid.life.failure_policy == FailurePolicy::Ignore && end.start == StartReason::Failure;
        return if ignored { failed(situation, &end) } else { start_after(situation, &end) };
    }
    match status.phase {
        Some(Phase::Failed) => {
            let changed = status.rendered_revision.as_deref() != Some(situation.revision.as_str());
            if changed || situation.valid.life.failure_policy == FailurePolicy::Recreate {
                return start(situation);
            }
            close(quiet(situation), Plan::default())
        }
        Some(Phase::Starting) if status.rendered_revision.as_deref() == Some(situation.revision.as_str()) => {
            // The failed pod stays during the pause, so that its output can be read.
            match pause_until(situation) {
                Some(until) => close(quiet(situation), Plan { requeue_at: Some(until), ..Plan::default() }),
                None => {
                    close(quiet(situation), Plan { delete_pod: Some(situation.pod_deletion(pod)), ..Plan::default() })
                }
            }
        }
        _ => start(situation),
    }
}

/// The pod is there, not Ready, and nobody deletes it.
pub(super) fn pod_not_ready(situation: &Situation<'_>, pod: &PodView) -> Plan {
    let status = situation.status();
    match status.phase {
        Some(Phase::Running) if running::is_current(situation, pod) => running::pod_lost_readiness(situation, pod),
        Some(Phase::Starting) if status.rendered_revision.as_deref() != Some(situation.revision.as_str()) => {
            start(situation)
        }
        // A start that is not over takes up a changed spec at once: the user may just have repaired it.
        Some(Phase::Starting) if pod.revision.as_deref() != Some(situation.revision.as_str()) => {
            close(quiet(situation), Plan { delete_pod: Some(situation.pod_deletion(pod)), ..Plan::default() })
        }
        Some(Phase::Starting) => pod_coming(situation, pod),
        _ => start(situation),
    }
}

fn pod_coming(situation: &Situation<'_>, pod: &PodView) -> Plan {
    let age = seconds_between(pod.created, situation.now);
    let timeout = i64::from(situation.valid.life.start_timeout_seconds);
    if age < FIRST_LOOK_SECONDS.min(timeout) {
        let next = after(pod.created, FIRST_LOOK_SECONDS.min(timeout));
        return close(quiet(situation), Plan { requeue_at: Some(next), ..Plan::default() });
    }
    let late = age >= timeout;
    let found = match cause::find(situation.observed, pod, situation.now) {
        Finding::AskEvents => return ask(LookUp::PodEvents { pod_uid: pod.uid.clone() }),
        Finding::AskReadiness { ip } => return ask(LookUp::AgentReadiness { pod_uid: pod.uid.clone(), ip }),
        Finding::Known(cause) => cause,
        Finding::Waiting(message) => Cause { reason: Reason::Pending, message, needs_person: false, condition: None },
    };
    let draft = pod_late(situation, &found, late.then_some(timeout));
    let next = if late { None } else { Some(next_look(pod.created, age, timeout)) };
    close(draft, Plan { requeue_at: next, ..Plan::default() })
}

fn ask(question: LookUp) -> Plan {
    Plan { look_up: vec![question], ..Plan::default() }
}

/// Twice the age, or the start timeout: a wait of ten minutes is looked at seven times.
fn next_look(created: Timestamp, age: i64, timeout: i64) -> Timestamp {
    let mut next = FIRST_LOOK_SECONDS;
    while next <= age {
        next *= 2;
    }
    after(created, next.min(timeout))
}

/// The start takes longer than usual.
fn pod_late<'a>(situation: &Situation<'a>, found: &Cause, timed_out_after: Option<i64>) -> Draft<'a> {
    // A pull is tried again and again, each time with other words (a port, a pause): the first ones stay.
    let told = condition(situation.status(), ConditionType::Ready)
        .filter(|told| found.reason == Reason::ImagePull && told.reason == found.reason.as_str());
    let found =
        &Cause { message: told.map_or_else(|| found.message.clone(), |told| told.message.clone()), ..found.clone() };
    let mut draft = quiet(situation);
    draft.not_ready(found.reason, &found.message);
    if let Some(kind) = found.condition {
        draft.set(kind, Truth::False, found.reason, &found.message);
    }
    draft.progress(match timed_out_after {
        _ if found.needs_person => Progress::Stalled(found.reason, found.message.clone()),
        Some(timeout) => Progress::Stalled(
            Reason::StartTimeout,
            format!("the pod was not ready within {timeout} s (spec.lifecycle.startTimeoutSeconds): {}", found.message),
        ),
        None => Progress::Converging(found.reason, found.message.clone()),
    });
    draft
}

/// No pod can be created now, for a reason outside of the pod.
fn held(situation: &Situation<'_>, reason: Reason, message: &str, kind: Option<ConditionType>, person: bool) -> Plan {
    let mut draft = quiet(situation);
    draft.not_ready(reason, message);
    if let Some(kind) = kind {
        draft.set(kind, Truth::False, reason, message);
    }
    draft.progress(Progress::towards(person, reason, message));
    close(draft, Plan::default())
}

/// What an announcement of a start says in Ready; it stays until the pod is there or a cause is found.
const ANNOUNCED: [Reason; 9] = [
    Reason::Starting,
    Reason::Restarting,
    Reason::CrashLoop,
    Reason::ConfigRejected,
    Reason::OutOfMemory,
    Reason::NodeDrain,
    Reason::PodDeleted,
    Reason::Preempted,
    Reason::AgentUnresponsive,
];

/// The status of a start on its way, with nothing to tell. Equal to what the announcement wrote, so nothing is written.
fn quiet<'a>(situation: &Situation<'a>) -> Draft<'a> {
    let mut draft = situation.draft();
    if draft.new.phase != Some(Phase::Starting) {
        return draft;
    }
    unknown_until_ready(&mut draft, situation);
    if ANNOUNCED.iter().any(|reason| has_reason(&draft.new, ConditionType::Ready, *reason)) {
        return draft;
    }
    let failures = draft.new.last_start.as_ref().and_then(|start| start.failures).unwrap_or(0);
    let (reason, message) = match (&draft.new.last_termination, failures) {
        (Some(end), 1..) => {
            (Reason::Restarting, format!("the pod is created again, the one before ended: {}", end.reason))
        }
        _ => (Reason::Starting, STARTING.to_owned()),
    };
    draft.not_ready(reason, &message);
    draft.progress(Progress::Converging(reason, message));
    draft
}

const STARTING: &str = "the pod is being started";

/// Announces a start that the user wants.
fn start(situation: &Situation<'_>) -> Plan {
    let reason = match situation.run.wanted {
        Wanted::On(reason) => reason,
        Wanted::Off { .. } | Wanted::Deleted => StartReason::RunPolicy,
    };
    let mut draft = situation.draft();
    announce_start(&mut draft, situation, reason, None);
    unknown_until_ready(&mut draft, situation);
    draft.not_ready(Reason::Starting, STARTING);
    draft.progress(Progress::Converging(Reason::Starting, STARTING.to_owned()));
    close(draft, Plan::default())
}

/// The conditions that only a running pod can answer.
fn unknown_until_ready(draft: &mut Draft<'_>, situation: &Situation<'_>) {
    for kind in [ConditionType::StorageReady, ConditionType::SandboxReady] {
        draft.set(kind, Truth::Unknown, Reason::Pending, "known when the pod is ready");
    }
    running::agent_ready_before_start(draft, situation);
}

/// Announces a start after a pod that ended without being told to.
pub(super) fn start_after(situation: &Situation<'_>, end: &End) -> Plan {
    let status = situation.status();
    let before = status.last_start.as_ref().and_then(|start| start.failures).unwrap_or(0);
    let healthy =
        status.started_at.as_ref().is_some_and(|since| seconds_between(since.0, situation.now) >= HEALTHY_SECONDS);
    let before = if healthy { 0 } else { before };
    let failures = if end.start == StartReason::Failure { before.saturating_add(1) } else { before };
    let mut draft = situation.draft();
    draft.new.last_termination = Some(end.record(draft.time()));
    draft.new.restarts = Some(status.restarts.unwrap_or(0).saturating_add(1));
    announce_start(&mut draft, situation, end.start, (failures > 0).then_some(failures));
    unknown_until_ready(&mut draft, situation);
    let reason = match end.reason {
        Reason::Restarting if failures >= CRASH_LOOP_FAILURES => Reason::CrashLoop,
        other => other,
    };
    draft.not_ready(reason, &end.message);
    if end.is_about_the_sandbox() {
        draft.set(ConditionType::SandboxReady, Truth::False, reason, &end.message);
    }
    let person = failures >= CRASH_LOOP_FAILURES || end.needs_person();
    draft.progress(Progress::towards(person, reason, &end.message));
    let requeue_at = (failures > 0).then(|| after(draft.time().0, pause_seconds(failures)));
    close(draft, Plan { requeue_at, ..Plan::default() })
}

/// `failurePolicy: Ignore`: the pod stays.
fn failed(situation: &Situation<'_>, end: &End) -> Plan {
    let mut draft = situation.draft();
    draft.new.phase = Some(Phase::Failed);
    // What changes from here on is a reason to start again; what was changed before the end is not.
    draft.new.rendered_revision = Some(situation.revision.clone());
    draft.new.pod = None;
    draft.new.started_at = None;
    draft.new.last_termination = Some(end.record(draft.time()));
    let reason = if end.reason == Reason::Restarting { Reason::PodFailed } else { end.reason };
    let message = format!(
        "{}; spec.lifecycle.failurePolicy is Ignore: delete the pod or change the spec to start again",
        end.message
    );
    draft.not_ready(reason, &message);
    draft.progress(Progress::Stalled(reason, message));
    close(draft, Plan::default())
}
