//! Whether the workspace is to run now: a pure function of the spec, of what requests want, of what the agent answered, and
//! of time.
//!
//! Precedence: run policy Stopped, expiry, run policy Always; with OnDemand the intent, a schedule's stop, the longest run, idleness; and for
//! a start the intent, a schedule's start, the creation. Wake and stop are told apart by numbers, never by another machine's
//! clock: a stop settles at the counter it saw, and a greater counter asks for a start.

use jiff::Timestamp;

use crate::crd::{
    AgentWorkspaceStatus, ExpirePolicy, Intent, Phase, RunPolicy, StartOnCreate, StartReason, StopReason,
};

use super::{
    Observed, Seen,
    activity::{self, Verdict},
    life::Life,
    outcome::LookUp,
    schedule::{self, STALE_SECONDS, Schedule, Slot, SlotKind},
    status::{after, seconds_between},
};

/// How long before its end a workspace says so.
const EXPIRING_SOON_SECONDS: i64 = 86_400;

/// What is wanted now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// To run, or why not.
    pub wanted: Wanted,
    /// `status.settledTransition` after a start or stop that is decided now.
    pub settled: Option<i64>,
    /// The first value of `status.settledTransition`: written whatever else is decided.
    pub first_settled: Option<i64>,
    /// The slot of a schedule that this decision answers.
    pub slot: Option<Timestamp>,
    /// `status.nextScheduledStart` and `status.nextScheduledStop`.
    pub next_slots: (Option<Timestamp>, Option<Timestamp>),
    /// Since when the agent does not say whether it is in use.
    pub silent_since: Option<Timestamp>,
    /// When it ends for good, if that is within a day.
    pub ends_at: Option<Timestamp>,
    /// When to decide again although nothing changed.
    pub again: Option<Timestamp>,
}

/// To run or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It runs; the reason is that of a start that is announced now.
    On(StartReason),
    /// It does not run.
    Off {
        /// Why it is stopped, if it runs now.
        stop: StopReason,
        /// What it is afterwards.
        rest: Rest,
    },
    /// It is deleted.
    Deleted,
}

/// What a workspace without a pod waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Another run policy.
    RunPolicy,
    /// A request or a schedule.
    Sleeping,
    /// An explicit start.
    Requested,
    /// Another `expiresAt`.
    Expired,
}

impl Rest {
    /// The phase.
    pub const fn phase(self) -> Phase {
        match self {
            Self::Sleeping => Phase::Sleeping,
            Self::RunPolicy | Self::Requested | Self::Expired => Phase::Stopped,
        }
    }
}

/// A decision, or the question that has to be answered first.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Run(Run),
    Ask(LookUp),
}

/// A start was decided and no stop since. Phase Failed has a pod, if a broken one.
pub(super) const fn is_on(status: &AgentWorkspaceStatus) -> bool {
    matches!(status.phase, Some(Phase::Starting | Phase::Running | Phase::Failed))
}

/// Decides whether the workspace is to run.
pub(super) fn step(life: &Life, observed: &Observed, now: Timestamp) -> Step {
    let context = Context { life, observed, status: &observed.workspace.status, now };
    let mut run = context.plain(Wanted::On(StartReason::RunPolicy));
    let (wanted, extra) = match context.wanted() {
        Ok(decided) => decided,
        Err(question) => return Step::Ask(question),
    };
    run.wanted = wanted;
    run.slot = extra.slot;
    run.silent_since = extra.silent_since;
    run.again = [run.again, extra.again].into_iter().flatten().min();
    context.end(&mut run);
    Step::Run(run)
}

struct Context<'a> {
    life: &'a Life,
    observed: &'a Observed,
    status: &'a AgentWorkspaceStatus,
    now: Timestamp,
}

#[derive(Default)]
struct Extra {
    slot: Option<Timestamp>,
    silent_since: Option<Timestamp>,
    again: Option<Timestamp>,
}

type Decided = Result<(Wanted, Extra), LookUp>;

