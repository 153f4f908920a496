//! The standard set of tools.
//!
//! Owns which tools there are and their settings. Must not know what they do.

use std::sync::Arc;
use std::time::Duration;

use super::artifacts::Artifacts;
use super::background::Background;
use super::bash::Bash;
use super::edit::Edit;
use super::find::Find;
use super::grep::Grep;
use super::ls::Ls;
use super::processes::Processes;
use super::read::Read;
use super::write::Write;
use super::{Catalog, Tool};

/// Settings of the standard tools.
#[derive(Clone)]
pub struct StandardTools {
    /// Where outputs that are too long to show are kept.
    pub artifacts: Artifacts,
    /// Of a command that names none.
    pub default_timeout: Duration,
    /// Longest that a command may ask for.
    pub max_timeout: Duration,
}

impl StandardTools {
    /// 120 s by default, an hour at most.
    pub fn new(artifacts: Artifacts) -> Self {
        Self { artifacts, default_timeout: Duration::from_secs(120), max_timeout: Duration::from_secs(3600) }
    }

    /// With another longest time; the default becomes no longer than that.
    #[must_use]
    pub fn with_timeout(self, max_timeout: Duration) -> Self {
        Self { default_timeout: self.default_timeout.min(max_timeout), max_timeout, ..self }
    }
}

/// `bash`, `edit`, `find`, `grep`, `ls`, `processes`, `read`, `write`.
pub fn standard(settings: StandardTools) -> Catalog {
    let StandardTools { artifacts, default_timeout, max_timeout } = settings;
    let background = Background::new(artifacts.clone());
    let tools: [Arc<dyn Tool>; 8] = [
        Arc::new(Bash::new(artifacts.clone(), background.clone(), default_timeout, max_timeout)),
        Arc::new(Edit),
        Arc::new(Find),
        Arc::new(Grep),
        Arc::new(Ls),
        Arc::new(Processes::new(background)),
        Arc::new(Read::new(artifacts)),
        Arc::new(Write),
    ];
    Catalog::new(tools)
}
