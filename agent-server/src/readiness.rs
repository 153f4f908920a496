//! Readiness: one shared value that the parts update and the probes show.
//!
//! Owns what "ready" means. Must not know HTTP or how the facts are found. `Draining` is not kept here; the
//! activity owns it.
//!
//! For the other parts: `readiness.set_model_key(ModelKey::Rejected)` when the provider answers 401, and
//! `ModelKey::Accepted` after a call that worked.

use tokio::sync::watch;

/// What is known of the model key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKey {
    /// None is configured, or its file is missing or empty.
    Missing,
    /// The provider rejected it.
    Rejected,
    /// Present, and not rejected so far.
    Accepted,
}

/// Everything readiness depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server's parts are put together.
    pub started: bool,
    /// Why a volume cannot be written; `None` when it can.
    pub storage_failure: Option<String>,
    /// Why commands cannot run; `None` when they can.
    pub sandbox_failure: Option<String>,
    /// What is being prepared in the workspace, or why that fails; `None` when all is there.
    pub provisioning: Option<Provisioning>,
    /// Model key.
    pub model_key: ModelKey,
}

/// A workspace that does not have yet what it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provisioning {
    /// This is being done.
    Running(String),
    /// This went wrong; it is tried again.
    Failed(String),
}

/// What the probes show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything works.
    Ready,
    /// Files and history work, chat does not; the reason words.
    Degraded(Vec<&'static str>),
    /// Nothing should be sent here; reason word and message.
    Unavailable(&'static str, String),
}

impl Facts {
    /// Judges; pure. The words are those of the contract with the operator.
    pub fn judge(&self) -> Verdict {
        if let Some(message) = &self.storage_failure {
            return Verdict::Unavailable("VolumeNotWritable", message.clone());
        }
        if let Some(message) = &self.sandbox_failure {
            return Verdict::Unavailable("SandboxUnavailable", message.clone());
        }
        match &self.provisioning {
            Some(Provisioning::Running(step)) => return Verdict::Unavailable("Provisioning", step.clone()),
            Some(Provisioning::Failed(message)) => {
                return Verdict::Unavailable("ProvisioningFailed", message.clone());
            }
            None => {}
        }
        if !self.started {
            return Verdict::Unavailable("Starting", "the server is starting".into());
        }
        match self.model_key {
            ModelKey::Accepted => Verdict::Ready,
            ModelKey::Missing => Verdict::Degraded(vec!["ModelKeyMissing"]),
            ModelKey::Rejected => Verdict::Degraded(vec!["ModelKeyRejected"]),
        }
    }
}

/// The shared value; changes can be waited for.
pub struct Readiness {
    facts: watch::Sender<Facts>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Not started, no failure known, key missing.
    pub fn new() -> Self {
        let facts = Facts {
            started: false,
            storage_failure: None,
            sandbox_failure: None,
            provisioning: None,
            model_key: ModelKey::Missing,
        };
        Self { facts: watch::Sender::new(facts) }
    }

    /// The present facts.
    pub fn facts(&self) -> Facts {
        self.facts.borrow().clone()
    }

    /// Follows the facts.
    pub fn subscribe(&self) -> watch::Receiver<Facts> {
        self.facts.subscribe()
    }

    /// The parts are put together.
    pub fn set_started(&self) {
        self.update(|facts| facts.started = true);
    }

    /// A volume can be written (`None`) or not, and why.
    pub fn set_storage(&self, failure: Option<String>) {
        self.update(|facts| facts.storage_failure = failure);
    }

    /// Commands can run (`None`) or not, and why.
    pub fn set_sandbox(&self, failure: Option<String>) {
        self.update(|facts| facts.sandbox_failure = failure);
    }

    /// What is being prepared; `None` when all is there.
    pub fn set_provisioning(&self, step: Option<String>) {
        self.update(|facts| facts.provisioning = step.map(Provisioning::Running));
    }

    /// What could not be prepared.
    pub fn fail_provisioning(&self, message: String) {
        self.update(|facts| facts.provisioning = Some(Provisioning::Failed(message)));
    }

    /// What is known of the model key.
    pub fn set_model_key(&self, key: ModelKey) {
        self.update(|facts| facts.model_key = key);
    }

    fn update(&self, change: impl FnOnce(&mut Facts)) {
        self.facts.send_if_modified(|facts| {
            let before = facts.clone();
            change(facts);
            *facts != before
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, ModelKey, Provisioning, Readiness, Verdict};

    fn good() -> Facts {
        Facts {
            started: true,
            storage_failure: None,
            sandbox_failure: None,
            provisioning: None,
            model_key: ModelKey::Accepted,
        }
    }

    #[test]
    fn a_missing_key_degrades_and_a_broken_volume_makes_unavailable() {
        assert_eq!(good().judge(), Verdict::Ready);
        assert_eq!(
            Facts { model_key: ModelKey::Missing, ..good() }.judge(),
            Verdict::Degraded(vec!["ModelKeyMissing"])
        );
        assert_eq!(
            Facts { model_key: ModelKey::Rejected, ..good() }.judge(),
            Verdict::Degraded(vec!["ModelKeyRejected"])
        );
        let broken = Facts { storage_failure: Some("state".into()), model_key: ModelKey::Missing, ..good() };
        assert_eq!(broken.judge(), Verdict::Unavailable("VolumeNotWritable", "state".into()));
        let commands = Facts { sandbox_failure: Some("no shell".into()), ..good() };
        assert_eq!(commands.judge(), Verdict::Unavailable("SandboxUnavailable", "no shell".into()));
        for (provisioning, reason) in [
            (Provisioning::Running("copying".into()), "Provisioning"),
            (Provisioning::Failed("copying".into()), "ProvisioningFailed"),
        ] {
            let facts = Facts { provisioning: Some(provisioning), started: false, ..good() };
            assert_eq!(facts.judge(), Verdict::Unavailable(reason, "copying".into()));
        }
        assert_eq!(
            Facts { started: false, ..good() }.judge(),
            Verdict::Unavailable("Starting", "the server is starting".into())
        );
    }

    #[test]
    fn a_change_to_the_same_value_wakes_nobody() {
        let readiness = Readiness::new();
        let mut follower = readiness.subscribe();
        follower.mark_unchanged();
        readiness.set_model_key(ModelKey::Missing);
        assert!(!follower.has_changed().expect("open"));
        readiness.set_model_key(ModelKey::Rejected);
        assert!(follower.has_changed().expect("open"));
    }
}
