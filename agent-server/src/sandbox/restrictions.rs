//! What a command must not have, and giving it up for good.
//!
//! Owns the order in which a thread restricts itself. Must not know which mode asks for what.

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::capabilities;
use super::landlock_layer::LayerRules;
use super::system_calls::SystemCallFilter;

/// What the thread that starts a command gives up before; every process of the command inherits it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Restrictions {
    /// Rules of landlock, for files and for what the kernel scopes; without them files are open by their modes alone.
    pub files: Option<LayerRules>,
    /// Filter of system calls.
    pub system_calls: Option<SystemCallFilter>,
    /// No capability at all instead of those of root in an ordinary container.
    pub no_capabilities: bool,
}

impl Restrictions {
    /// Restricts the calling thread and everything it starts from now on. The error is a sentence for the caller of the
    /// command; nothing was started then.
    pub(super) fn apply_to_this_thread(&self) -> Result<(), String> {
        let kept = if self.no_capabilities { CapabilitySet::empty() } else { capabilities::ORDINARY };
        capabilities::keep_on_this_thread(kept).map_err(|error| format!("capabilities: {error}"))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| format!("no_new_privs: {error}"))?;
        if let Some(files) = &self.files {
            files.restrict_this_thread().map_err(|error| error.to_string())?;
        }
        // Last: landlock needs system calls of its own.
        self.system_calls.map_or(Ok(()), |filter| filter.apply_to_this_thread().map_err(|error| error.to_string()))
    }
}
