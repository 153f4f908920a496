//! Direct mode: a folder of this machine, and plain processes behind the landlock layer.

use super::local::{LocalRuntime, View};
use super::{RuntimeBundle, RuntimeError};
use crate::config::RuntimeMode;
use crate::sandbox::direct;

/// Opens the folder and starts the sandbox over it.
pub async fn build(runtime: &LocalRuntime) -> Result<RuntimeBundle, RuntimeError> {
    let (workspace, settings) = runtime.open(View::Machine)?;
    let sandbox = direct::start(settings, true).await?;
    Ok(RuntimeBundle::new(RuntimeMode::Direct, workspace, sandbox))
}
