//! The agent server as a library. The composition root (the only file that names concrete adapters together) is here.

pub mod activity;
pub mod auth;
pub mod catalog;
pub mod config;
pub mod http;
pub mod llm;
pub mod readiness;
pub mod runtime;
pub mod sandbox;
pub mod serve;
pub mod shutdown;
pub mod storage;
pub mod telemetry;
pub mod workspace;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::activity::Activity;
use crate::auth::Authenticator;
use crate::config::{Config, KeySource};
use crate::http::{App, AppState};
use crate::readiness::{ModelKey, Readiness};
use crate::runtime::RuntimeError;
use crate::runtime::direct::DirectRuntime;
use crate::sandbox::direct::DirectSettings;
use crate::serve::{ServeError, Signals};
use crate::shutdown::Shutdown;
use crate::telemetry::Metrics;

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder or file that the server needs: what it is, and why it cannot be had.
    #[error("the {what} {path} cannot be opened or made: {source}")]
    Folder {
        /// What it is for.
        what: &'static str,
        /// Path, shown to whoever started the server.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Ports, announcement, signals.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Files and commands.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl StartError {
    /// A folder or file that cannot be had.
    fn folder(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Folder { what, path: path.display().to_string(), source }
    }
}

/// Serves until a signal ends it.
pub async fn run(config: Config, started_at: Instant) -> Result<(), StartError> {
    let signals = Signals::new()?;
    let listeners = serve::listen(&config).await?;
    listeners.announce(&config)?;
    let app = compose(config, started_at).await?;
    tracing::info!(mode = app.config.mode.as_str(), named = app.config.mode_named, "serving");
    let folders = vec![("workspace", app.config.workspace_root.clone()), ("state", app.config.state_dir.clone())];
    tokio::spawn(storage::watch(folders, app.readiness.clone()));
    listeners.serve(app, signals).await;
    Ok(())
}

/// Puts the parts together. `started_at` is the start of the process.
pub async fn compose(config: Config, started_at: Instant) -> Result<AppState, StartError> {
    let config = Arc::new(config);
    private_folder(&config.state_dir).map_err(|error| StartError::folder("state folder", &config.state_dir, error))?;
    let runtime = direct_runtime(&config).build().await?;
    let readiness = Arc::new(Readiness::new());
    if !matches!(config.model.key, KeySource::Missing) {
        readiness.set_model_key(ModelKey::Accepted);
    }
    let counted = runtime.sandbox();
    Ok(Arc::new(App {
        workspace: runtime.workspace(),
        sandbox: runtime.sandbox(),
        activity: Activity::new(move || counted.running()),
        readiness,
        shutdown: Arc::new(Shutdown::default()),
        metrics: Arc::new(Metrics::new()),
        authenticator: Authenticator::new(&config.authentication),
        started_at,
        config,
    }))
}

fn direct_runtime(config: &Config) -> DirectRuntime {
    let mut secret_files = Vec::from_iter(config.authentication.static_token_file.clone());
    secret_files.extend(config.authentication.signed.as_ref().map(|signed| signed.keys_file.clone()));
    if let KeySource::File(file) = &config.model.key {
        secret_files.push(file.clone());
    }
    DirectRuntime {
        root: config.workspace_root.clone(),
        state_dir: config.state_dir.clone(),
        secret_files,
        command_environment_dir: config.commands.environment_dir.clone(),
        server_environment: std::env::vars_os().collect(),
        in_pod: config.pod_uid.is_some(),
        supervisor: DirectSettings::THIS_PROGRAM.into(),
    }
}

/// Makes a folder that only this user may enter.
fn private_folder(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
