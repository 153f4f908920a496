//! One reconcile: observe, validate and plan, execute — until nothing is left to do.
//!
//! Owns the order of the steps and what follows from a refused or lost write. Must not know watches, queues or metrics of itself.

mod answers;
mod decide;
mod memory;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    agent::{AgentClient, Target},
    cluster::{Cluster, ClusterError, Workspace, WorkspaceKey},
    crd::{AgentWorkspaceStatus, StopReason},
    plan::{self, ChildKind, Observed, Plan, Seen, WriteFailure, WriteFailureKind},
    telemetry::Metrics,
    trust::Signer,
};

use answers::Answers;
pub use memory::backoff;
use memory::{Memory, retry_at};

/// A pass ends when a decision leaves nothing to write. The longest chain is four: a failed pod is recorded, deleted, announced
/// anew, created; the rest is room for a refused write in between.
const ROUNDS: usize = 8;
/// Agents of which nothing is known are asked at no more than 50/s after a start or a handover.
const FIRST_QUESTIONS_PER_SECOND: usize = 50;
/// And over a minute at least.
pub const LEAST_SPREAD_SECONDS: i64 = 60;
/// After a write conflict the watch brings the newer object within milliseconds, and with it the next pass. Should that get lost:
const CONFLICT_PAUSE: Duration = Duration::from_secs(5);

/// How a pass ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What it did.
    pub did: Did,
    /// When to look again although nothing changed.
    pub again: Option<Timestamp>,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// It wrote.
    Wrote,
    /// Nothing was to be done.
    Nothing,
    /// The cache is older than the object; it waits for the watch.
    Waits,
}

/// Why a pass failed. It is tried again with backoff.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Decisions that follow each other without end.
    #[error("the workspace did not settle within {ROUNDS} decisions")]
    Unsettled,
    /// A decision that keeps asking.
    #[error("a decision asked for the same look-up again")]
    EndlessQuestions,
}

impl ReconcileError {
    /// Stable word for metrics and logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Cluster(error) => error.reason(),
            Self::Unsettled => "Unsettled",
            Self::EndlessQuestions => "EndlessQuestions",
        }
    }
}

/// What one execution of a plan came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing was to be written.
    Settled,
    /// Something was written, or refused: there is something new to decide on.
    Moved,
    /// The pod's name is taken: read it live and decide again.
    PodNameTaken,
}

/// Carries out decisions for all workspaces.
pub struct Reconciler {
    cluster: Cluster,
    agent: AgentClient,
    signer: Signer,
    config: plan::Config,
    metrics: Arc<Metrics>,
    memories: Mutex<HashMap<WorkspaceKey, (String, Memory)>>,
    answers: Mutex<Answers>,
    leading_since: Timestamp,
    spread_seconds: i64,
}

impl Reconciler {
    /// Begins to act now, with full caches. Pods carry the public part of the keys of `signer`; the first
    /// questions to agents are spread over `least_spread_seconds` or more.
    pub fn new(
        cluster: Cluster,
        agent: AgentClient,
        signer: Signer,
        config: plan::Config,
        metrics: Arc<Metrics>,
        least_spread_seconds: i64,
    ) -> Self {
        let waves = i64::try_from(cluster.caches().pods.len() / FIRST_QUESTIONS_PER_SECOND).unwrap_or(i64::MAX);
        Self {
            cluster,
            agent,
            signer,
            config,
            metrics,
            memories: Mutex::default(),
            answers: Mutex::default(),
            leading_since: Timestamp::now(),
            spread_seconds: waves.max(least_spread_seconds),
        }
    }

