//! The life of a workspace: what is wanted, what is there, what comes next.
//!
//! Each transition is first one status patch; children follow, and the pod only once the cache holds that patch
//! (`own_write_pending`). So a lagging cache can never lead to a pod for a workspace that is off, or to a second pod.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::crd::{
    AgentWorkspaceStatus, ConditionType, LastStart, LastStop, Phase, Reason, StartReason, StopActor, StopReason,
};

use super::{
    ChildKind, Config, Drain, EventKind, EventToPublish, LookUp, Observed, Plan, PodDeletion, PodMetadataPatch,
    PodPhase, PodView, Seen, Valid, WriteFailureKind, children,
    endpoint::{Endpoint, ModelPods},
    ownership, running,
    starting::{self, Overdue},
    status::{Draft, Progress, Truth, after, micros},
    storage,
    valid::{self, Invalid},
};

/// The cache catches up within milliseconds; this is for the case that its notice was lost.
const CACHE_LAG_SECONDS: i64 = 5;
/// Objects in our way are not watched (they lack our label), so they are looked at again: one read of four objects.
const CONFLICT_SECONDS: i64 = 60;

/// One decision in the making: what all steps need.
pub(super) struct Situation<'a> {
    pub config: &'a Config,
    pub valid: &'a Valid,
    pub observed: &'a Observed,
    pub now: Timestamp,
    /// Hash of the pod that would be created now.
    pub revision: String,
}

impl<'a> Situation<'a> {
    pub fn status(&self) -> &'a AgentWorkspaceStatus {
        &self.observed.workspace.status
    }

    pub fn draft(&self) -> Draft<'a> {
        draft(self.config, self.observed, self.now)
    }

    /// The pods of a model server inside the cluster. `Err`: there is one, and no way to it can be opened.
    pub fn model_pods(&self) -> Result<Option<ModelPods>, String> {
        match &self.valid.model_endpoint {
            Some((Endpoint::Cluster(place), _)) => place.pods(self.observed.model_service.as_ref()).map(Some),
            Some((Endpoint::Outside, _)) | None => Ok(None),
        }
    }

    /// A child was refused and it is too early to try again.
    pub fn refused_until(&self) -> Option<Timestamp> {
        self.observed.write_failure.as_ref().map(|failure| failure.retry_at).filter(|retry_at| *retry_at > self.now)
    }

    /// Name of the pod.
    pub fn pod_deletion(&self, pod: &PodView) -> PodDeletion {
        PodDeletion { name: self.valid.agent_name(), uid: pod.uid.clone(), grace_seconds: None }
    }
}

/// Decides. See [`super::plan`].
pub(super) fn decide(config: &Config, observed: &Observed, now: Timestamp) -> Plan {
    let namespace_ends =
        observed.write_failure.as_ref().is_some_and(|failure| failure.kind == WriteFailureKind::NamespaceTerminating);
    if observed.namespace_terminating || namespace_ends {
        return Plan::default();
    }
    if observed.workspace.deleting {
        return terminating(config, observed, now);
    }
    if observed.own_write_pending {
        return Plan { requeue_at: Some(after(now, CACHE_LAG_SECONDS)), ..Plan::default() };
    }
    let valid = Valid::parse(config, &observed.workspace);
    let plan = match (valid::wants_to_run(&observed.workspace.spec), valid) {
        (false, valid) => off(config, observed, valid.as_ref().ok(), now),
        (true, Ok(valid)) => on(config, &valid, observed, now),
        (true, Err(invalid)) => blocked(config, observed, &invalid, now),
    };
    with_pod_metadata(status_first(plan), observed)
}

/// Whatever else is decided about it, a pod that lives and stays gets the keys that are published now (a rotation waits for
/// it), and its labels back: without them neither its policy nor its Service selects it.
fn with_pod_metadata(plan: Plan, observed: &Observed) -> Plan {
    let Seen::Ours(pod) = &observed.pod else { return plan };
    let keys = Some(&observed.token_keys).filter(|keys| pod.keys.as_ref() != Some(*keys));
    if !pod.lives() || plan.delete_pod.is_some() || !plan.look_up.is_empty() || (keys.is_none() && pod.labelled) {
        return plan;
    }
    let workspace = &observed.workspace;
    let patch = PodMetadataPatch {
        name: valid::agent_name(&workspace.name),
        uid: pod.uid.clone(),
        keys: keys.cloned(),
        labels: if pod.labelled { BTreeMap::new() } else { children::labels(&workspace.name, &workspace.uid) },
    };
    Plan { pod_metadata: Some(patch), ..plan }
}

/// A status that is written makes the cache old: pods are made and taken by the decision after it.
fn status_first(plan: Plan) -> Plan {
    match plan.status {
        Some(_) => Plan { create_pod: None, drain: None, delete_pod: None, ..plan },
        None => plan,
    }
}

