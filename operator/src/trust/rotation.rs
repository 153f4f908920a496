//! How key pairs are replaced while pods run: publish the next key, sign with it when every pod knows it, then take the old
//! one away. A pure function of the Secret's data, of what pods carry, and of time.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use ring::{rand::SystemRandom, signature::Ed25519KeyPair};

use super::{
    Scope, TrustError,
    key_ring::{Stage, data_key},
};

/// How often things happen in a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Age at which keys are replaced; `None`: only when asked.
    pub interval_seconds: Option<i64>,
    /// Between two steps.
    pub settle_seconds: i64,
    /// Between two looks at the Secret.
    pub look: Duration,
}

impl Times {
    /// Replaces keys of this age, or only when asked.
    ///
    /// Two minutes between two steps: the kubelet brings a changed annotation into the pod's file within 60–90 s, the server reads
    /// it within 2 s; tokens live 60 s, and whoever else signs with these keys reads the Secret every 30 s. A look every 30 s is
    /// two calls a minute.
    pub const fn new(interval_seconds: Option<i64>) -> Self {
        Self { interval_seconds, settle_seconds: 120, look: Duration::from_secs(30) }
    }
}

/// Where a rotation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No rotation: one key for each scope.
    Steady,
    /// The next keys are published and do not sign yet.
    Announced,
    /// The next keys sign; the previous ones are still published.
    Promoted,
}

/// What is to be done to the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the next keys and publish them.
    Announce,
    /// Sign with the next keys.
    Promote,
    /// Take the previous keys away.
    Retire,
}

/// What the next step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Where the rotation stands.
    pub progress: Progress,
    /// When that began.
    pub since: Timestamp,
    /// A person asked for new keys.
    pub requested: bool,
    /// Since when every running pod carries all published keys; `None` while one of them does not.
    pub patched_since: Option<Timestamp>,
    /// How often things happen.
    pub times: Times,
}

impl Progress {
    /// Reads it from the Secret's data.
    pub fn of(data: &BTreeMap<String, Vec<u8>>) -> Self {
        let any = |stage| Scope::ALL.iter().any(|scope| data.contains_key(&data_key(*scope, stage)));
        if any(Stage::Next) {
            Self::Announced
        } else if any(Stage::Previous) {
            Self::Promoted
        } else {
            Self::Steady
        }
    }
}

/// The step that is due now, if one is. A pod that missed an update holds up the promotion until it is patched: its server would
/// refuse every token otherwise.
pub fn next(situation: &Situation, now: Timestamp) -> Option<Step> {
    let passed = |since: Timestamp, seconds: i64| now.as_second() - since.as_second() >= seconds;
    let settle = situation.times.settle_seconds;
    match situation.progress {
        Progress::Steady => {
            let old = situation.times.interval_seconds.is_some_and(|interval| passed(situation.since, interval));
            (situation.requested || old).then_some(Step::Announce)
        }
        Progress::Announced => {
            let known = situation.patched_since.is_some_and(|since| passed(since, settle));
            (known && passed(situation.since, settle)).then_some(Step::Promote)
        }
        Progress::Promoted => passed(situation.since, settle).then_some(Step::Retire),
    }
}

/// The Secret's data after a step. Entries with other names stay.
///
/// # Errors
/// Only [`TrustError::Randomness`].
pub fn apply(step: Step, data: &BTreeMap<String, Vec<u8>>) -> Result<BTreeMap<String, Vec<u8>>, TrustError> {
    let mut data = data.clone();
    for scope in Scope::ALL {
        let name = |stage| data_key(scope, stage);
        match step {
            Step::Announce => {
                let document =
                    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| TrustError::Randomness)?;
                data.insert(name(Stage::Next), document.as_ref().to_vec());
            }
            Step::Promote => {
                if let Some(next) = data.remove(&name(Stage::Next))
                    && let Some(current) = data.insert(name(Stage::Current), next)
                {
                    data.insert(name(Stage::Previous), current);
                }
            }
            Step::Retire => {
                data.remove(&name(Stage::Previous));
            }
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::KeyRing;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    fn steady() -> Situation {
        Situation {
            progress: Progress::Steady,
            since: at(0),
            requested: false,
            patched_since: Some(at(0)),
            times: Times::new(Some(1000)),
        }
    }

    #[test]
    fn keys_are_replaced_at_their_age_or_when_asked() {
        assert_eq!(next(&steady(), at(999)), None);
        assert_eq!(next(&steady(), at(1000)), Some(Step::Announce));
        assert_eq!(next(&Situation { requested: true, ..steady() }, at(1)), Some(Step::Announce));
        assert_eq!(next(&Situation { times: Times::new(None), ..steady() }, at(1_000_000)), None);
    }

    #[test]
    fn the_next_key_signs_when_every_pod_has_known_it_for_two_minutes() {
        let announced = Situation { progress: Progress::Announced, patched_since: None, ..steady() };
        assert_eq!(next(&announced, at(100_000)), None, "one pod missed the update");
        let patched = Situation { patched_since: Some(at(500)), ..announced };
        assert_eq!(next(&patched, at(619)), None);
        assert_eq!(next(&patched, at(620)), Some(Step::Promote));
        let early = Situation { since: at(600), ..patched };
        assert_eq!(next(&early, at(620)), None, "what was patched before the announcement does not count");
        let promoted = Situation { progress: Progress::Promoted, patched_since: None, ..steady() };
        assert_eq!(next(&promoted, at(119)), None);
        assert_eq!(next(&promoted, at(120)), Some(Step::Retire));
    }

    #[test]
    fn at_each_step_a_pod_that_knows_the_published_keys_accepts_what_is_signed() {
        let mut data = KeyRing::generate().unwrap();
        data.insert("note".to_owned(), b"of a person".to_vec());
        let first = KeyRing::read(&data).unwrap();
        assert_eq!(Progress::of(&data), Progress::Steady);

        let data = apply(Step::Announce, &data).unwrap();
        let announced = KeyRing::read(&data).unwrap();
        assert_eq!(Progress::of(&data), Progress::Announced);
        for scope in Scope::ALL {
            assert_eq!(announced.signing(scope).unwrap().id, first.signing(scope).unwrap().id, "not yet");
        }

        let data = apply(Step::Promote, &data).unwrap();
        let promoted = KeyRing::read(&data).unwrap();
        assert_eq!(Progress::of(&data), Progress::Promoted);
        assert_eq!(promoted.public_key_set(), announced.public_key_set(), "a promotion changes no pod");
        for scope in Scope::ALL {
            assert_ne!(promoted.signing(scope).unwrap().id, first.signing(scope).unwrap().id);
            assert!(announced.public_key_set().contains(&promoted.signing(scope).unwrap().id));
        }

        let data = apply(Step::Retire, &data).unwrap();
        let retired = KeyRing::read(&data).unwrap();
        assert_eq!(Progress::of(&data), Progress::Steady);
        for scope in Scope::ALL {
            assert_eq!(retired.signing(scope).unwrap().id, promoted.signing(scope).unwrap().id);
            assert!(!retired.public_key_set().contains(&first.signing(scope).unwrap().id));
        }
        assert_eq!(data["note"], b"of a person");
    }
}
