//! Claim, Service and NetworkPolicy as applied objects, and what the claim means for condition StorageReady.

use jiff::Timestamp;

use crate::crd::{ConditionType, Reason, StorageStatus};

use super::{
    Child, ClaimPhase, ClaimView, Observed, Seen, SimpleView, Valid, WriteFailure,
    children::{self, Claim},
    lifecycle::Situation,
    outcome::ChildKind,
    quantity::Amount,
    status::{Draft, Truth, after},
    valid::Storage,
};

/// A change by somebody else is taken back this long after the last apply, so at once as a rule. Another controller that
/// keeps changing the same field costs six writes a minute, and no more.
const MEND_SECONDS: i64 = 10;

/// Claim, Service and NetworkPolicy that are missing or differ from what was applied last, in the order of application.
pub(super) fn children(situation: &Situation<'_>) -> Vec<Child> {
    let observed = situation.observed;
    let mut children: Vec<Child> = Vec::new();
    match &observed.claim {
        Seen::Missing => {
            children
                .extend(rendered_claim(situation.valid, observed).map(|claim| Child::Claim(Box::new(claim.object))));
        }
        _ => children.extend(changed_claim(situation.valid, observed)),
    }
    let (service, applied) = children::service(situation.valid);
    if needs_apply(&observed.service, &applied, situation.now) {
        children.push(Child::Service(Box::new(service)));
    }
    // Without a Service to read there is no way to open; condition AgentReady tells.
    let model = situation.model_pods().unwrap_or_default();
    let (policy, applied) = children::network_policy(situation.config, situation.valid, model.as_ref());
    if needs_apply(&observed.policy, &applied, situation.now) {
        children.push(Child::NetworkPolicy(Box::new(policy)));
    }
    children
}

fn needs_apply(seen: &Seen<SimpleView>, applied: &str, now: Timestamp) -> bool {
    match seen {
        Seen::Missing => true,
        Seen::Ours(view) => {
            let mend = overwritten(view).is_some_and(|mend_at| mend_at <= now);
            !view.deleting && (view.applied.as_deref() != Some(applied) || mend)
        }
        Seen::Unconfirmed | Seen::Foreign(_) => false,
    }
}

/// When an object that somebody else changed is applied again.
fn overwritten(view: &SimpleView) -> Option<Timestamp> {
    let mend_at = view.applied_at.map_or(Timestamp::MIN, |applied_at| after(applied_at, MEND_SECONDS));
    view.overwritten.then_some(mend_at)
}

/// When the first of the objects that somebody else changed is applied again, if it is too early now.
pub(super) fn mend_at(situation: &Situation<'_>) -> Option<Timestamp> {
    [&situation.observed.service, &situation.observed.policy]
        .into_iter()
        .filter_map(|seen| match seen {
            Seen::Ours(view) if !view.deleting => overwritten(view),
            _ => None,
        })
        .filter(|mend_at| *mend_at > situation.now)
        .min()
}

/// The claim, when it exists and differs from what was applied last.
pub(super) fn changed_claim(valid: &Valid, observed: &Observed) -> Option<Child> {
    let existing = own_claim(valid, observed)?;
    let rendered = rendered_claim(valid, observed)?;
    (!existing.deleting && existing.applied.as_deref() != Some(&rendered.applied))
        .then(|| Child::Claim(Box::new(rendered.object)))
}

/// The claim that this workspace has or may take back. A former workspace's claim on its way out is neither.
fn own_claim<'a>(valid: &Valid, observed: &'a Observed) -> Option<&'a ClaimView> {
    match &observed.claim {
        Seen::Ours(claim)
            if claim.workspace_uid.as_deref() == Some(valid.uid.as_str())
                || (claim.controller_uid.is_none() && claim.owner_user == valid.owner_user) =>
        {
            Some(claim)
        }
        _ => None,
    }
}

fn rendered_claim(valid: &Valid, observed: &Observed) -> Option<Claim> {
    children::claim(valid, own_claim(valid, observed), observed.storage_class.as_ref())
}

