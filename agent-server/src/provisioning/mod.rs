//! What a fresh workspace gets before anything else may use it: the files of a template, Python libraries.
//!
//! Owns the order, the progress that readiness shows, and the repetition after a failure. Must not know HTTP, sessions or
//! the model; commands run through the sandbox alone.

mod libraries;
mod template;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::readiness::Readiness;
use crate::sandbox::Sandbox;

pub use libraries::{LibraryError, PythonLibraries};
pub use template::{TemplateError, TemplateOutcome, copy_once};

/// The workspace's folder for what the server keeps in it. Git and searches leave it out.
const OWN_FOLDER: &str = ".boring-agent";
/// Pause after the first failure, doubled each time up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What to provide.
#[derive(Debug, Clone)]
pub struct Provisioning {
    /// The workspace's folder on this machine.
    pub root: PathBuf,
    /// Folder whose content a fresh workspace gets.
    pub template: Option<PathBuf>,
    /// Libraries for Python commands.
    pub python: PythonLibraries,
}

/// Why a workspace could not be provided with what it should have.
#[derive(Debug, thiserror::Error)]
pub enum ProvisioningError {
    /// The template.
    #[error("template: {0}")]
    Template(#[from] TemplateError),
    /// The libraries.
    #[error("libraries: {0}")]
    Libraries(#[from] LibraryError),
}

impl ProvisioningError {
    /// Stable word for metrics, logs and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Template(_) => "TemplateFailed",
            Self::Libraries(_) => "LibrariesFailed",
        }
    }
}

impl Provisioning {
    /// Works until everything is there. Readiness shows what is being done, or why it does not work and is tried again.
    pub async fn until_done(&self, sandbox: &Arc<dyn Sandbox>, readiness: &Readiness) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.run(sandbox, readiness).await {
                Ok(()) => return readiness.set_provisioning(None),
                Err(error) => {
                    tracing::error!(reason = error.reason(), %error, retry_seconds = pause.as_secs(), "provisioning");
                    readiness.fail_provisioning(error.to_string());
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One attempt. What an earlier one has finished is not done again.
    pub async fn run(&self, sandbox: &Arc<dyn Sandbox>, readiness: &Readiness) -> Result<(), ProvisioningError> {
        if let Some(template) = &self.template {
            readiness.set_provisioning(Some("copying the template".into()));
            let (root, template) = (self.root.clone(), template.clone());
            let copied = tokio::task::spawn_blocking(move || {
                let root = Dir::open_ambient_dir(&root, ambient_authority()).map_err(TemplateError::from)?;
                copy_once(&root, &template)
            });
            let outcome = copied.await.map_err(|_| TemplateError::Interrupted)??;
            tracing::info!(?outcome, "template");
        }
        if !self.python.requirements.is_empty() {
            let count = self.python.requirements.len();
            readiness.set_provisioning(Some(format!("preparing {count} Python libraries")));
            let report = |step: &str| readiness.set_provisioning(Some(step.to_owned()));
            self.python.install(sandbox.as_ref(), &report).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::{Provisioning as Shown, Verdict};
    use crate::session::tests::NoCommands;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_shown_and_tried_again_until_it_works() {
        let folder = tempfile::tempdir().expect("folder");
        let (root, template) = (folder.path().join("work"), folder.path().join("template"));
        std::fs::create_dir(&root).expect("folder");
        let provisioning =
            Provisioning { root: root.clone(), template: Some(template.clone()), python: PythonLibraries::default() };
        let readiness = Arc::new(Readiness::new());
        let mut facts = readiness.subscribe();
        let working = tokio::spawn({
            let (readiness, sandbox) = (readiness.clone(), Arc::new(NoCommands) as Arc<dyn Sandbox>);
            async move { provisioning.until_done(&sandbox, &readiness).await }
        });
        let failed = |shown: &Option<Shown>| matches!(shown, Some(Shown::Failed(_)));
        let judged = facts.wait_for(|facts| failed(&facts.provisioning)).await.expect("open").judge();
        let message = "template: its folder cannot be opened: entity not found".to_owned();
        assert_eq!(judged, Verdict::Unavailable("ProvisioningFailed", message));
        std::fs::create_dir(&template).expect("folder");
        std::fs::write(template.join("file"), "x").expect("written");
        tokio::time::timeout(LONGEST_PAUSE * 2, working).await.expect("in time").expect("no panic");
        assert_eq!(std::fs::read_to_string(root.join("file")).expect("copied"), "x");
        assert_eq!(readiness.facts().provisioning, None);
    }
}
