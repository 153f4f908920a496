//! The agent server as a library. The composition root (the only file that names concrete adapters together) is here.

pub mod activity;
pub mod auth;
pub mod catalog;
pub mod check;
pub mod config;
pub mod event_log;
pub mod harness;
pub mod http;
pub mod llm;
pub mod predecessor;
pub mod provisioning;
pub mod quiesce;
pub mod readiness;
pub mod runtime;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod shutdown;
pub mod storage;
pub mod telemetry;
#[cfg(test)]
mod tests;
pub mod ui_bridge;
pub mod workspace;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::activity::Activity;
use crate::auth::Authenticator;
use crate::catalog::artifacts::{ArtifactLimits, Artifacts};
use crate::catalog::{StandardTools, standard};
use crate::check::{Bait, CheckReport};
use crate::config::{Config, KeySource, ModelPrice, ModelProvider};
use crate::harness::metrics::TurnMetrics;
use crate::harness::prompt::PromptSettings;
use crate::harness::{AbortReason, TurnLoop, compaction};
use crate::http::{App, AppState};
use crate::llm::anthropic::{Anthropic, AnthropicConfiguration};
use crate::llm::key::ModelKey as ModelKeySource;
use crate::llm::models::{Models, Price};
use crate::llm::openai::{Openai, OpenaiConfiguration};
use crate::llm::{KeyState, Llm, LlmError};
use crate::predecessor::StateLock;
use crate::provisioning::{Provisioning, PythonLibraries};
use crate::quiesce::Quiesce;
use crate::readiness::{ModelKey, Readiness};
use crate::runtime::local::LocalRuntime;
use crate::runtime::selection::Selection;
use crate::runtime::{RuntimeBundle, RuntimeError};
use crate::sandbox::local::THIS_PROGRAM;
use crate::sandbox::process_tree::pause_commands;
use crate::serve::{ServeError, Signals};
use crate::session::error::SessionError;
use crate::session::{BeginTurn, SessionSettings, Sessions};
use crate::shutdown::{Closing, Shutdown};
use crate::telemetry::Metrics;
use crate::ui_bridge::UiBridge;

/// Pause between looks at a key that is missing or was rejected.
const KEY_WATCH: Duration = Duration::from_secs(2);

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Ports, announcement, signals.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Files and commands.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Model, tools or sessions.
    #[error("{0}")]
    Agent(String),
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
    let (app, lock) = tokio::select! {
        () = signals.next() => return Ok(()),
        app = prepare(&config, &metrics, &starting, started_at) => app?,
    };
    let isolation = app.sandbox.isolation();
    tracing::info!(
        mode = app.mode.as_str(),
        named = app.config.mode.is_some(),
        ?isolation,
        state_lock = lock.is_held(),
        "serving"
    );
    app.readiness.set_started();
    serving.serve(app, signals).await;
    // The next server may begin.
    drop(lock);
    Ok(())
}

/// Attacks the sandbox of this configuration from inside. `server` is the process that is attacked, this one when absent.
pub async fn check_sandbox(
    config: Config,
    server: Option<u32>,
    outside: &std::path::Path,
) -> Result<CheckReport, StartError> {
    let server = server.unwrap_or_else(std::process::id);
    let bait = Bait::new(&config.state_dir, outside, server)
        .map_err(|error| StartError::Agent(format!("what is attacked cannot be set up: {error}")))?;
    let local = LocalRuntime { limits: check::LIMITS.with_defaults(), ..local_runtime(&config) };
    let runtime = selection(&config).build(&local).await?;
    let checked = check::run(runtime.mode().as_str(), &*runtime.sandbox(), &bait).await;
    checked.map_err(|error| StartError::Runtime(RuntimeError::Sandbox(error)))
}

/// Waits for storage and for the server before this one, then puts the parts together. A sandbox that cannot be had is told by the readiness and tried
/// again; everything else that fails ends the process.
async fn prepare(
    config: &Arc<Config>,
    metrics: &Arc<Metrics>,
    starting: &Readiness,
    started_at: Instant,
) -> Result<(AppState, StateLock), StartError> {
    storage::until_writable(&folders(config), starting).await;
    // A person who starts a second server on a folder wants it now.
    let limit = if config.pod_uid.is_some() { predecessor::LIMIT } else { Duration::ZERO };
    let lock = predecessor::take_over(&config.state_dir, limit)
        .await
        .map_err(|error| StartError::Agent(format!("the state directory cannot be locked: {}", error.kind())))?;
    loop {
        match compose(config.clone(), metrics.clone(), starting, started_at).await {
            Err(StartError::Runtime(RuntimeError::Sandbox(error))) => {
                tracing::error!(%error, "commands cannot be run");
                starting.set_sandbox(Some(error.to_string()));
                tokio::time::sleep(SANDBOX_RETRY).await;
            }
            outcome => return outcome.map(|app| (app, lock)),
        }
    }
}