/// Why no pod may be created with this claim now: it is going, or its volume is gone.
pub(super) fn unusable(observed: &Observed, valid: &Valid) -> Option<(Reason, String)> {
    let claim = own_claim(valid, observed)?;
    let name = valid.claim_name();
    if claim.deleting {
        return Some((
            Reason::VolumeTerminating,
            format!("PersistentVolumeClaim {name} is being deleted; a new one is made when it is gone"),
        ));
    }
    (claim.phase == ClaimPhase::Lost).then(|| {
        (
            Reason::VolumeLost,
            format!("the volume of PersistentVolumeClaim {name} is gone; restore it, or delete the claim to begin with an empty one"),
        )
    })
}

/// StorageReady and `status.storage` of a workspace whose pod is there and has mounted its volume.
pub(super) fn while_running(draft: &mut Draft<'_>, situation: &Situation<'_>) {
    let (valid, observed) = (situation.valid, situation.observed);
    if let Storage::Ephemeral { .. } = valid.storage {
        draft.new.storage = None;
        let message = "files are on the node and are lost when the workspace stops (spec.storage.ephemeral)";
        draft.set(ConditionType::StorageReady, Truth::True, Reason::Available, message);
        return;
    }
    let Some(claim) = own_claim(valid, observed) else { return };
    draft.new.storage = Some(reference(valid, claim));
    let refused = observed.write_failure.as_ref().filter(|failure| failure.child == ChildKind::Claim);
    let (truth, reason, message) = state(valid, observed, claim, refused);
    draft.set(ConditionType::StorageReady, truth, reason, message);
}

fn reference(valid: &Valid, claim: &ClaimView) -> StorageStatus {
    StorageStatus {
        claim_name: valid.claim_name(),
        claim_uid: Some(claim.uid.clone()),
        capacity: claim.capacity.clone(),
    }
}

fn state(
    valid: &Valid,
    observed: &Observed,
    claim: &ClaimView,
    refused: Option<&WriteFailure>,
) -> (Truth, Reason, String) {
    if let Some((reason, message)) = unusable(observed, valid) {
        return (Truth::False, reason, message);
    }
    if let Some(failure) = refused {
        return (Truth::False, failure.kind.reason(), super::cause::quote(&failure.message));
    }
    let rendered = rendered_claim(valid, observed);
    let class = claim.storage_class_name.as_deref().unwrap_or("of the claim");
    if rendered.is_some_and(|rendered| rendered.resize_unsupported) {
        let message = format!("StorageClass {class} does not permit to resize; the volume keeps its size");
        return (Truth::False, Reason::ResizeUnsupported, message);
    }
    let amount = |text: &Option<String>| text.as_deref().and_then(Amount::parse);
    match (amount(&claim.capacity), amount(&claim.requested)) {
        (Some(capacity), Some(requested)) if capacity < requested => {
            (Truth::True, Reason::Resizing, "the volume is being resized; it can be used meanwhile".to_owned())
        }
        _ => (Truth::True, Reason::Available, "the volume is mounted".to_owned()),
    }
}

/// StorageReady and `status.storage` of a workspace without a pod.
pub(super) fn while_off(draft: &mut Draft<'_>, valid: &Valid, observed: &Observed) {
    match (&valid.storage, own_claim(valid, observed)) {
        (Storage::Ephemeral { .. }, _) => {
            draft.new.storage = None;
            let message = "space on the node is set aside at the next start";
            draft.set(ConditionType::StorageReady, Truth::True, Reason::Available, message);
        }
        (Storage::Persistent { .. }, Some(claim)) => {
            draft.new.storage = Some(reference(valid, claim));
            let (truth, reason, message) = match unusable(observed, valid) {
                Some((reason, message)) => (Truth::False, reason, message),
                None => (Truth::True, Reason::Available, "the volume is kept".to_owned()),
            };
            draft.set(ConditionType::StorageReady, truth, reason, message);
        }
        (Storage::Persistent { .. }, None) => {
            draft.new.storage = None;
            let message = "the volume is made at the next start";
            draft.set(ConditionType::StorageReady, Truth::Unknown, Reason::Pending, message);
        }
    }
}
