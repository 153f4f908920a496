//! Runtime modes: each builds the pair of workspace and sandbox that belong together.
//!
//! Owns the pairing. Must not know HTTP, tools or the model.

pub mod bubblewrap;
pub mod direct;
pub mod landlock;
pub mod local;
pub mod selection;

use std::sync::Arc;

use crate::config::RuntimeMode;
use crate::sandbox::local::LocalSandbox;
use crate::sandbox::{Sandbox, SandboxError};
use crate::workspace::{LocalWorkspace, Workspace};

/// A workspace and the sandbox whose commands work on the same files. Only the modes of this module can make one, so a
/// pair that does not belong together cannot be had.
#[derive(Clone)]
pub struct RuntimeBundle {
    workspace: Arc<dyn Workspace>,
    sandbox: Arc<dyn Sandbox>,
    mode: RuntimeMode,
    degraded: Option<Degraded>,
}

/// A mode serves in place of the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The mode that was wanted.
    pub from: RuntimeMode,
    /// Why it cannot be had.
    pub reason: String,
}

impl RuntimeBundle {
    fn new(mode: RuntimeMode, workspace: LocalWorkspace, sandbox: LocalSandbox) -> Self {
        Self { workspace: Arc::new(workspace), sandbox: Arc::new(sandbox), mode, degraded: None }
    }

    fn instead_of(self, from: RuntimeMode, reason: String) -> Self {
        Self { degraded: Some(Degraded { from, reason }), ..self }
    }

    /// The mode that serves.
    pub fn mode(&self) -> RuntimeMode {
        self.mode
    }

    /// Set if another mode was wanted.
    pub fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }

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
