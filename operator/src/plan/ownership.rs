//! Whether the objects with our children's names are ours.

use super::{ForeignObject, Observed, Seen, Valid};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// All that exist are.
    Ours,
    /// Some belong to a former workspace of this name and are being collected.
    Leftover(String),
    /// Some belong to somebody else.
    Conflict(String),
}

/// Checks all children.
pub(super) fn check(valid: &Valid, observed: &Observed) -> Finding {
    let agent = valid.agent_name();
    let foreign = [
        ("PersistentVolumeClaim", valid.claim_name(), foreign(&observed.claim)),
        ("Service", agent.clone(), foreign(&observed.service)),
        ("NetworkPolicy", agent.clone(), foreign(&observed.policy)),
        ("Pod", agent, foreign(&observed.pod)),
    ];
    let mut leftover = None;
    for (kind, name, object) in &foreign {
        match object {
            Some(object) if object.leftover => {
                leftover = Some(format!("waiting for {kind} {name} of a former workspace to go"));
            }
            Some(object) => return Finding::Conflict(conflict(kind, name, object)),
            None => {}
        }
    }
    if let Some(message) = leftover {
        return Finding::Leftover(message);
    }
    claim_of_another(valid, observed)
}

fn foreign<T>(seen: &Seen<T>) -> Option<&ForeignObject> {
    match seen {
        Seen::Foreign(object) => Some(object),
        _ => None,
    }
}

fn conflict(kind: &str, name: &str, object: &ForeignObject) -> String {
    let owner = object.owner.as_ref().map_or_else(String::new, |owner| format!(" (it belongs to {owner})"));
    format!(
        "{kind} {name} exists and is not this workspace's{owner}; delete or rename it, or create the workspace under another name"
    )
}

/// A retained claim holds somebody's files: only the same owner gets it back.
fn claim_of_another(valid: &Valid, observed: &Observed) -> Finding {
    let Seen::Ours(claim) = &observed.claim else { return Finding::Ours };
    let name = valid.claim_name();
    if claim.workspace_uid.as_deref() == Some(valid.uid.as_str()) {
        return Finding::Ours;
    }
    if claim.controller_uid.as_deref().is_some_and(|uid| uid != valid.uid) {
        return Finding::Leftover(format!("waiting for PersistentVolumeClaim {name} of a former workspace to go"));
    }
    if claim.owner_user == valid.owner_user {
        return Finding::Ours;
    }
    Finding::Conflict(format!(
        "PersistentVolumeClaim {name} was kept from a workspace of another owner; delete the claim (its files are lost), or create the workspace under another name"
    ))
}