impl Context<'_> {
    fn wanted(&self) -> Decided {
        let plain = |wanted| Ok((wanted, Extra::default()));
        if self.life.run_policy == RunPolicy::Stopped {
            return plain(Wanted::Off { stop: StopReason::RunPolicy, rest: Rest::RunPolicy });
        }
        if self.life.expires_at.is_some_and(|end| end <= self.now) {
            return plain(match self.life.expire_policy {
                ExpirePolicy::Delete => Wanted::Deleted,
                ExpirePolicy::Stop => Wanted::Off { stop: StopReason::Expired, rest: Rest::Expired },
            });
        }
        match self.life.run_policy {
            RunPolicy::Always => plain(Wanted::On(StartReason::RunPolicy)),
            RunPolicy::OnDemand if is_on(self.status) => self.while_on(),
            RunPolicy::OnDemand | RunPolicy::Stopped => Ok(self.while_off()),
        }
    }

    fn intent(&self) -> Option<Intent> {
        self.observed.wake.as_ref().map(|wake| wake.intent)
    }

    fn counter(&self) -> i64 {
        self.observed.wake.as_ref().map_or(0, |wake| wake.counter)
    }

    /// The value that counts now. Without one (a new workspace, a restored backup) the wakes so far are settled without a start;
    /// whoever waits for one issues it again.
    fn settled(&self) -> i64 {
        self.status.settled_transition.unwrap_or_else(|| self.counter())
    }

    fn while_on(&self) -> Decided {
        let off = |stop, rest, slot| Ok((Wanted::Off { stop, rest }, Extra { slot, ..Extra::default() }));
        let due = self.due_slot();
        if self.intent() == Some(Intent::Stopped) {
            return off(StopReason::User, Rest::Requested, due.map(|slot| slot.at));
        }
        let longest = self.status.started_at.as_ref().zip(self.life.max_run_seconds);
        let longest = longest.map(|(started, seconds)| after(started.0, seconds));
        if longest.is_some_and(|end| end <= self.now) {
            return off(StopReason::MaxRun, Rest::Sleeping, due.map(|slot| slot.at));
        }
        let stop_slot = due.filter(|slot| slot.kind == SlotKind::Stop);
        let verdict = activity::judge(self.life, self.observed, stop_slot.map(|slot| slot.at), self.now)?;
        let keep = Wanted::On(self.last_reason());
        match verdict {
            Verdict::Stop => {
                let stop = if stop_slot.is_some() { StopReason::Schedule } else { StopReason::Idle };
                off(stop, Rest::Sleeping, due.map(|slot| slot.at))
            }
            Verdict::Keep { again, silent_since } => {
                let again = [again, longest].into_iter().flatten().min();
                // A stop that waits for work is answered when it has happened; a start needs nothing here.
                let slot = due.filter(|slot| slot.kind == SlotKind::Start).map(|slot| slot.at);
                Ok((keep, Extra { slot, silent_since, again }))
            }
        }
    }

    fn while_off(&self) -> (Wanted, Extra) {
        let due = self.due_slot();
        let slot = due.map(|slot| slot.at);
        let with = |wanted| (wanted, Extra { slot, ..Extra::default() });
        // For the case that a pod is there all the same: it is stopped for the reason that holds.
        let stop = self.status.last_stop.as_ref().map_or(StopReason::User, |stop| stop.reason);
        let asleep = |rest| with(Wanted::Off { stop, rest });
        match self.intent() {
            // An explicit stop holds until an explicit start.
            Some(Intent::Stopped) => return asleep(Rest::Requested),
            Some(Intent::Awake) if self.counter() > self.settled() => return with(Wanted::On(StartReason::Wake)),
            Some(Intent::Awake) | None => {}
        }
        let fresh = |slot: Slot| seconds_between(slot.at, self.now) <= STALE_SECONDS;
        if due.is_some_and(|slot| slot.kind == SlotKind::Start && fresh(slot)) {
            return with(Wanted::On(StartReason::Schedule));
        }
        if self.status.last_start.is_none() && self.life.start_on_create == StartOnCreate::Always {
            return with(Wanted::On(StartReason::Created));
        }
        asleep(Rest::Sleeping)
    }

    /// The newest slot that nothing was decided on yet.
    fn due_slot(&self) -> Option<Slot> {
        let answered = self.status.last_schedule_slot.as_ref().map_or(self.observed.workspace.created, |slot| slot.0);
        schedule::latest_due(&self.life.schedules, answered, self.now)
    }

    /// A pod that is created anew because the spec changed was wanted for the reason of the last start.
    fn last_reason(&self) -> StartReason {
        match self.status.last_start.as_ref().map(|start| start.reason) {
            Some(reason @ (StartReason::Wake | StartReason::Schedule | StartReason::Created)) => reason,
            _ => StartReason::RunPolicy,
        }
    }

    fn plain(&self, wanted: Wanted) -> Run {
        let on_demand = self.life.run_policy == RunPolicy::OnDemand;
        let unsettled = on_demand && self.status.settled_transition.is_none();
        // Never below what was settled already: the wake object may have been deleted and made anew.
        let settled =
            (on_demand || self.status.settled_transition.is_some()).then(|| self.settled().max(self.counter()));
        let next = |kind| {
            let scheduled: &[Schedule] = if on_demand { &self.life.schedules } else { &[] };
            schedule::next(scheduled, kind, self.now)
        };
        let next_slots = (next(SlotKind::Start), next(SlotKind::Stop));
        Run {
            wanted,
            settled,
            first_settled: unsettled.then(|| self.settled()),
            slot: None,
            next_slots,
            silent_since: None,
            ends_at: None,
            again: [next_slots.0, next_slots.1].into_iter().flatten().min(),
        }
    }

    /// Expiry and time to live.
    fn end(&self, run: &mut Run) {
        let off = match run.wanted {
            Wanted::Off { rest, .. } => Some(rest.phase()),
            Wanted::On(_) | Wanted::Deleted => None,
        };
        let stopped_for = |phase: Phase| off == Some(phase) && self.status.phase == Some(phase);
        let outlived = self
            .life
            .ttl_seconds
            .filter(|_| stopped_for(Phase::Stopped))
            .zip(self.status.last_stop.as_ref())
            .map(|(ttl, stop)| after(stop.at.0, ttl));
        if outlived.is_some_and(|end| end <= self.now) {
            run.wanted = Wanted::Deleted;
            return;
        }
        let expires = self.life.expires_at.filter(|end| *end > self.now);
        let Some(end) = [outlived, expires].into_iter().flatten().min() else { return };
        let warn_at = after(end, -EXPIRING_SOON_SECONDS);
        let next = if warn_at <= self.now { end } else { warn_at };
        run.ends_at = (warn_at <= self.now).then_some(end);
        run.again = [run.again, Some(next)].into_iter().flatten().min();
    }
}

/// The pod whose agent can be asked: it is the one in the status, Ready, and has an address.
pub(super) fn askable(observed: &Observed) -> Option<(&str, &str)> {
    let Seen::Ours(pod) = &observed.pod else { return None };
    let known = observed.workspace.status.pod.as_ref().is_some_and(|known| known.uid == pod.uid);
    let running = observed.workspace.status.phase == Some(Phase::Running);
    (known && running && pod.ready && pod.lives()).then_some(())?;
    Some((pod.uid.as_str(), pod.ip.as_deref()?))
}
