//! Waiting for a workspace: one loop per workspace, however many requests wait for it.
//!
//! Owns the loop's effects (asking the pod, writing wakes) and its pace; `hold` decides. A loop ends when its pod serves, when
//! waiting is of no use, or when nobody waits any longer; each request has a limit of its own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, Semaphore, watch},
    time::sleep,
};

use super::{
    hold::{self, Action, Blocked, Demand, PodAnswer, Refusal},
    upstream::{Target, Upstreams},
};
use crate::{
    cluster::{ClusterError, Entry, GatewayCaches, Reachable, WakeView, Wakes, WorkspaceKey},
    crd::{AgentWorkspaceWakeSpec, Intent, Phase, RunPolicy},
    telemetry::{GatewayMetrics, WakeResult},
};

/// The pod is asked this often once its address is known: what a start costs at most beyond its own time.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a wake that could not be written.
const WRITE_PACE: Duration = Duration::from_millis(500);
/// A wake that changes nothing for this long says that no operator works.
const REACTION_LIMIT: Duration = Duration::from_secs(10);
/// Wakes written at once: a thousand workspaces woken together take some seconds, and the API server stays calm.
const WRITES_AT_ONCE: usize = 32;

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod serves.
    Serves,
    /// It cannot be served.
    Refused(Refusal),
    /// The operator does not react.
    NoReaction,
    /// The workspace is gone.
    Gone,
}

struct Flight {
    outcome: watch::Sender<Option<Outcome>>,
    nudge: Arc<Notify>,
}

/// All loops of a gateway.
pub struct Flights {
    caches: GatewayCaches,
    wakes: Wakes,
    upstreams: Arc<Upstreams>,
    metrics: Arc<GatewayMetrics>,
    writes: Semaphore,
    running: Mutex<HashMap<WorkspaceKey, Flight>>,
}

/// What a loop remembers.
#[derive(Default)]
struct Memory {
    mine: Option<i64>,
    relied_since: Option<Instant>,
    not_before: Option<Instant>,
}

