//! The agent server as a library. The composition root (the only file that names concrete adapters together) is here.

pub mod activity;
pub mod auth;
pub mod catalog;
pub mod config;
pub mod harness;
pub mod http;
pub mod llm;
pub mod readiness;
pub mod runtime;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod shutdown;
pub mod storage;
pub mod telemetry;
pub mod workspace;

use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Ports, announcement, signals.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Files and commands.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Pause before a sandbox that could not be had is tried again.
const SANDBOX_RETRY: Duration = Duration::from_secs(10);

/// Serves until a signal ends it. The ports answer from the first moment; what is not ready yet says so.
pub async fn run(config: Config, started_at: Instant) -> Result<(), StartError> {
    let mut signals = Signals::new()?;
    let listeners = serve::listen(&config).await?;
    listeners.announce(&config)?;
    let config = Arc::new(config);
    let (metrics, starting) = (Arc::new(Metrics::new()), Arc::new(Readiness::new()));
    let router = http::starting::router(config.pod_uid.clone(), started_at, starting.clone());
    let serving = listeners.start(router, metrics.clone());
    let app = tokio::select! {
        () = signals.next() => return Ok(()),
        app = prepare(&config, &metrics, &starting, started_at) => app?,
    };
    tracing::info!(mode = app.config.mode.as_str(), named = app.config.mode_named, "serving");
    app.readiness.set_started();
    serving.serve(app, signals).await;
    Ok(())
}

/// Waits for storage, then puts the parts together. A sandbox that cannot be had is told by the readiness and tried
/// again; everything else that fails ends the process.
async fn prepare(
    config: &Arc<Config>,
    metrics: &Arc<Metrics>,
    starting: &Readiness,
    started_at: Instant,
) -> Result<AppState, StartError> {
    let folders = [("workspace", config.workspace_root.clone()), ("state", config.state_dir.clone())];
    storage::until_writable(&folders, starting).await;
    loop {
        match compose(config.clone(), metrics.clone(), started_at).await {
            Err(StartError::Runtime(RuntimeError::Sandbox(error))) => {
                tracing::error!(%error, "commands cannot be run");
                starting.set_sandbox(Some(error.to_string()));
                tokio::time::sleep(SANDBOX_RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

/// Puts the parts together. The folders of the workspace and of the state exist and can be written.
pub async fn compose(config: Arc<Config>, metrics: Arc<Metrics>, started_at: Instant) -> Result<AppState, StartError> {
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
        metrics,
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
