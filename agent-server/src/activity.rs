//! Activity and drain: what counts as use, and the one atomic decision to stop.
//!
//! [`State`] is the pure core: it gets the time passed in and is compared whole in tests. [`Activity`] shares it
//! behind a lock and hands out guards, so that work cannot be forgotten when a task ends early.
//! Must not know HTTP, sessions or the sandbox (it only asks a closure how many processes run).
//!
//! For the other parts: `activity.begin_turn()?` before a turn starts and keep the guard until its last chunk;
//! `activity.begin_exec()` around a tool's command; the HTTP layer takes `begin_request()` itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Why the workspace counts as busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BusyReason {
    /// A chat turn runs.
    Turn,
    /// A process started by a command still runs.
    Process,
    /// A tool's command runs.
    Exec,
    /// An authenticated request is being answered.
    Request,
}

/// Answer of `GET /api/v1/activity`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActivityReport {
    /// Whether anything runs.
    pub busy: bool,
    /// What runs.
    pub reasons: Vec<BusyReason>,
    /// Seconds since the last use; 0 while busy.
    pub idle_seconds: u64,
    /// Seconds since the present busy period began; 0 while idle.
    pub busy_seconds: u64,
    /// Turns that run.
    pub turns: usize,
    /// Processes that run.
    pub processes: usize,
}

/// Body of `POST /api/v1/drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// Drain only when idle for at least this many seconds.
    #[schema(required = false)]
    pub if_idle_seconds: Option<u64>,
    /// Seconds after which the drain is taken back unless a SIGTERM came; default 30.
    #[schema(required = false)]
    pub hold_seconds: Option<u64>,
    /// Seconds that running turns get before they are closed with a marked abort; default: what the stop grace allows.
    #[schema(required = false)]
    pub grace_seconds: Option<u64>,
}

/// Default of `holdSeconds`.
pub const DEFAULT_HOLD: Duration = Duration::from_secs(30);
/// Longest `holdSeconds` and `graceSeconds`, one day: keeps instants in range.
pub const MAX_DRAIN_SECONDS: u64 = 86_400;

/// The workspace is being stopped and takes no new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the workspace is being stopped")]
pub struct Draining;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Taken back at `until` unless a stop comes first.
    Held {
        until: Instant,
    },
    Stopping,
}

/// Kind of counted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Turn,
    Exec,
    Request,
}

/// The pure core. Every method takes the present time; none reads a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    turns: usize,
    execs: usize,
    requests: usize,
    last_used: Instant,
    busy_since: Option<Instant>,
    phase: Phase,
}

impl State {
    /// Idle from `now` on.
    pub fn new(now: Instant) -> Self {
        Self { turns: 0, execs: 0, requests: 0, last_used: now, busy_since: None, phase: Phase::Open }
    }

    /// Whether new work is refused; a hold that has run out is taken back here.
    pub fn draining(&mut self, now: Instant) -> bool {
        if let Phase::Held { until } = self.phase
            && now >= until
        {
            self.phase = Phase::Open;
        }
        self.phase != Phase::Open
    }

    fn begin(&mut self, work: Work, now: Instant) -> Result<(), Draining> {
        // A turn that may finish during the drain may also finish its commands.
        if work != Work::Exec && self.draining(now) {
            return Err(Draining);
        }
        *self.count(work) += 1;
        self.last_used = now;
        self.busy_since.get_or_insert(now);
        Ok(())
    }

    fn end(&mut self, work: Work, now: Instant) {
        let count = self.count(work);
        *count = count.saturating_sub(1);
        self.last_used = now;
        if self.turns + self.execs + self.requests == 0 {
            self.busy_since = None;
        }
    }

    fn count(&mut self, work: Work) -> &mut usize {
        match work {
            Work::Turn => &mut self.turns,
            Work::Exec => &mut self.execs,
            Work::Request => &mut self.requests,
        }
    }

    /// What runs; `processes` is the present number of process groups. A process seen running is use.
    pub fn report(&mut self, now: Instant, processes: usize) -> ActivityReport {
        let mut reasons = Vec::new();
        for (running, reason) in [
            (self.turns, BusyReason::Turn),
            (processes, BusyReason::Process),
            (self.execs, BusyReason::Exec),
            (self.requests, BusyReason::Request),
        ] {
            if running > 0 {
                reasons.push(reason);
            }
        }
        let busy = !reasons.is_empty();
        if busy {
            self.busy_since.get_or_insert(now);
            self.last_used = now;
        } else {
            self.busy_since = None;
        }
        ActivityReport {
            busy,
            reasons,
            idle_seconds: now.saturating_duration_since(self.last_used).as_secs(),
            busy_seconds: self.busy_since.map_or(0, |since| now.saturating_duration_since(since).as_secs()),
            turns: self.turns,
            processes,
        }
    }

