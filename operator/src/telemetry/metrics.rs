//! Every metric of the operator, in one place.
//!
//! Owns: names, labels, buckets. Units are seconds; labels come from enums only, never from names, messages or Debug output,
//! so the number of series is bounded by this file. Must not know: who counts.

use std::{sync::Mutex, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// How a reconcile ended, as it reads on a dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// Something was written. Many of these without user changes: a loop.
    Applied,
    /// Nothing had to be done. The normal end in a quiet cluster.
    Unchanged,
    /// Held back until the cache shows the operator's own last write, or after a write conflict. Short runs are normal.
    Waiting,
    /// An error; the object is tried again with backoff.
    Failed,
    /// The pass was cut short by shutdown or by a defect. Should only be seen when the process ends.
    Abandoned,
}

/// Kinds the operator calls the API server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelValue)]
pub enum Kind {
    /// The user's object; only its status is ever written.
    AgentWorkspace,
    /// Home volume.
    PersistentVolumeClaim,
    /// Headless service.
    Service,
    /// Ingress and egress rules.
    NetworkPolicy,
    /// The agent.
    Pod,
    /// What `kubectl describe` shows.
    Event,
    /// The operator's own key pairs.
    Secret,
    /// Leader election.
    Lease,
    /// Looked up to explain a volume that does not bind.
    StorageClass,
    /// What requests want of a workspace.
    AgentWorkspaceWake,
    /// A token of a service account, for the plugin.
    TokenRequest,
    /// Whose token it is.
    TokenReview,
    /// Who may connect.
    SubjectAccessReview,
    /// Looked up to explain a pod that does not end.
    Node,
}

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verb {
    /// One live read.
    Get,
    /// A live list.
    List,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH, server-side apply included.
    Patch,
    /// DELETE.
    Delete,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum CallResult {
    /// Accepted.
    Ok,
    /// 409: somebody else was faster, or the name is taken.
    Conflict,
    /// Refused for good: forbidden, invalid, not found.
    Refused,
    /// No answer in time.
    TimedOut,
    /// The API server or the way to it failed.
    Unavailable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    kind: Kind,
    verb: Verb,
    result: CallResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: Kind,
}

/// A label from a closed list of words of another module (phases, stop reasons).
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

/// A pass without writes takes well under a millisecond; one with four writes some 20–100 ms; a drain call up to 5 s.
const RECONCILE_BUCKETS: [f64; 8] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0];
/// Image present: 1–3 s. A volume to provision: 5–20 s. An image to pull or a node to add: minutes.
const START_BUCKETS: [f64; 9] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0];

