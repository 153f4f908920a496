//! Bubblewrap mode: a folder of this machine, and processes in namespaces that see it as `/workspace`.

use super::local::{LocalRuntime, View};
use super::{RuntimeBundle, RuntimeError};
use crate::config::RuntimeMode;
use crate::sandbox::{Network, bubblewrap};

/// Opens the folder and builds the sandbox over it.
pub async fn build(runtime: &LocalRuntime, network: Network) -> Result<RuntimeBundle, RuntimeError> {
    let (workspace, settings) = runtime.open(View::At(bubblewrap::ROOT))?;
    let sandbox = bubblewrap::start(settings, network).await?;
    Ok(RuntimeBundle::new(RuntimeMode::Bubblewrap, workspace, sandbox))
}