/// What the server writes to.
fn folders(config: &Config) -> Vec<storage::NamedFolder> {
    vec![("workspace", config.workspace_root.clone()), ("state", config.state_dir.clone())]
}

/// Puts the parts together. The folders of the workspace and of the state exist and can be written. `starting` shows what is
/// being prepared in the workspace, before anything else uses it.
pub async fn compose(
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    starting: &Readiness,
    started_at: Instant,
) -> Result<AppState, StartError> {
    let runtime = selection(&config).build(&local_runtime(&config)).await?;
    starting.set_sandbox(None);
    provisioning(&config).until_done(&runtime.sandbox(), starting).await;
    let readiness = Arc::new(Readiness::new());
    let (workspace, sandbox) = (runtime.workspace(), runtime.sandbox());
    let counted = sandbox.clone();
    tokio::spawn(storage::watch(folders(&config), readiness.clone()));
    let shutdown = Arc::new(Shutdown::default());
    let ui_bridge = UiBridge::open(config.state_dir.join("ui"), config.ui_kinds.clone())
        .map_err(|error| StartError::Agent(error.to_string()))?;
    let ui_bridge = Arc::new(ui_bridge);
    let activity = Activity::new(move || counted.running());
    let sessions = agent(&config, &runtime, &readiness, &ui_bridge, &activity, &metrics)?;
    close_with(&shutdown, &sessions);
    let quiesce = Quiesce::new(workspace.clone(), Box::new(stop_commands));
    Ok(Arc::new(App {
        quiesce,
        mode: runtime.mode(),
        degraded: runtime.degraded().map(|degraded| (degraded.from, degraded.reason.clone())),
        workspace,
        sandbox,
        sessions,
        ui_bridge,
        activity,
        readiness,
        shutdown,
        metrics,
        authenticator: Authenticator::new(&config.authentication),
        started_at,
        config,
    }))
}

/// Stops or continues the processes of commands, which all run below this process in the modes there are.
fn stop_commands(stop: bool) {
    if let Err(error) = pause_commands(stop) {
        tracing::error!(%error, stop, "the processes of commands could not be signalled");
    }
}

/// The model, the tools, the turn loop and the sessions.
fn agent(
    config: &Config,
    runtime: &RuntimeBundle,
    readiness: &Arc<Readiness>,
    ui_bridge: &Arc<UiBridge>,
    activity: &Arc<Activity>,
    metrics: &Metrics,
) -> Result<Arc<Sessions>, StartError> {
    let turn_metrics = Arc::new(TurnMetrics::default());
    metrics.register(|registry| turn_metrics.register(registry));
    let workspace = runtime.workspace();
    let artifacts = Artifacts::open(&config.state_dir.join("artifacts"), ArtifactLimits::default())
        .map_err(|error| StartError::Agent(error.to_string()))?;
    let llm = model(config, readiness)?;
    tokio::spawn(watch_key(llm.clone()));
    let harness = Arc::new(TurnLoop {
        llm,
        models: models(config),
        catalog: Arc::new(
            standard(StandardTools::new(artifacts).with_timeout(config.command_timeout))
                .with(ui_bridge::tools::tools(ui_bridge)),
        ),
        workspace: workspace.clone(),
        sandbox: runtime.sandbox(),
        prompt: PromptSettings { mode: runtime.mode().as_str().into(), configured: configured_prompt(config)? },
        context_tokens: compaction::CONTEXT_TOKENS,
        metrics: turn_metrics,
    });
    let settings = SessionSettings {
        state_dir: config.state_dir.clone(),
        shown_root: workspace.shown_root().to_string(),
        default_model: default_model(config),
    };
    let sessions = Sessions::open(settings, harness, begin_turn(activity.clone()))
        .map_err(|error| StartError::Agent(error.to_string()))?;
    let recovering = sessions.clone();
    tokio::spawn(async move { recovering.recover().await });
    Ok(sessions)
}

/// Running turns are closed with a mark before the server ends.
fn close_with(shutdown: &Shutdown, sessions: &Arc<Sessions>) {
    let closing = sessions.clone();
    shutdown.on_close("sessions", move |why| {
        let sessions = closing.clone();
        let reason = match why {
            Closing::Drain => AbortReason::Drain,
            Closing::Shutdown => AbortReason::Shutdown,
        };
        Box::pin(async move { sessions.stop_all(reason).await })
    });
}