    /// One pass over one workspace. Never run twice at once for the same key. `observing` is called before each look at the
    /// caches: what changed before is taken into account by this pass.
    pub async fn reconcile(&self, key: &WorkspaceKey, observing: &(dyn Fn() + Sync)) -> Result<Done, ReconcileError> {
        let mut did = Did::Nothing;
        let mut read_pod_live = false;
        let mut conflicts = 0;
        for _ in 0..ROUNDS {
            observing();
            let Some(workspace) = self.cluster.workspace(key) else {
                self.forget(key);
                return Ok(Done { did, again: None });
            };
            let mut memory = self.recall(&workspace);
            if memory.conflicted_version == Some(workspace.version) && self.cluster.await_newer(&workspace) {
                return Ok(wait_for_watch());
            }
            let result = self.round(&workspace, &mut memory, read_pod_live).await;
            self.remember(&workspace, memory);
            let (plan, step) = match result {
                Err(ReconcileError::Cluster(ClusterError::Conflict { message, .. })) => {
                    tracing::debug!(workspace = %key, message, "a write came too late");
                    if self.cluster.await_newer(&workspace) {
                        return Ok(wait_for_watch());
                    }
                    // The newer state is there already.
                    conflicts += 1;
                    continue;
                }
                other => other?,
            };
            read_pod_live = step == Step::PodNameTaken;
            if step == Step::Settled {
                return Ok(Done { did, again: plan.requeue_at });
            }
            did = Did::Wrote;
        }
        // Others that write all the time are no fault of the decisions.
        if conflicts > 0 { Ok(wait_for_watch()) } else { Err(ReconcileError::Unsettled) }
    }

    async fn round(
        &self,
        workspace: &Workspace,
        memory: &mut Memory,
        read_pod_live: bool,
    ) -> Result<(Plan, Step), ReconcileError> {
        let now = Timestamp::now();
        let mut observed = self.cluster.observe(&self.config, workspace, self.signer.keys().public.clone()).await?;
        if read_pod_live {
            self.cluster.observe_live(workspace, ChildKind::Pod, &mut observed).await?;
        }
        let plan = self.decide(workspace, memory, &mut observed, now).await?;
        let step = self.execute(workspace, memory, &observed, &plan, now).await;
        if let Err(ReconcileError::Cluster(ClusterError::Conflict { .. })) = &step {
            memory.conflicted_version = Some(workspace.version);
        }
        Ok((plan, step?))
    }

