//! Who may connect to which workspace: its owner, and with `visibility: Authorized` whom an access review allows.
//!
//! Owns the decision and how long it holds. Denied is the default.

use std::{sync::Arc, time::Duration};

use super::recent::Recent;
use crate::{
    cluster::{ClusterError, Person, Reachable, Reviews, WorkspaceKey},
    crd::{Owner, Visibility},
};

/// Somebody who was allowed is allowed for this long.
const ALLOWED: Duration = Duration::from_secs(10);
/// Somebody who was not may be by now.
const DENIED: Duration = Duration::from_secs(2);

/// Decides on connections.
pub struct Access {
    reviews: Reviews,
    recent: Recent<([u8; 32], WorkspaceKey), bool>,
}

impl Access {
    /// Asks `reviews`.
    pub fn new(reviews: Reviews) -> Self {
        Self { reviews, recent: Recent::new(|allowed| if *allowed { ALLOWED } else { DENIED }) }
    }

    /// Whether a person may connect. `digest` is that of the credential, so that another credential is another question.
    pub async fn allowed(
        &self,
        person: &Arc<Person>,
        digest: [u8; 32],
        key: &WorkspaceKey,
        workspace: &Reachable,
    ) -> Result<bool, ClusterError> {
        if workspace.owner.as_ref().is_some_and(|owner| owns(owner, person)) {
            return Ok(true);
        }
        if !asks_for_review(workspace) {
            return Ok(false);
        }
        let question = (digest, key.clone());
        self.recent.get(&question, || Box::pin(self.reviews.may_connect(person, key))).await
    }
}

fn owns(owner: &Owner, person: &Person) -> bool {
    owner.user == person.user || owner.groups.iter().any(|group| person.groups.contains(group))
}

/// A workspace without an owner would otherwise be nobody's.
fn asks_for_review(workspace: &Reachable) -> bool {
    workspace.owner.is_none() || workspace.visibility == Visibility::Authorized
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(user: &str, groups: &[&str]) -> Person {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Person { user: user.to_owned(), uid: None, groups, extra: std::collections::BTreeMap::new() }
    }

    #[test]
    fn the_owner_is_the_user_or_a_member_of_one_of_the_groups() {
        let owner = Owner { user: "alice".to_owned(), groups: vec!["team-a".to_owned()] };
        assert!(owns(&owner, &person("alice", &[])));
        assert!(owns(&owner, &person("bob", &["x", "team-a"])));
        assert!(!owns(&owner, &person("bob", &["alice"])));
        assert!(!owns(&owner, &person("team-a", &[])));
    }

    #[test]
    fn others_are_asked_about_only_when_the_workspace_says_so_or_has_no_owner() {
        let owner = Some(Owner { user: "alice".to_owned(), groups: Vec::new() });
        let with = |owner: Option<Owner>, visibility| Reachable { owner, visibility, ..Reachable::default() };
        assert!(!asks_for_review(&with(owner.clone(), Visibility::Owner)));
        assert!(asks_for_review(&with(owner, Visibility::Authorized)));
        assert!(asks_for_review(&with(None, Visibility::Owner)));
    }
}
