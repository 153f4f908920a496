//! Entry point: reads the command line and starts what it names.

use std::{io::Write, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use operator::{
    cluster::{Calls, client_for_calls},
    config::ControllerArguments,
    controller::{self, Settings},
    gateway::{self, GatewayArguments},
    generate,
    plugin::{self, PluginArguments},
    reconcile::LEAST_SPREAD_SECONDS,
    telemetry::{GatewayMetrics, LogFormat, Metrics, start_logs},
    token::{TokenArguments, token},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs agent workspaces on Kubernetes.
#[derive(Parser)]
#[command(name = "operator", version, about, max_term_width = 120)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch AgentWorkspaces and keep what they ask for.
    Controller(Box<ControllerArguments>),
    /// Let people in to their workspaces, and wake those that sleep.
    Gateway(Box<GatewayArguments>),
    /// Print a token for a running workspace, good for ten minutes. Uses the pod's service account, or the current kubeconfig.
    Token(TokenArguments),
    /// Agent workspaces at a terminal; `kubectl aw` when the program is called kubectl-aw.
    Aw(PluginArguments),
    /// Write the files that are made from code, or compare them.
    Gen(GenerateArguments),
}

/// Flags of `operator gen`.
#[derive(Args)]
struct GenerateArguments {
    /// Compare only; differences are an error.
    #[arg(long)]
    check: bool,
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

fn main() -> ExitCode {
    // The one TLS provider of the process; an error would mean that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = if is_plugin() {
        let arguments = PluginArguments::parse();
        run(Command::Aw(arguments))
    } else {
        run(Program::parse().command)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is all that is left to report to.
            let _ = writeln!(std::io::stderr(), "operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Under this name kubectl finds the program as `kubectl aw`.
fn is_plugin() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref().and_then(|name| name.file_stem()).is_some_and(|stem| stem == "kubectl-aw")
}

fn run(command: Command) -> anyhow::Result<()> {
    // Two threads serve thousands of workspaces: the work is waiting for the API server. Fewer threads, less memory.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Controller(arguments) => runtime.block_on(run_controller(*arguments)),
        Command::Gateway(arguments) => runtime.block_on(run_gateway(*arguments)),
        Command::Aw(arguments) => runtime.block_on(run_plugin(&arguments)),
        Command::Token(arguments) => runtime.block_on(print_token(&arguments)),
        Command::Gen(arguments) => Ok(generate::run(arguments.check, &arguments.root)?),
    }
}

async fn run_controller(arguments: ControllerArguments) -> anyhow::Result<()> {
    start_logs(arguments.logs.log_format, &arguments.logs.log_filter);
    let config = kube::Config::infer().await.context("no access to a cluster")?;
    let settings = Settings {
        namespace: arguments.place.namespace.clone(),
        identity: arguments.identity.clone(),
        leader_election: arguments.leader_election,
        concurrency: usize::from(arguments.concurrency),
        plan: arguments.plan_config(),
        key_rotation: arguments.key_rotation(),
        least_spread_seconds: LEAST_SPREAD_SECONDS,
        // Another replica may act by now: nothing in this process may go on, not even for a moment.
        on_lost: || std::process::exit(1),
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), identity = settings.identity, "the operator starts");
    let listener = controller::listen(arguments.listen).await?;
    let stop = stop_on_signals()?;
    controller::run(config, settings, listener, Arc::new(Metrics::new()), stop).await?;
    tracing::info!("the operator has ended");
    Ok(())
}

async fn run_gateway(arguments: GatewayArguments) -> anyhow::Result<()> {
    start_logs(arguments.logs.log_format, &arguments.logs.log_filter);
    let config = kube::Config::infer().await.context("no access to a cluster")?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), domain = arguments.domain, "the gateway starts");
    let listeners = gateway::listen(arguments.listen, arguments.health_listen).await?;
    let stop = stop_on_signals()?;
    let metrics = Arc::new(Metrics::for_gateway());
    let gateway_metrics = Arc::new(GatewayMetrics::new(&metrics));
    gateway::run(config, gateway::Settings::from(&arguments), listeners, metrics, gateway_metrics, stop).await?;
    tracing::info!("the gateway has ended");
    Ok(())
}

/// Cancelled by SIGTERM or SIGINT.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end");
        token.cancel();
    });
    Ok(stop)
}

async fn run_plugin(arguments: &PluginArguments) -> anyhow::Result<()> {
    start_logs(LogFormat::Text, "warn");
    let config = kube::Config::infer().await.context("no access to a cluster")?;
    let client = client_for_calls(&config)?;
    let calls = Calls::new(Arc::new(Metrics::new()));
    Ok(plugin::run(arguments, &config, client, calls, &mut std::io::stdout()).await?)
}

async fn print_token(arguments: &TokenArguments) -> anyhow::Result<()> {
    start_logs(LogFormat::Text, "warn");
    let config = kube::Config::infer().await.context("no access to a cluster")?;
    let client = client_for_calls(&config)?;
    let text = token(client, Calls::new(Arc::new(Metrics::new())), arguments).await?;
    writeln!(std::io::stdout(), "{text}").context("cannot write the token")
}