    /// Plans; answers what the plan asks for and plans again.
    /// Status first, then children, then events, whatever became of the children: the transition they tell of has happened.
    async fn execute(
        &self,
        workspace: &Workspace,
        memory: &mut Memory,
        observed: &Observed,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Step, ReconcileError> {
        let mut step = Step::Settled;
        if let Some(patch) = &plan.status {
            self.cluster.patch_status(workspace, &patch.status).await?;
            self.count(observed, &patch.status);
            step = Step::Moved;
        }
        let children = self.execute_children(workspace, memory, plan, now).await;
        for event in &plan.events {
            self.cluster.publish(workspace, event, now).await;
        }
        match children? {
            Step::Settled => Ok(step),
            moved => Ok(moved),
        }
    }

    async fn execute_children(
        &self,
        workspace: &Workspace,
        memory: &mut Memory,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Step, ReconcileError> {
        let key = &workspace.key;
        let mut step = Step::Settled;
        for child in &plan.apply {
            step = Step::Moved;
            let result = self.cluster.apply(key, child).await;
            if !written(workspace, memory, child.kind(), result, now)? {
                return Ok(step);
            }
        }
        if let Some(wanted) = &plan.pod_metadata {
            match self.cluster.patch_pod_metadata(key, wanted).await {
                // The pod is gone, and the watch is about to say so.
                Err(ClusterError::NotFound { .. }) => {}
                result => result?,
            }
            step = Step::Moved;
        }
        if let Some(pod) = &plan.create_pod {
            match self.cluster.create_pod(key, pod).await {
                Err(ClusterError::AlreadyExists { .. }) => return Ok(Step::PodNameTaken),
                result => {
                    step = Step::Moved;
                    let created = result.map(|uid| memory.created_pod = uid);
                    written(workspace, memory, ChildKind::Pod, created, now)?;
                }
            }
        }
        self.drain(workspace, plan, now).await;
        if let Some(deletion) = &plan.delete_pod {
            self.cluster.delete_pod(key, deletion).await?;
            memory.created_pod = None;
            step = Step::Moved;
        }
        if let Some(uid) = &plan.delete_workspace {
            // The watch says what becomes of it; until then there is nothing to decide.
            self.cluster.delete_workspace(key, uid).await?;
        }
        Ok(step)
    }

    /// A drain that fails stops nothing: SIGTERM has the same effect a moment later.
    async fn drain(&self, workspace: &Workspace, plan: &Plan, now: Timestamp) {
        let Some(drain) = &plan.drain else { return };
        let key = &workspace.key;
        let target = Target { namespace: &key.namespace, name: &key.name, workspace_uid: &workspace.uid };
        if let Err(error) = self.agent.drain(target, drain, now).await {
            let reason = error.reason();
            let error = &error as &dyn std::error::Error;
            tracing::warn!(workspace = %key, reason, error, "the agent server was not drained before its pod is deleted");
        }
    }

    fn count(&self, observed: &Observed, new: &AgentWorkspaceStatus) {
        let old = &observed.workspace.status;
        if let Some(stop) = new.last_stop.as_ref().filter(|stop| old.last_stop.as_ref() != Some(*stop)) {
            self.metrics.stopped(match stop.reason {
                StopReason::RunPolicy => "RunPolicy",
                StopReason::Failure => "Failure",
                StopReason::User => "User",
                StopReason::Idle => "Idle",
                StopReason::Schedule => "Schedule",
                StopReason::MaxRun => "MaxRun",
                StopReason::Expired => "Expired",
            });
        }
        let ready_after =
            |status: &AgentWorkspaceStatus| status.last_start.as_ref().and_then(|start| start.ready_after_milliseconds);
        if ready_after(old).is_none()
            && let Some(milliseconds) = ready_after(new).and_then(|milliseconds| u64::try_from(milliseconds).ok())
        {
            self.metrics.started(Duration::from_millis(milliseconds));
            if let (Some(start), Seen::Ours(pod)) = (&new.last_start, &observed.pod) {
                for (stage, milliseconds) in plan::start_stages(start.requested_at.0, pod) {
                    self.metrics.start_stage(stage, Duration::from_millis(milliseconds.unsigned_abs()));
                }
            }
        }
    }

    fn recall(&self, workspace: &Workspace) -> Memory {
        let memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories
            .get(&workspace.key)
            .filter(|(uid, _)| *uid == workspace.uid)
            .map(|(_, memory)| memory.clone())
            .unwrap_or_default()
    }

    fn remember(&self, workspace: &Workspace, memory: Memory) {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.insert(workspace.key.clone(), (workspace.uid.clone(), memory));
    }

    fn forget(&self, key: &WorkspaceKey) {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// True when the write succeeded, false when it was refused in a way that a person has to act on: that is remembered, and
/// the next decision reports it.
fn written(
    workspace: &Workspace,
    memory: &mut Memory,
    child: ChildKind,
    result: Result<(), ClusterError>,
    now: Timestamp,
) -> Result<bool, ReconcileError> {
    let (kind, message) = match result {
        Ok(()) => {
            memory.write_succeeded(child);
            return Ok(true);
        }
        Err(ClusterError::Forbidden { message, .. }) => {
            (WriteFailureKind::of(403, &message).unwrap_or(WriteFailureKind::Forbidden), message)
        }
        Err(ClusterError::Invalid { message, .. }) => (WriteFailureKind::Invalid, message),
        Err(error @ ClusterError::NamespaceTerminating { .. }) => {
            (WriteFailureKind::NamespaceTerminating, error.to_string())
        }
        Err(other) => return Err(other.into()),
    };
    tracing::info!(workspace = %workspace.key, child = child.as_str(), message, "a write was refused");
    let count = memory.failures_in_a_row(child) + 1;
    let retry_at = retry_at(now, count, rand::random());
    let generation = workspace.object.metadata.generation.unwrap_or_default();
    memory.write_refused(WriteFailure { child, kind, message, retry_at }, generation);
    Ok(false)
}

fn wait_for_watch() -> Done {
    let pause = jiff::SignedDuration::try_from(CONFLICT_PAUSE).unwrap_or_default();
    Done { did: Did::Waits, again: Timestamp::now().checked_add(pause).ok() }
}