fn draft<'a>(config: &Config, observed: &'a Observed, now: Timestamp) -> Draft<'a> {
    let workspace = &observed.workspace;
    let mut draft = Draft::new(&workspace.status, workspace.generation, now);
    draft.new.url = config.workspace_url(&workspace.namespace, &workspace.name);
    draft
}

/// Closes a draft into a plan.
pub(super) fn close(draft: Draft<'_>, plan: Plan) -> Plan {
    let (status, events) = draft.finish();
    Plan { status, events, ..plan }
}

/// Owner references do the work; the status only says so, for as long as somebody holds the object back.
fn terminating(config: &Config, observed: &Observed, now: Timestamp) -> Plan {
    let mut draft = draft(config, observed, now);
    draft.new.phase = Some(Phase::Terminating);
    draft.new.pod = None;
    let message = "the workspace is being deleted";
    draft.not_ready(Reason::Terminating, message);
    draft.progress(Progress::Converging(Reason::Terminating, message.to_owned()));
    close(draft, Plan::default())
}

fn on(config: &Config, valid: &Valid, observed: &Observed, now: Timestamp) -> Plan {
    let unconfirmed = unconfirmed(valid, observed);
    if !unconfirmed.is_empty() {
        return Plan { look_up: vec![LookUp::Live(unconfirmed)], ..Plan::default() };
    }
    match ownership::check(valid, observed) {
        ownership::Finding::Ours => {}
        ownership::Finding::Leftover(message) => return waiting(config, observed, &message, now),
        ownership::Finding::Conflict(message) => {
            let invalid = Invalid { reason: Reason::NameConflict, message };
            let plan = blocked(config, observed, &invalid, now);
            return Plan { requeue_at: Some(after(now, CONFLICT_SECONDS)), ..plan };
        }
    }
    let revision = super::children::revision(valid);
    let situation = Situation { config, valid, observed, now, revision };
    let mut plan = match &observed.pod {
        Seen::Ours(pod) if pod.deleting => starting::pod_ending(&situation, pod),
        Seen::Ours(pod) if ended(pod) => starting::pod_ended(&situation, pod),
        Seen::Ours(pod) if pod.ready => running::pod_ready(&situation, pod),
        Seen::Ours(pod) => starting::pod_not_ready(&situation, pod),
        Seen::Missing | Seen::Unconfirmed | Seen::Foreign(_) => starting::no_pod(&situation),
    };
    if !plan.look_up.is_empty() {
        return plan;
    }
    let next = if let Some(retry_at) = situation.refused_until() {
        plan.create_pod = None;
        Some(retry_at)
    } else {
        plan.apply = storage::children(&situation);
        storage::mend_at(&situation)
    };
    plan.requeue_at = plan.requeue_at.into_iter().chain(next).min();
    plan.events.extend(reattached(&plan, valid, observed));
    plan
}

/// A claim that was kept from a former workspace is taken back.
fn reattached(plan: &Plan, valid: &Valid, observed: &Observed) -> Option<EventToPublish> {
    let Seen::Ours(claim) = &observed.claim else { return None };
    let applied = plan.apply.iter().any(|child| child.kind() == ChildKind::Claim);
    (applied && claim.workspace_uid.as_deref() != Some(valid.uid.as_str())).then(|| EventToPublish {
        kind: EventKind::Normal,
        reason: Reason::ClaimReattached,
        action: "Attach",
        note: format!(
            "PersistentVolumeClaim {} was kept from a former workspace of the same owner and is used again",
            valid.claim_name()
        ),
    })
}

/// What has to be read live before a first write: the caches hold only objects with our label, and a forced apply would
/// take over somebody else's object. The pod is created by POST, which cannot take over; it is read to report a conflict
/// before a start is announced.
fn unconfirmed(valid: &Valid, observed: &Observed) -> Vec<ChildKind> {
    let persistent = matches!(valid.storage, valid::Storage::Persistent { .. });
    // A pod that was Running and is not in the cache may only have lost its label.
    let announced = observed.workspace.status.phase == Some(Phase::Starting);
    let mut kinds = Vec::new();
    if persistent && observed.claim == Seen::Unconfirmed {
        kinds.push(ChildKind::Claim);
    }
    if observed.service == Seen::Unconfirmed {
        kinds.push(ChildKind::Service);
    }
    if observed.policy == Seen::Unconfirmed {
        kinds.push(ChildKind::NetworkPolicy);
    }
    if observed.pod == Seen::Unconfirmed && !announced {
        kinds.push(ChildKind::Pod);
    }
    kinds
}

/// The pod is over, and nobody asked for its deletion yet.
pub(super) fn ended(pod: &PodView) -> bool {
    matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed)
}