/// Counts turns as use of the workspace.
fn begin_turn(activity: Arc<Activity>) -> BeginTurn {
    Box::new(move || match activity.begin_turn() {
        Ok(guard) => Ok(Box::new(guard)),
        Err(_) => Err(SessionError::Draining),
    })
}

/// Text of the system prompt file. One that cannot be read ends the start: no turn runs without what it was told.
fn configured_prompt(config: &Config) -> Result<Option<String>, StartError> {
    let read = |path| {
        std::fs::read_to_string(path)
            .map_err(|error| StartError::Agent(format!("the system prompt file cannot be read: {}", error.kind())))
    };
    config.system_prompt_file.as_ref().map(read).transpose()
}

/// Looks for a key that comes or is exchanged while nobody chats; with a good key this reads nothing.
async fn watch_key(llm: Arc<dyn Llm>) {
    loop {
        tokio::time::sleep(KEY_WATCH).await;
        llm.key_state();
    }
}

/// The configured provider. What it says about the key goes to the readiness.
fn model(config: &Config, readiness: &Arc<Readiness>) -> Result<Arc<dyn Llm>, StartError> {
    let readiness = readiness.clone();
    let tell = move |state| {
        readiness.set_model_key(match state {
            KeyState::Present => ModelKey::Accepted,
            KeyState::Missing => ModelKey::Missing,
            KeyState::Rejected => ModelKey::Rejected,
        });
    };
    let source = match &config.model.key {
        KeySource::Missing => llm::key::KeySource::None,
        KeySource::NotNeeded => llm::key::KeySource::NotNeeded,
        KeySource::File(file) => llm::key::KeySource::File(file.clone()),
        KeySource::Value(value) => llm::key::KeySource::Value(value.clone()),
    };
    let key = ModelKeySource::new(source, Box::new(tell));
    let base_url = |default: &str| config.model.base_url.clone().unwrap_or_else(|| default.to_owned());
    let failed = |error: LlmError| StartError::Agent(error.to_string());
    let (idle_timeout, first_delay) = (None, None);
    Ok(match config.model.provider {
        ModelProvider::Anthropic => {
            let base_url = base_url(llm::anthropic::DEFAULT_BASE_URL);
            let configuration = AnthropicConfiguration { base_url, key, idle_timeout, first_delay };
            Arc::new(Anthropic::new(configuration).map_err(failed)?)
        }
        ModelProvider::Openai => {
            let base_url = base_url(llm::openai::DEFAULT_BASE_URL);
            let configuration = OpenaiConfiguration { base_url, key, idle_timeout, first_delay };
            Arc::new(Openai::new(configuration).map_err(failed)?)
        }
    })
}

/// The models on offer. With `openai` a model is always configured.
fn models(config: &Config) -> Models {
    let price = |price: &ModelPrice| Price {
        input: price.input,
        output: price.output,
        cache_read: price.cache_read,
        cache_write: price.cache_write,
    };
    let prices = config.model.prices.iter().map(|(model, own)| (model.clone(), price(own))).collect();
    Models::new(config.model.provider.as_str(), default_model(config), prices)
}

fn default_model(config: &Config) -> String {
    config.model.id.clone().unwrap_or_else(|| llm::known::DEFAULT_MODEL.into())
}

/// What a fresh workspace gets.
fn provisioning(config: &Config) -> Provisioning {
    Provisioning {
        root: config.workspace_root.clone(),
        template: config.provisioning.template_path.clone(),
        python: PythonLibraries {
            requirements: config.provisioning.python_packages.clone(),
            system_path: std::env::var("PATH").unwrap_or_default(),
        },
    }
}

fn selection(config: &Config) -> Selection {
    Selection { mode: config.mode, network: config.network, on_unavailable: config.on_unavailable }
}

fn local_runtime(config: &Config) -> LocalRuntime {
    let mut secret_files = Vec::from_iter(config.authentication.static_token_file.clone());
    secret_files.extend(config.authentication.signed.as_ref().map(|signed| signed.keys_file.clone()));
    if let KeySource::File(file) = &config.model.key {
        secret_files.push(file.clone());
    }
    LocalRuntime {
        root: config.workspace_root.clone(),
        state_dir: config.state_dir.clone(),
        secret_files,
        command_environment_dir: config.commands.environment_dir.clone(),
        command_files_dir: config.commands.files_dir.clone(),
        server_environment: std::env::vars_os().collect(),
        in_pod: config.pod_uid.is_some(),
        python_libraries: !config.provisioning.python_packages.is_empty(),
        program: THIS_PROGRAM.into(),
        limits: config.limits.with_defaults(),
    }
}
