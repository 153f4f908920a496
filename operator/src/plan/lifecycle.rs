//! The life of a workspace: what is wanted, what is there, what comes next.
//!
//! Each transition is first one status patch; children follow, and the pod only once the cache holds that patch
//! (`own_write_pending`). So a lagging cache can never lead to a pod for a workspace that is off, or to a second pod.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::crd::{AgentWorkspaceStatus, ConditionType, Exposure, LastStart, Phase, Reason, RunPolicy, StartReason};

use super::{
    ChildKind, Config, EventKind, EventToPublish, LookUp, Observed, Plan, PodDeletion, PodMetadataPatch, PodPhase,
    PodView, Seen, Valid, WriteFailureKind, children,
    endpoint::{Endpoint, ModelPods},
    life::{Life, run_policy},
    ownership,
    run_state::{self, Run, Step, Wanted},
    running, starting,
    status::{Draft, Progress, Truth, after, micros, seconds},
    stopping::off,
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
    pub run: &'a Run,
}

impl<'a> Situation<'a> {
    pub fn status(&self) -> &'a AgentWorkspaceStatus {
        &self.observed.workspace.status
    }

    pub fn draft(&self) -> Draft<'a> {
        begin(self.config, self.observed, Some(self.run), self.now)
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
    let plan = match Life::parse(&observed.workspace.spec) {
        Ok(life) => decide_life(config, &life, observed, now),
        Err(invalid) => match run_policy(&observed.workspace.spec) {
            RunPolicy::Stopped => decide_life(config, &Life::stopped(), observed, now),
            RunPolicy::Always | RunPolicy::OnDemand => blocked(config, observed, &invalid, now),
        },
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

fn decide_life(config: &Config, life: &Life, observed: &Observed, now: Timestamp) -> Plan {
    let run = match run_state::step(life, observed, now) {
        Step::Run(run) => run,
        Step::Ask(question) => return Plan { look_up: vec![question], ..Plan::default() },
    };
    let valid = Valid::parse(config, &observed.workspace);
    let mut plan = match (run.wanted, valid) {
        (Wanted::Deleted, _) => return deleted(observed),
        (Wanted::Off { stop, rest }, valid) => {
            off(config, observed, valid.as_ref().ok(), life, &run, (stop, rest), now)
        }
        (Wanted::On(_), Ok(valid)) => on(config, &valid, observed, &run, now),
        (Wanted::On(_), Err(invalid)) => blocked(config, observed, &invalid, now),
    };
    if plan.look_up.is_empty() {
        plan.requeue_at = plan.requeue_at.into_iter().chain(run.again).min();
    }
    plan
}

/// Its time is over: the object goes, and with it what it owns.
fn deleted(observed: &Observed) -> Plan {
    let note = "the workspace has expired and is deleted (spec.lifecycle.expiresAt, ttlSecondsAfterStopped)".to_owned();
    let event = EventToPublish { kind: EventKind::Normal, reason: Reason::Expired, action: "Delete", note };
    Plan { delete_workspace: Some(observed.workspace.uid.clone()), events: vec![event], ..Plan::default() }
}

/// A status that is written makes the cache old: pods are made and taken by the decision after it.
fn status_first(plan: Plan) -> Plan {
    match plan.status {
        Some(_) => Plan { create_pod: None, drain: None, delete_pod: None, ..plan },
        None => plan,
    }
}

/// Begins a status. With `run`, what it says of the run state is written too; a blocked workspace leaves its slots for later.
pub(super) fn begin<'a>(config: &Config, observed: &'a Observed, run: Option<&Run>, now: Timestamp) -> Draft<'a> {
    let workspace = &observed.workspace;
    let mut draft = Draft::new(&workspace.status, workspace.generation, now);
    let exposure = config.exposure(workspace.spec.access.as_ref().and_then(|access| access.exposure));
    draft.new.url =
        (exposure == Exposure::Gateway).then(|| config.workspace_url(&workspace.namespace, &workspace.name)).flatten();
    let Some(run) = run else { return draft };
    if draft.new.settled_transition.is_none() {
        draft.new.settled_transition = run.first_settled;
    }
    if let Some(slot) = run.slot {
        draft.new.last_schedule_slot = Some(seconds(slot));
    }
    draft.new.next_scheduled_start = run.next_slots.0.map(seconds);
    draft.new.next_scheduled_stop = run.next_slots.1.map(seconds);
    match run.silent_since {
        Some(_) => draft.set(
            ConditionType::ActivityUnknown,
            Truth::True,
            Reason::ActivityUnknown,
            "the agent server does not say whether it is in use; it counts as busy, up to spec.lifecycle.maxBusySeconds",
        ),
        None => draft.remove(ConditionType::ActivityUnknown),
    }
    match run.ends_at {
        Some(end) => draft.set(
            ConditionType::ExpiringSoon,
            Truth::True,
            Reason::ExpiringSoon,
            format!("the workspace ends at {end} (spec.lifecycle.expiresAt, ttlSecondsAfterStopped)"),
        ),
        None => draft.remove(ConditionType::ExpiringSoon),
    }
    draft
}

