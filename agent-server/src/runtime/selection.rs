//! Which mode serves.
//!
//! Owns the order in which modes are tried. Must not know what a mode does.
//!
//! A named mode never changes, but for the one step that `OnUnavailable::Degrade` permits, and that is reported. Without a
//! name the strongest mode that works here serves.

use super::local::LocalRuntime;
use super::{RuntimeBundle, RuntimeError, bubblewrap, direct, landlock};
use crate::config::{OnUnavailable, RuntimeMode};
use crate::sandbox::{Network, SandboxError};

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The named mode.
    pub mode: Option<RuntimeMode>,
    /// Network of commands.
    pub network: Network,
    /// What happens when the named mode cannot be had.
    pub on_unavailable: OnUnavailable,
}

impl Selection {
    /// Builds the pair of the named mode, or of the first one that works.
    pub async fn build(self, runtime: &LocalRuntime) -> Result<RuntimeBundle, RuntimeError> {
        match self.mode {
            Some(RuntimeMode::Direct) => direct::build(runtime).await,
            Some(RuntimeMode::Landlock) => landlock::build(runtime, self.network).await,
            Some(RuntimeMode::Bubblewrap) => self.bubblewrap(runtime).await,
            None => self.strongest(runtime).await,
        }
    }

    async fn bubblewrap(self, runtime: &LocalRuntime) -> Result<RuntimeBundle, RuntimeError> {
        match bubblewrap::build(runtime, self.network).await {
            Err(RuntimeError::Sandbox(SandboxError::Unavailable(reason)))
                if self.on_unavailable == OnUnavailable::Degrade =>
            {
                tracing::warn!(reason, "bubblewrap mode cannot be had; landlock mode serves, as permitted");
                Ok(landlock::build(runtime, self.network).await?.instead_of(RuntimeMode::Bubblewrap, reason))
            }
            outcome => outcome,
        }
    }

    async fn strongest(self, runtime: &LocalRuntime) -> Result<RuntimeBundle, RuntimeError> {
        let no_bubblewrap = match bubblewrap::build(runtime, self.network).await {
            Err(RuntimeError::Sandbox(error)) => error,
            outcome => return outcome,
        };
        tracing::info!(reason = %no_bubblewrap, "bubblewrap mode cannot be had here");
        let no_landlock = match landlock::build(runtime, self.network).await {
            Err(RuntimeError::Sandbox(error)) => error,
            outcome => return outcome,
        };
        tracing::info!(reason = %no_landlock, "landlock mode cannot be had here");
        if self.network == Network::Isolated {
            let message =
                format!("an isolated network needs a mode that cannot be had: {no_bubblewrap}; {no_landlock}");
            return Err(SandboxError::Unavailable(message).into());
        }
        tracing::warn!("direct mode serves: commands are not isolated from this machine; name a mode with --mode");
        direct::build(runtime).await
    }
}
