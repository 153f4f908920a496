//! Objects in the way, and claims of former workspaces.

use super::*;
use crate::crd::Phase;

fn foreign<T>(owner: &str, leftover: bool) -> Seen<T> {
    Seen::Foreign(ForeignObject { owner: Some(owner.to_owned()), leftover })
}

#[test]
fn a_foreign_object_stops_the_start_and_is_looked_at_again() {
    let mut observed = fresh(json!({}));
    observed.service = foreign("Deployment/web", false);
    let plan = step(&mut observed, at(0));
    assert_eq!((&plan.apply, &plan.create_pod), (&Vec::new(), &None));
    assert_eq!(plan.requeue_at, Some(at(60)));
    assert_eq!(events(&plan), ["Warning NameConflict"]);
    assert_eq!(
        message(&observed.workspace.status, ConditionType::Stalled),
        "Service alice-agent exists and is not this workspace's (it belongs to Deployment/web); delete or rename it, or create the workspace under another name"
    );
    assert_eq!(observed.workspace.status.phase, Some(Phase::Pending));
    assert_eq!(decide(&observed, at(60)).status, None);
    observed.service = Seen::Missing;
    step(&mut observed, at(120));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Starting));
}

#[test]
fn children_of_a_former_workspace_are_waited_for() {
    let mut observed = fresh(json!({}));
    observed.pod = foreign("AgentWorkspace/alice", true);
    let plan = step(&mut observed, at(0));
    assert_eq!((plan.apply.len(), plan.create_pod, plan.requeue_at), (0, None, Some(at(5))));
    assert!(events(&Plan { events: plan.events, ..Plan::default() }).is_empty());
    assert!(conditions(&observed.workspace.status).contains(&"Reconciling=True/Pending".to_owned()));
    let mut observed = with_children(fresh(json!({})));
    let Seen::Ours(claim) = &mut observed.claim else { panic!("a claim") };
    claim.workspace_uid = Some("former".to_owned());
    claim.controller_uid = Some("former".to_owned());
    assert_eq!(step(&mut observed, at(0)).requeue_at, Some(at(5)));
}

fn with_kept_claim(owner: Option<&str>, kept_from: Option<&str>) -> Observed {
    let of = |user: Option<&str>| match user {
        Some(user) => json!({"owner": {"user": user}}),
        None => json!({}),
    };
    let former = with_children(fresh(of(kept_from)));
    let mut observed = fresh(of(owner));
    observed.claim = former.claim;
    observed.workspace.uid = "new".to_owned();
    observed
}

#[test]
fn a_kept_claim_goes_back_to_the_same_owner_only() {
    for owner in [Some("alice"), None] {
        let mut observed = with_kept_claim(owner, owner);
        let plan = step(&mut observed, at(0));
        assert_eq!(events(&plan), ["Normal ClaimReattached"]);
        let Some(Child::Claim(claim)) = plan.apply.first() else { panic!("a claim: {plan:?}") };
        assert_eq!(claim.metadata.labels.as_ref().expect("labels")[crate::crd::LABEL_WORKSPACE_UID], "new");
        assert_eq!(claim.spec.as_ref().expect("a spec").storage_class_name.as_deref(), Some("standard"));
    }
    for (owner, kept_from) in [(Some("bob"), Some("alice")), (None, Some("alice")), (Some("bob"), None)] {
        let mut observed = with_kept_claim(owner, kept_from);
        let plan = step(&mut observed, at(0));
        assert_eq!((plan.apply.len(), events(&plan)), (0, vec!["Warning NameConflict".to_owned()]));
        assert_eq!(
            message(&observed.workspace.status, ConditionType::Ready),
            "PersistentVolumeClaim alice-home was kept from a workspace of another owner; delete the claim (its files are lost), or create the workspace under another name"
        );
    }
}

#[test]
fn a_stopped_workspace_does_not_touch_a_claim_of_another_owner() {
    let mut observed = with_kept_claim(Some("bob"), Some("alice"));
    observed.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    let plan = step(&mut observed, at(0));
    assert_eq!(plan.apply, Vec::new());
    assert_eq!(observed.workspace.status.storage, None);
}

#[test]
fn a_claim_that_is_going_or_lost_its_volume_gets_no_pod() {
    let mut observed = fresh(json!({}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    let Seen::Ours(claim) = &mut observed.claim else { panic!("a claim") };
    claim.deleting = true;
    let plan = step(&mut observed, at(1));
    assert_eq!((plan.create_pod, plan.apply), (None, Vec::new()));
    assert!(conditions(&observed.workspace.status).contains(&"StorageReady=False/VolumeTerminating".to_owned()));
    let Seen::Ours(claim) = &mut observed.claim else { panic!("a claim") };
    claim.deleting = false;
    claim.phase = ClaimPhase::Lost;
    let plan = step(&mut observed, at(2));
    assert_eq!(plan.create_pod, None);
    assert!(conditions(&observed.workspace.status).contains(&"Stalled=True/VolumeLost".to_owned()));
}

#[test]
fn an_object_that_somebody_else_changed_is_applied_again_at_most_every_ten_seconds() {
    let mut observed = fresh(json!({}));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(5)));
    let Seen::Ours(policy) = &mut observed.policy else { panic!("no policy") };
    (policy.overwritten, policy.applied_at) = (true, Some(at(0)));
    let early = decide(&observed, at(6));
    assert_eq!((early.apply.len(), early.requeue_at), (0, Some(at(10))));
    let due = decide(&observed, at(10));
    assert_eq!(due.apply.iter().map(Child::kind).collect::<Vec<_>>(), [ChildKind::NetworkPolicy]);
    // Nobody knows when it was applied: whoever changed it removed the record too.
    let Seen::Ours(policy) = &mut observed.policy else { panic!("no policy") };
    policy.applied_at = None;
    assert_eq!(decide(&observed, at(1)).apply.len(), 1);
}