/// The operator's metrics and the registry that writes them.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    reconciles: Family<OutcomeLabel, Counter>,
    durations: Family<OutcomeLabel, Histogram, fn() -> Histogram>,
    calls: Family<CallLabels, Counter>,
    workspaces: Family<PhaseLabel, Gauge>,
    stops: Family<ReasonLabel, Counter>,
    starts: Histogram,
    start_stages: Family<StageLabel, Histogram, fn() -> Histogram>,
    idle_stops_paused: Gauge,
    watch_age: Family<KindLabel, Gauge>,
    undecodable: Family<KindLabel, Gauge>,
    queue_depth: Gauge,
    leader: Gauge,
    rotation_stage: Gauge,
    rotation_outdated_pods: Gauge,
    rotation_steps: Family<StepLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything once.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("agent_workspace_operator");
        let durations: Family<OutcomeLabel, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS));
        let starts = Histogram::new(START_BUCKETS);
        let start_stages: Family<StageLabel, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(START_BUCKETS));
        let idle_stops_paused = Gauge::default();
        let (reconciles, calls) = (Family::default(), Family::default());
        let (workspaces, stops) = (Family::default(), Family::default());
        let (watch_age, undecodable) = (Family::default(), Family::default());
        let (queue_depth, leader) = (Gauge::default(), Gauge::default());
        let (rotation_stage, rotation_outdated_pods) = (Gauge::default(), Gauge::default());
        let rotation_steps = Family::default();
        registry.register_with_unit(
            "reconcile_duration",
            "Time of one reconcile by outcome",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register("reconciles", "Reconciles by outcome", reconciles.clone());
        registry.register("api_calls", "Calls to the API server by kind, verb and result", calls.clone());
        registry.register("workspaces", "Workspaces by phase; only the leader reports them", workspaces.clone());
        registry.register("stops", "Stopped workspaces by reason", stops.clone());
        registry.register_with_unit(
            "start_duration",
            "Time from the start of a workspace to Ready",
            Unit::Seconds,
            starts.clone(),
        );
        registry.register_with_unit(
            "start_stage_duration",
            "Time of the stages of starts: pod, schedule, network, container, ready",
            Unit::Seconds,
            start_stages.clone(),
        );
        registry.register(
            "idle_stops_paused",
            "1 while too many agent servers do not answer: none is put to sleep",
            idle_stops_paused.clone(),
        );
        registry.register_with_unit(
            "watch_age",
            "Time since the API server last answered a watch",
            Unit::Seconds,
            watch_age.clone(),
        );
        registry.register("undecodable_objects", "Objects skipped since they do not decode", undecodable.clone());
        registry.register("queue_depth", "Objects due for a reconcile that has not begun", queue_depth.clone());
        registry.register("leader", "1 when this replica acts", leader.clone());
        registry.register(
            "key_rotation_stage",
            "0: none, 1: the next keys are published, 2: they sign and the previous ones are still published",
            rotation_stage.clone(),
        );
        registry.register(
            "key_rotation_outdated_pods",
            "Running pods without all published keys; a rotation waits for them",
            rotation_outdated_pods.clone(),
        );
        registry.register("key_rotation_steps", "Steps of key rotations", rotation_steps.clone());
        Self {
            registry: Mutex::new(registry),
            reconciles,
            durations,
            calls,
            workspaces,
            stops,
            starts,
            start_stages,
            idle_stops_paused,
            watch_age,
            undecodable,
            queue_depth,
            leader,
            rotation_stage,
            rotation_outdated_pods,
            rotation_steps,
        }
    }

    /// What a gateway counts of its calls and watches; `GatewayMetrics` adds the rest. Nothing of the controller is shown.
    pub fn for_gateway() -> Self {
        let mut ours = Self::new();
        let mut registry = Registry::with_prefix("agent_workspace_gateway");
        registry.register("api_calls", "Calls to the API server by kind, verb and result", ours.calls.clone());
        let (name, help) = ("watch_age", "Time since the API server last answered a watch");
        registry.register_with_unit(name, help, Unit::Seconds, ours.watch_age.clone());
        let (name, help) = ("undecodable_objects", "Objects skipped since they do not decode");
        registry.register(name, help, ours.undecodable.clone());
        ours.registry = Mutex::new(registry);
        ours
    }

    /// Registers more under the same prefix.
    pub(super) fn extend(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// One finished reconcile.
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.reconciles.get_or_create(&OutcomeLabel { outcome }).inc();
        self.durations.get_or_create(&OutcomeLabel { outcome }).observe(took.as_secs_f64());
    }

    /// Number of finished reconciles with this outcome.
    pub fn reconciles(&self, outcome: Outcome) -> u64 {
        self.reconciles.get(&OutcomeLabel { outcome }).map_or(0, |counter| counter.get())
    }

    /// One finished call to the API server.
    pub fn called(&self, kind: Kind, verb: Verb, result: CallResult) {
        self.calls.get_or_create(&CallLabels { kind, verb, result }).inc();
    }

    /// Number of calls with this kind and verb, whatever their result.
    pub fn calls(&self, kind: Kind, verb: Verb) -> u64 {
        [CallResult::Ok, CallResult::Conflict, CallResult::Refused, CallResult::TimedOut, CallResult::Unavailable]
            .into_iter()
            .filter_map(|result| self.calls.get(&CallLabels { kind, verb, result }).map(|counter| counter.get()))
            .sum()
    }

    /// Workspaces in one phase.
    pub fn workspaces(&self, phase: &'static str, count: usize) {
        self.workspaces.get_or_create(&PhaseLabel { phase }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// One stop.
    pub fn stopped(&self, reason: &'static str) {
        self.stops.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// One start that became ready.
    pub fn started(&self, took: Duration) {
        self.starts.observe(took.as_secs_f64());
    }

    /// One stage of a start.
    pub fn start_stage(&self, stage: &'static str, took: Duration) {
        self.start_stages.get_or_create(&StageLabel { stage }).observe(took.as_secs_f64());
    }

    /// Whether idle stops are paused.
    pub fn idle_stops_paused(&self, paused: bool) {
        self.idle_stops_paused.set(i64::from(paused));
    }

    /// Age of a watch.
    pub fn watch_age(&self, kind: Kind, age: Duration) {
        self.watch_age.get_or_create(&KindLabel { kind }).set(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    }

    /// Objects of a kind that do not decode.
    pub fn undecodable(&self, kind: Kind, count: usize) {
        self.undecodable.get_or_create(&KindLabel { kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Objects due and not begun.
    pub fn queue_depth(&self, depth: usize) {
        self.queue_depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Whether this replica leads.
    pub fn leader(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    /// Where a key rotation stands: see `trust::rotation::Progress`.
    pub fn rotation(&self, stage: i64, outdated_pods: usize) {
        self.rotation_stage.set(stage);
        self.rotation_outdated_pods.set(i64::try_from(outdated_pods).unwrap_or(i64::MAX));
    }

    /// A step of a key rotation was taken.
    pub fn rotated(&self, step: &'static str) {
        self.rotation_steps.get_or_create(&StepLabel { step }).inc();
    }

    /// All metrics in the `OpenMetrics` text format.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        encode(&mut text, &registry)?;
        Ok(text)
    }
}
