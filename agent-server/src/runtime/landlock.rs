//! Landlock mode: a folder of this machine, and processes that see the system and that folder.

use super::local::{LocalRuntime, View};
use super::{RuntimeBundle, RuntimeError};
use crate::config::RuntimeMode;
use crate::sandbox::{Network, landlock};

/// Opens the folder and starts the sandbox over it.
pub async fn build(runtime: &LocalRuntime, network: Network) -> Result<RuntimeBundle, RuntimeError> {
    let (workspace, settings) = runtime.open(View::OwnHome)?;
    let sandbox = landlock::start(settings, network).await?;
    Ok(RuntimeBundle::new(RuntimeMode::Landlock, workspace, sandbox))
}
