//! Builds the next status from the last one. Owns the rules of conditions: transition times are kept while a status holds,
//! Reconciling and Stalled are present only when true, and a status that would not change is not written.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};

use crate::crd::{AgentWorkspaceStatus, ConditionType, Phase, Reason, StartReason, StopReason};

use super::{EventKind, EventToPublish, StatusPatch, run_state::is_on};

/// Longest message of a condition and note of an event: events take 1 kB.
const MESSAGE_BYTES: usize = 1000;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// How far the workspace is from what is wanted (kstatus).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There.
    Settled,
    /// On the way.
    Converging(Reason, String),
    /// It needs a person.
    Stalled(Reason, String),
}

impl Progress {
    /// Not there yet, with or without the need for a person.
    pub fn towards(needs_person: bool, reason: Reason, message: &str) -> Self {
        if needs_person {
            Self::Stalled(reason, message.to_owned())
        } else {
            Self::Converging(reason, message.to_owned())
        }
    }
}

/// The status being built.
#[derive(Clone, Debug)]
pub(super) struct Draft<'a> {
    old: &'a AgentWorkspaceStatus,
    /// The next status; conditions only through the methods.
    pub new: AgentWorkspaceStatus,
    generation: i64,
    now: Timestamp,
}

impl<'a> Draft<'a> {
    /// Starts from the last status.
    pub fn new(old: &'a AgentWorkspaceStatus, generation: i64, now: Timestamp) -> Self {
        let mut new = old.clone();
        new.observed_generation = Some(generation);
        Self { old, new, generation, now }
    }

    /// The time of this decision as conditions and status carry it.
    pub fn time(&self) -> Time {
        seconds(self.now)
    }

    /// Sets a condition.
    pub fn set(&mut self, kind: ConditionType, truth: Truth, reason: Reason, message: impl AsRef<str>) {
        let last = condition(self.old, kind).filter(|last| last.status == truth.as_str());
        let next = Condition {
            type_: kind.as_str().to_owned(),
            status: truth.as_str().to_owned(),
            reason: reason.as_str().to_owned(),
            message: clip(message.as_ref(), MESSAGE_BYTES),
            observed_generation: Some(self.generation),
            last_transition_time: last.map_or_else(|| self.time(), |last| last.last_transition_time.clone()),
        };
        self.remove(kind);
        self.new.conditions.push(next);
    }

    /// Takes a condition away.
    pub fn remove(&mut self, kind: ConditionType) {
        self.new.conditions.retain(|condition| condition.type_ != kind.as_str());
    }

    /// Sets Reconciling and Stalled.
    pub fn progress(&mut self, progress: Progress) {
        self.remove(ConditionType::Reconciling);
        self.remove(ConditionType::Stalled);
        match progress {
            Progress::Settled => {}
            Progress::Converging(reason, message) => self.set(ConditionType::Reconciling, Truth::True, reason, message),
            Progress::Stalled(reason, message) => self.set(ConditionType::Stalled, Truth::True, reason, message),
        }
    }

    /// Ready and Running are False, for one reason.
    pub fn not_ready(&mut self, reason: Reason, message: &str) {
        self.set(ConditionType::Ready, Truth::False, reason, message);
        self.set(ConditionType::Running, Truth::False, reason, message);
    }

    /// The patch, unless nothing changed, and the events that the change deserves.
    pub fn finish(mut self) -> (Option<StatusPatch>, Vec<EventToPublish>) {
        let order = |condition: &Condition| {
            ConditionType::ALL.iter().position(|kind| kind.as_str() == condition.type_).unwrap_or(usize::MAX)
        };
        self.new.conditions.sort_by_key(order);
        for condition in &mut self.new.conditions {
            condition.observed_generation = Some(self.generation);
        }
        if self.new == *self.old {
            return (None, Vec::new());
        }
        let events = events(self.old, &self.new);
        (Some(StatusPatch { status: self.new }), events)
    }
}