/// Closes a draft into a plan.
pub(super) fn close(draft: Draft<'_>, plan: Plan) -> Plan {
    let (status, events) = draft.finish();
    Plan { status, events, ..plan }
}

/// Owner references do the work; the status only says so, for as long as somebody holds the object back.
fn terminating(config: &Config, observed: &Observed, now: Timestamp) -> Plan {
    let mut draft = begin(config, observed, None, now);
    draft.new.phase = Some(Phase::Terminating);
    draft.new.pod = None;
    let message = "the workspace is being deleted";
    draft.not_ready(Reason::Terminating, message);
    draft.progress(Progress::Converging(Reason::Terminating, message.to_owned()));
    close(draft, Plan::default())
}

fn on(config: &Config, valid: &Valid, observed: &Observed, run: &Run, now: Timestamp) -> Plan {
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
    let situation = Situation { config, valid, observed, now, revision, run };
    let mut plan = match &observed.pod {
        Seen::Ours(pod) if pod.deleting => starting::pod_ending(&situation, pod),
        Seen::Ours(pod) if ended(pod) => starting::pod_ended(&situation, pod),
        Seen::Ours(pod) if starting::is_replaced(&situation, pod) => starting::pod_replaced(&situation, pod),
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
    let announced = observed.workspace.status.phase == Some(Phase::Starting) && starting::lost_pod(observed).is_none();
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
    let mut draft = begin(config, observed, None, now);
    draft.new.phase = Some(Phase::Pending);
    draft.not_ready(Reason::Pending, message);
    draft.progress(Progress::Converging(Reason::Pending, message.to_owned()));
    close(draft, Plan { requeue_at: Some(after(now, CACHE_LAG_SECONDS)), ..Plan::default() })
}

/// The spec cannot be carried out, or a name is taken. A pod that runs goes on; none is created or replaced.
fn blocked(config: &Config, observed: &Observed, why: &Invalid, now: Timestamp) -> Plan {
    let mut draft = begin(config, observed, None, now);
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

/// Announces a start. Conditions of the start itself are set by the caller.
pub(super) fn announce_start(
    draft: &mut Draft<'_>,
    situation: &Situation<'_>,
    reason: StartReason,
    failures: Option<i32>,
) {
    draft.new.phase = Some(Phase::Starting);
    draft.new.pod = None;
    draft.new.isolation = None;
    draft.new.started_at = None;
    draft.new.rendered_revision = Some(situation.revision.clone());
    draft.new.last_start = Some(LastStart {
        requested_at: micros(situation.now),
        reason,
        ready_after_milliseconds: None,
        failures,
        replaces_pod_uid: match &situation.observed.pod {
            Seen::Ours(pod) => Some(pod.uid.clone()),
            Seen::Missing | Seen::Unconfirmed | Seen::Foreign(_) => None,
        },
    });
    draft.new.settled_transition = situation.run.settled;
    draft.remove(ConditionType::UpdateAvailable);
}