    /// The one decision: with `if_idle_seconds`, busy or used since changes nothing and answers what runs; else new
    /// work is refused from this instant, until the hold runs out or for good once [`State::stop`] was called.
    pub fn drain(&mut self, now: Instant, request: DrainRequest, processes: usize) -> Result<(), ActivityReport> {
        self.draining(now);
        let report = self.report(now, processes);
        if let Some(seconds) = request.if_idle_seconds
            && (report.busy || report.idle_seconds < seconds)
        {
            return Err(report);
        }
        if self.phase != Phase::Stopping {
            let hold = request
                .hold_seconds
                .map_or(DEFAULT_HOLD, |seconds| Duration::from_secs(seconds.min(MAX_DRAIN_SECONDS)));
            self.phase = Phase::Held { until: now + hold };
        }
        Ok(())
    }

    /// SIGTERM: drains for good.
    pub fn stop(&mut self) {
        self.phase = Phase::Stopping;
    }

    /// Whether the drain is for good.
    pub fn is_stopping(&self) -> bool {
        self.phase == Phase::Stopping
    }
}

/// The shared activity of one server.
pub struct Activity {
    state: Mutex<State>,
    changed: Notify,
    processes: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Activity {
    /// `processes` tells how many process groups run now.
    pub fn new(processes: impl Fn() -> usize + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::new(Instant::now())),
            changed: Notify::new(),
            processes: Box::new(processes),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No method of `State` can leave it half changed, so a poisoned lock holds a sound value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn; hold the guard until the turn's last chunk is written.
    pub fn begin_turn(self: &Arc<Self>) -> Result<WorkGuard, Draining> {
        self.begin(Work::Turn)
    }

    /// Begins an authenticated request that counts as use.
    pub fn begin_request(self: &Arc<Self>) -> Result<WorkGuard, Draining> {
        self.begin(Work::Request)
    }

    /// Begins a tool's command. Never refused: a turn that may finish during a drain may run its commands.
    pub fn begin_exec(self: &Arc<Self>) -> WorkGuard {
        let _never_refused = self.state().begin(Work::Exec, Instant::now());
        WorkGuard { activity: self.clone(), work: Work::Exec }
    }

    fn begin(self: &Arc<Self>, work: Work) -> Result<WorkGuard, Draining> {
        self.state().begin(work, Instant::now())?;
        Ok(WorkGuard { activity: self.clone(), work })
    }

    /// Counts as use now, without beginning anything: progress of a long transfer.
    pub fn touch(&self) {
        self.state().last_used = Instant::now();
    }

    /// Whether new work is refused.
    pub fn draining(&self) -> bool {
        self.state().draining(Instant::now())
    }

    /// What runs.
    pub fn report(&self) -> ActivityReport {
        let processes = (self.processes)();
        self.state().report(Instant::now(), processes)
    }

    /// Drains, or answers what runs and changes nothing.
    pub fn drain(&self, request: DrainRequest) -> Result<(), ActivityReport> {
        let processes = (self.processes)();
        let outcome = self.state().drain(Instant::now(), request, processes);
        self.changed.notify_waiters();
        outcome
    }

    /// Whether the drain is for good.
    pub fn is_stopping(&self) -> bool {
        self.state().is_stopping()
    }

    /// SIGTERM: drains for good.
    pub fn stop(&self) {
        self.state().stop();
        self.changed.notify_waiters();
    }

    /// Completes at the next drain, stop or end of a turn.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Completes once the drain is for good.
    pub async fn stopped(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that a stop in between is not missed.
            changed.as_mut().enable();
            if self.is_stopping() {
                return;
            }
            changed.await;
        }
    }

    /// Completes when no turn runs.
    pub async fn turns_ended(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that a turn ending in between is not missed.
            changed.as_mut().enable();
            if self.state().turns == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// Work in progress; ends when dropped.
pub struct WorkGuard {
    activity: Arc<Activity>,
    work: Work,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.activity.state().end(self.work, Instant::now());
        if self.work == Work::Turn {
            self.activity.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
