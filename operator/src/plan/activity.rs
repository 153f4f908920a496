//! Whether the agent may be put to sleep: from what it answered to the atomic question "if you are idle for so long, take no
//! more work". Owns when it is asked. An agent that does not answer counts as busy, up to a bound.

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::crd::{AgentWorkspaceStatus, ConditionType, Phase};

use super::{
    Observed,
    life::Life,
    outcome::{DrainQuestion, LookUp},
    run_state::askable,
    starting::pause_seconds,
    status::{after, condition, seconds, seconds_between},
};

/// An agent that has accepted serves again after this long, unless it is told to end.
pub const HOLD_SECONDS: i64 = 30;
/// What is left of it for the status patch and the deletion: two writes of at most 12 s.
const DECIDE_WITHIN_SECONDS: i64 = HOLD_SECONDS - 25;
/// An agent that does not answer, or is busy past the time of a stop, is asked again after this long.
const AGAIN_SECONDS: i64 = 60;

/// What the agent answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// UID of the pod that was asked.
    pub pod_uid: String,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// Its answer.
    pub answer: Answer,
}

/// An answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It takes no more work.
    Accepted,
    /// It is in use, or was just now.
    InUse {
        /// Something runs.
        busy: bool,
        /// Seconds since the last use.
        idle_seconds: i64,
        /// Seconds since something runs without a pause.
        busy_seconds: i64,
    },
    /// There was no answer, or one outside of the contract.
    Unknown,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It sleeps.
    Stop,
    /// It goes on.
    Keep {
        /// When to decide again.
        again: Option<Timestamp>,
        /// Since when it does not answer.
        silent_since: Option<Timestamp>,
    },
}

impl Verdict {
    const fn until(again: Option<Timestamp>) -> Self {
        Self::Keep { again, silent_since: None }
    }
}

/// Judges by idleness, or, when the time of a scheduled stop has come, by whether anything runs at all.
pub(super) fn judge(
    life: &Life,
    observed: &Observed,
    stop_slot: Option<Timestamp>,
    now: Timestamp,
) -> Result<Verdict, LookUp> {
    let idle_seconds = match (stop_slot, life.idle_timeout_seconds) {
        (Some(_), _) => 0,
        (None, Some(seconds)) => seconds,
        (None, None) => return Ok(Verdict::until(None)),
    };
    let overdue = stop_slot.map(|slot| after(slot, life.max_busy_seconds));
    if overdue.is_some_and(|end| end <= now) {
        return Ok(Verdict::Stop);
    }
    let Some((pod_uid, ip)) = askable(observed) else {
        // Nobody uses a pod that is not there yet; one that lost its readiness is somebody else's matter, up to the bound.
        let coming = observed.workspace.status.pod.is_none();
        if stop_slot.is_some() && coming {
            return Ok(Verdict::Stop);
        }
        let given_up = gives_up_at(life, &observed.workspace.status);
        if given_up.is_some_and(|end| end <= now) {
            return Ok(Verdict::Stop);
        }
        return Ok(Verdict::until([overdue, given_up].into_iter().flatten().min()));
    };
    let question = || {
        LookUp::Drain(DrainQuestion { pod_uid: pod_uid.to_owned(), ip: ip.to_owned(), if_idle_seconds: idle_seconds })
    };
    let known = observed.activity.as_ref().filter(|activity| activity.pod_uid == pod_uid);
    let (ask_at, silent_since) = match known {
        None => (first_question(observed, idle_seconds, stop_slot.is_some(), now), None),
        Some(activity) => match after_answer(life, observed, activity, idle_seconds, now) {
            Next::Stop => return Ok(Verdict::Stop),
            Next::Ask { at, silent_since } => (at, silent_since),
        },
    };
    // Each stop on the word of an agent; when many do not answer, it is the way to them that is broken.
    if observed.idle_stops_paused {
        return Ok(Verdict::Keep { again: Some(after(now, AGAIN_SECONDS)), silent_since });
    }
    if ask_at <= now {
        return Err(question());
    }
    Ok(Verdict::Keep { again: [Some(ask_at), overdue].into_iter().flatten().min(), silent_since })
}

/// A start that does not succeed ends when it has had its time and then nobody could use it for as long as idleness takes. Each
/// failure announces the start anew: the pauses between them count too.
fn gives_up_at(life: &Life, status: &AgentWorkspaceStatus) -> Option<Timestamp> {
    let start = status.last_start.as_ref().filter(|_| status.phase == Some(Phase::Starting))?;
    let pauses: i64 = (1..start.failures.unwrap_or(0)).map(pause_seconds).sum();
    let limit = i64::from(life.start_timeout_seconds) + life.idle_timeout_seconds?;
    Some(after(start.requested_at.0, limit - pauses))
}

enum Next {
    Stop,
    Ask { at: Timestamp, silent_since: Option<Timestamp> },
}

fn after_answer(life: &Life, observed: &Observed, activity: &Activity, idle: i64, now: Timestamp) -> Next {
    let asked_at = activity.asked_at;
    match activity.answer {
        Answer::Accepted if seconds_between(asked_at, now) <= DECIDE_WITHIN_SECONDS => Next::Stop,
        Answer::Accepted => Next::Ask { at: now, silent_since: None },
        Answer::InUse { busy: true, busy_seconds, .. } => {
            let left = life.max_busy_seconds - busy_seconds;
            if left <= 0 && asked_at == now {
                return Next::Stop;
            }
            Next::Ask { at: after(asked_at, idle.max(AGAIN_SECONDS).min(left).max(1)), silent_since: None }
        }
        Answer::InUse { busy: false, idle_seconds, .. } => {
            Next::Ask { at: after(asked_at, (idle - idle_seconds).max(1)), silent_since: None }
        }
        Answer::Unknown => {
            let told = condition(&observed.workspace.status, ConditionType::ActivityUnknown);
            let since = told.map_or(asked_at, |told| told.last_transition_time.0);
            let bound = after(since, life.max_busy_seconds);
            if bound <= now && !observed.idle_stops_paused {
                return Next::Stop;
            }
            Next::Ask { at: after(asked_at, AGAIN_SECONDS).min(bound), silent_since: Some(since) }
        }
    }
}

/// A start that this process saw begins idle. Of others nothing is known after a restart or a handover: they are asked once, spread
/// over a minute or more, so that ten thousand do not answer at once.
fn first_question(observed: &Observed, idle: i64, at_once: bool, now: Timestamp) -> Timestamp {
    let started = observed.workspace.status.started_at.as_ref().map_or(now, |time| time.0);
    if at_once {
        return now;
    }
    // Times of a status are whole seconds.
    if started >= seconds(observed.leading_since).0 {
        return after(started, idle);
    }
    let digest = Sha256::digest(observed.workspace.uid.as_bytes());
    let place = i64::from(u16::from_be_bytes([digest[0], digest[1]]));
    after(observed.leading_since, place * observed.spread_seconds / i64::from(u16::MAX))
}
