//! Runs the benches, prints a table and writes `target/bench/*.json`. Build it with `--release`; `make bench` does.

use std::path::{Path, PathBuf};

use clap::Parser;
use e2e::bench;

#[derive(Debug, Parser)]
#[command(about = "Measure the figures of the products")]
struct Arguments {
    /// Measure the agent server alone.
    #[arg(long)]
    server: bool,
    /// Measure the sandbox modes on this machine.
    #[arg(long)]
    sandbox: bool,
    /// Measure the gateway alone, with the API server of KUBECONFIG: a cluster of its own, without nodes.
    #[arg(long)]
    gateway: bool,
    /// Measure on the cluster of KUBECONFIG; the path of its audit log.
    #[arg(long, value_name = "AUDIT_LOG")]
    cluster: Option<PathBuf>,
    /// Where the JSON goes.
    #[arg(long, default_value = "target/bench")]
    output: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // The one TLS provider of the workspace; a second installation is refused and changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if arguments.server {
        let figures = bench::server::run(&bench::server::binary("AGENT_SERVER_BIN", "agent-server")).await?;
        bench::report(&arguments.output, "agent-server", &figures)?;
    }
    if arguments.sandbox {
        let figures = bench::sandbox::run(&bench::server::binary("AGENT_SERVER_BIN", "agent-server")).await?;
        bench::report(&arguments.output, "sandbox", &figures)?;
    }
    if arguments.gateway {
        let figures = bench::gateway::run(&bench::server::binary("OPERATOR_BIN", "operator")).await?;
        bench::report(&arguments.output, "gateway", &figures)?;
    }
    if let Some(audit_log) = &arguments.cluster {
        let figures = bench::cluster::run(Path::new(audit_log)).await?;
        bench::report(&arguments.output, "operator", &figures)?;
    }
    Ok(())
}