/// The condition of a type.
pub(super) fn condition(status: &AgentWorkspaceStatus, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Whether a condition has this reason.
pub(super) fn has_reason(status: &AgentWorkspaceStatus, kind: ConditionType, reason: Reason) -> bool {
    condition(status, kind).is_some_and(|condition| condition.reason == reason.as_str())
}

/// Events are about what a person wants to hear of, once: when a condition gets a new reason.
fn events(old: &AgentWorkspaceStatus, new: &AgentWorkspaceStatus) -> Vec<EventToPublish> {
    let mut events: Vec<EventToPublish> = Vec::new();
    for kind in [
        ConditionType::Stalled,
        ConditionType::Ready,
        ConditionType::StorageReady,
        ConditionType::SandboxReady,
        ConditionType::AgentReady,
        ConditionType::UpdateAvailable,
        ConditionType::ActivityUnknown,
        ConditionType::ExpiringSoon,
    ] {
        let Some(next) = condition(new, kind) else { continue };
        if condition(old, kind).is_some_and(|last| last.reason == next.reason && last.status == next.status) {
            continue;
        }
        let Some(reason) = Reason::ALL.iter().copied().find(|reason| reason.as_str() == next.reason) else { continue };
        let Some((kind, action)) = announcement(kind, reason) else { continue };
        if events.iter().all(|event| event.reason != reason) {
            events.push(EventToPublish { kind, reason, action, note: next.message.clone() });
        }
    }
    if new.phase == Some(Phase::Stopping) && old.phase != Some(Phase::Stopping) {
        let note = condition(new, ConditionType::Ready).map_or_else(String::new, |ready| ready.message.clone());
        let idle = new.last_stop.as_ref().is_some_and(|stop| stop.reason == StopReason::Idle);
        let reason = if idle { Reason::StoppedIdle } else { Reason::Stopping };
        events.push(EventToPublish { kind: EventKind::Normal, reason, action: "Stop", note });
    }
    let woken = new.last_start.as_ref().is_some_and(|start| start.reason == StartReason::Wake);
    if woken && !is_on(old) && is_on(new) {
        let note = "a request wakes the workspace".to_owned();
        events.push(EventToPublish { kind: EventKind::Normal, reason: Reason::Woken, action: "Start", note });
    }
    events
}

/// Whether a reason of a condition is worth an event.
fn announcement(kind: ConditionType, reason: Reason) -> Option<(EventKind, &'static str)> {
    match (kind, reason) {
        (ConditionType::Ready, Reason::Running) => Some((EventKind::Normal, "Start")),
        (ConditionType::UpdateAvailable, _) => Some((EventKind::Normal, "Render")),
        (ConditionType::ActivityUnknown, _) => Some((EventKind::Warning, "Ask")),
        (ConditionType::ExpiringSoon, _) => Some((EventKind::Normal, "Expire")),
        (
            _,
            Reason::Starting
            | Reason::Running
            | Reason::Stopping
            | Reason::Stopped
            | Reason::Sleeping
            | Reason::Terminating
            | Reason::Available
            | Reason::Pending
            | Reason::Resizing
            // what the spec says, not news
            | Reason::ModelKeyMissing,
        ) => None,
        (ConditionType::StorageReady, _) => Some((EventKind::Warning, "Store")),
        (ConditionType::SandboxReady, _) => Some((EventKind::Warning, "Isolate")),
        (ConditionType::AgentReady, _) => Some((EventKind::Warning, "Chat")),
        _ => Some((EventKind::Warning, "Start")),
    }
}

/// A time as `metav1.Time` carries it. Truncated here, so that what is read back compares equal.
pub(super) fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// A time as `metav1.MicroTime` carries it.
pub(super) fn micros(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

/// Milliseconds from one time to another, never negative.
pub(super) fn milliseconds_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_millisecond() - from.as_millisecond()).max(0)
}

/// `time` plus seconds.
pub(super) fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Whole seconds from one time to another.
pub(super) fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second() - from.as_second()
}

/// Cuts text to a number of bytes, on a character, with a mark.
pub(super) fn clip(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes - '…'.len_utf8());
    format!("{}…", &text[..end])
}