impl Flights {
    /// No loop runs yet.
    pub fn new(
        caches: GatewayCaches,
        wakes: Wakes,
        upstreams: Arc<Upstreams>,
        metrics: Arc<GatewayMetrics>,
    ) -> Arc<Self> {
        let writes = Semaphore::new(WRITES_AT_ONCE);
        Arc::new(Self { caches, wakes, upstreams, metrics, writes, running: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceKey, Flight>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A workspace or its wake looks different: its loop, if there is one, looks at once.
    pub fn changed(&self, key: &WorkspaceKey) {
        if let Some(flight) = self.lock().get(key) {
            flight.nudge.notify_one();
        }
    }

    /// Waits for the workspace. The caller bounds the time by dropping this.
    pub async fn wait(self: &Arc<Self>, key: &WorkspaceKey) -> Outcome {
        loop {
            let mut outcome = self.join(key);
            let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| *outcome);
            if let Some(outcome) = ended {
                return outcome;
            }
            // The loop ended by a defect; the next one may fare better.
        }
    }

    fn join(self: &Arc<Self>, key: &WorkspaceKey) -> watch::Receiver<Option<Outcome>> {
        let mut running = self.lock();
        // A loop leaves the list before or while it ends, under this lock: one that is listed will answer.
        if let Some(flight) = running.get(key) {
            return flight.outcome.subscribe();
        }
        let (outcome, receiver) = watch::channel(None);
        let nudge = Arc::new(Notify::new());
        running.insert(key.clone(), Flight { outcome, nudge: Arc::clone(&nudge) });
        let (flights, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move { flights.run(Guard { flights: Arc::clone(&flights), key }, &nudge).await });
        receiver
    }

    async fn run(self: &Arc<Self>, guard: Guard, nudge: &Notify) {
        let mut memory = Memory::default();
        loop {
            if let Some(outcome) = self.step(&guard.key, &mut memory).await {
                if let Some(flight) = self.lock().remove(&guard.key) {
                    flight.outcome.send_replace(Some(outcome));
                }
                return;
            }
            {
                let mut running = self.lock();
                if running.get(&guard.key).is_none_or(|flight| flight.outcome.is_closed()) {
                    running.remove(&guard.key);
                    return;
                }
            }
            tokio::select! {
                () = nudge.notified() => {}
                () = sleep(PACE) => {}
            }
        }
    }

    /// Looks once and acts.
    async fn step(&self, key: &WorkspaceKey, memory: &mut Memory) -> Option<Outcome> {
        let Some(workspace) = self.caches.workspaces.get(key) else { return Some(Outcome::Gone) };
        let answer = self.ask_pod(&workspace.value).await;
        // Asking takes time: what is decided on is what is seen now.
        let Some(workspace) = self.caches.workspaces.get(key) else { return Some(Outcome::Gone) };
        let wake = self.caches.wakes.get(key).filter(|wake| wake.value.belongs_to(&workspace.uid));
        let (seen, view) = (hold_view(&workspace.value), wake.as_ref().map(|wake| wake_view(&wake.value)));
        match hold::next(&seen, view, memory.mine, answer) {
            Action::Forward => Some(Outcome::Serves),
            Action::Refuse(refusal) => Some(Outcome::Refused(refusal)),
            Action::Adopt(number) => {
                memory.rely_on(number);
                None
            }
            Action::Write(number) => {
                self.write(key, &workspace.uid, number, wake.as_ref(), memory).await;
                memory.without_reaction(&seen)
            }
            Action::Wait => memory.without_reaction(&seen),
        }
    }

    async fn ask_pod(&self, workspace: &Reachable) -> PodAnswer {
        let Some(target) = target(workspace) else { return PodAnswer::None };
        match self.upstreams.serves(&target).await {
            Ok(true) => PodAnswer::Serves,
            Ok(false) => PodAnswer::None,
            Err(error) => {
                tracing::debug!(reason = error.reason(), address = %target.address, "a pod does not answer yet");
                PodAnswer::None
            }
        }
    }

    async fn write(
        &self,
        key: &WorkspaceKey,
        workspace_uid: &str,
        number: i64,
        seen: Option<&Entry<WakeView>>,
        memory: &mut Memory,
    ) {
        memory.relied_since.get_or_insert_with(Instant::now);
        if memory.not_before.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.write_wake(key, workspace_uid, Intent::Awake, number, seen).await {
            Ok(()) => memory.rely_on(number),
            Err(error) => {
                memory.not_before = Some(Instant::now() + WRITE_PACE);
                if !matches!(error, ClusterError::Conflict { .. } | ClusterError::AlreadyExists { .. }) {
                    tracing::warn!(workspace = %key, error = &error as &dyn std::error::Error, "a wake was not written");
                }
            }
        }
    }

    /// Writes what is wanted of a workspace; after a lost race the cache holds what the winner wrote.
    pub async fn write_wake(
        &self,
        key: &WorkspaceKey,
        workspace_uid: &str,
        intent: Intent,
        counter: i64,
        seen: Option<&Entry<WakeView>>,
    ) -> Result<(), ClusterError> {
        let _permit = self.writes.acquire().await;
        let wanted = AgentWorkspaceWakeSpec { intent, counter };
        let result = self.wakes.write(key, workspace_uid, wanted, seen).await;
        self.metrics.woke(match &result {
            Ok(()) => WakeResult::Written,
            Err(ClusterError::Conflict { .. } | ClusterError::AlreadyExists { .. }) => WakeResult::Overtaken,
            Err(_) => WakeResult::Failed,
        });
        if let Err(ClusterError::Conflict { .. } | ClusterError::AlreadyExists { .. }) = &result {
            self.wakes.refresh(key).await?;
        }
        result
    }
}

/// Takes the loop out of the list when it ends by a defect, so that those who wait begin another.
struct Guard {
    flights: Arc<Flights>,
    key: WorkspaceKey,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.flights.lock().remove(&self.key);
        }
    }
}

impl Memory {
    fn rely_on(&mut self, number: i64) {
        self.mine = Some(number);
        self.relied_since = Some(Instant::now());
    }

    /// Off, the wake not answered, for too long.
    fn without_reaction(&self, seen: &hold::Workspace) -> Option<Outcome> {
        let answered = self.mine.is_some_and(|mine| seen.settled.is_some_and(|settled| settled >= mine));
        let late = self.relied_since.is_some_and(|since| since.elapsed() >= REACTION_LIMIT);
        (seen.demand == Demand::Requests && seen.off && !answered && late).then_some(Outcome::NoReaction)
    }
}

/// Where the pod is, if it has an address.
pub fn target(workspace: &Reachable) -> Option<Target> {
    let (pod_uid, address) = workspace.pod.clone()?;
    Some(Target { pod_uid, address })
}

/// What `hold` sees of a workspace.
pub fn hold_view(workspace: &Reachable) -> hold::Workspace {
    let off = matches!(workspace.phase, None | Some(Phase::Stopping | Phase::Sleeping | Phase::Stopped));
    let demand = match workspace.run_policy {
        RunPolicy::OnDemand => Demand::Requests,
        RunPolicy::Always => Demand::Always,
        RunPolicy::Stopped => Demand::Stopped,
    };
    let blocked = if workspace.deleting {
        Some(Blocked::Terminating)
    } else {
        workspace.trouble.as_ref().map(|_| Blocked::Stalled)
    };
    hold::Workspace { demand, off, settled: workspace.settled, blocked }
}

/// What `hold` sees of a wake.
pub fn wake_view(wake: &WakeView) -> hold::Wake {
    hold::Wake { awake: wake.intent == Intent::Awake, counter: wake.counter }
}