/// Children of a former workspace of this name are being collected.
fn waiting(config: &Config, observed: &Observed, message: &str, now: Timestamp) -> Plan {
    let mut draft = draft(config, observed, now);
    draft.new.phase = Some(Phase::Pending);
    draft.not_ready(Reason::Pending, message);
    draft.progress(Progress::Converging(Reason::Pending, message.to_owned()));
    close(draft, Plan { requeue_at: Some(after(now, CACHE_LAG_SECONDS)), ..Plan::default() })
}

/// The spec cannot be carried out, or a name is taken. A pod that runs goes on; none is created or replaced.
fn blocked(config: &Config, observed: &Observed, why: &Invalid, now: Timestamp) -> Plan {
    let mut draft = draft(config, observed, now);
    let living = match &observed.pod {
        Seen::Ours(pod) if !pod.deleting && !ended(pod) => Some(pod),
        _ => None,
    };
    if living.is_none() || !matches!(draft.new.phase, Some(Phase::Running | Phase::Starting)) {
        draft.new.phase = Some(Phase::Pending);
        draft.new.pod = None;
    }
    draft.set(ConditionType::Ready, Truth::False, why.reason, &why.message);
    let answers = draft.new.phase == Some(Phase::Running) && living.is_some_and(|pod| pod.ready);
    if answers {
        draft.set(ConditionType::Running, Truth::True, Reason::Running, "the pod that was started before goes on");
    } else {
        draft.set(ConditionType::Running, Truth::False, why.reason, &why.message);
    }
    draft.progress(Progress::Stalled(why.reason, why.message.clone()));
    close(draft, Plan::default())
}

/// The workspace is to have no pod.
fn off(config: &Config, observed: &Observed, valid: Option<&Valid>, now: Timestamp) -> Plan {
    let mut draft = draft(config, observed, now);
    let mut plan = Plan::default();
    match &observed.pod {
        Seen::Ours(pod) => {
            let message = "spec.runPolicy is Stopped; the pod is being stopped";
            if draft.new.phase == Some(Phase::Stopping) {
                if !pod.deleting {
                    plan.drain = drain(valid, pod);
                    plan.delete_pod = Some(PodDeletion {
                        name: valid::agent_name(&observed.workspace.name),
                        uid: pod.uid.clone(),
                        grace_seconds: None,
                    });
                }
            } else {
                draft.new.phase = Some(Phase::Stopping);
                draft.new.last_stop =
                    Some(LastStop { at: draft.time(), reason: StopReason::RunPolicy, by: StopActor::User });
            }
            draft.new.pod = None;
            match starting::overdue(pod, now) {
                Overdue::Since(message) => {
                    draft.not_ready(Reason::PodTerminating, &message);
                    draft.progress(Progress::Stalled(Reason::PodTerminating, message));
                }
                Overdue::From(time) => {
                    plan.requeue_at = time;
                    draft.not_ready(Reason::Stopping, message);
                    draft.progress(Progress::Converging(Reason::Stopping, message.to_owned()));
                }
            }
        }
        Seen::Missing | Seen::Unconfirmed | Seen::Foreign(_) => stopped(&mut draft),
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

fn stopped(draft: &mut Draft<'_>) {
    let message = "spec.runPolicy is Stopped; set it to Always to start";
    draft.new.phase = Some(Phase::Stopped);
    draft.new.pod = None;
    draft.new.started_at = None;
    draft.set(ConditionType::Ready, Truth::True, Reason::Stopped, message);
    draft.set(ConditionType::Running, Truth::False, Reason::Stopped, message);
    for kind in [ConditionType::SandboxReady, ConditionType::AgentReady] {
        draft.set(kind, Truth::Unknown, Reason::Stopped, "known while the workspace runs");
    }
    draft.remove(ConditionType::UpdateAvailable);
    draft.progress(Progress::Settled);
}

/// A server that never answered, or has ended, needs no drain.
fn drain(valid: Option<&Valid>, pod: &PodView) -> Option<Drain> {
    // The server keeps 5 seconds of the grace period for itself (docs/contract.md).
    let grace_seconds = valid.map_or(0, |valid| valid.stop_grace_period_seconds.saturating_sub(5));
    let ip = pod.ip.clone().filter(|_| pod.ready)?;
    Some(Drain { pod_uid: pod.uid.clone(), ip, grace_seconds })
}

/// Announces a start. Conditions of the start itself are set by the caller.
pub(super) fn announce_start(
    draft: &mut Draft<'_>,
    situation: &Situation<'_>,
    reason: StartReason,
    failures: Option<i32>,
) {
    draft.new.phase = Some(Phase::Starting);
    draft.new.pod = None;
    draft.new.started_at = None;
    draft.new.rendered_revision = Some(situation.revision.clone());
    draft.new.last_start =
        Some(LastStart { requested_at: micros(situation.now), reason, ready_after_milliseconds: None, failures });
    draft.remove(ConditionType::UpdateAvailable);
}
