//! Runtime modes: each builds the pair of workspace and sandbox that belong together.
//!
//! Owns the pairing. Must not know HTTP, tools or the model.

pub mod direct;

use std::sync::Arc;

use crate::sandbox::{Sandbox, SandboxError};
use crate::workspace::Workspace;

/// A workspace and the sandbox whose commands work on the same files. Only the modes of this module can make one, so a
/// pair that does not belong together cannot be had.
#[derive(Clone)]
pub struct RuntimeBundle {
    workspace: Arc<dyn Workspace>,
    sandbox: Arc<dyn Sandbox>,
}

impl RuntimeBundle {
    /// Files.
    pub fn workspace(&self) -> Arc<dyn Workspace> {
        Arc::clone(&self.workspace)
    }

    /// Commands.
    pub fn sandbox(&self) -> Arc<dyn Sandbox> {
        Arc::clone(&self.sandbox)
    }
}

/// Why a mode cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The workspace folder.
    #[error("the workspace folder cannot be opened: {0}")]
    Workspace(std::io::Error),
    /// Commands.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl RuntimeError {
    /// Stable word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Workspace(_) => "WorkspaceUnavailable",
            Self::Sandbox(_) => "SandboxUnavailable",
        }
    }
}
