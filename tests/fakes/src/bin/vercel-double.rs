//! The Vercel Sandbox double as a program: prints its address as the first line and serves until SIGTERM or Ctrl-C.

use std::io::Write;

use anyhow::Context;
use clap::Parser;
use fakes::vercel::{Options, VercelDouble};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A strict double of the Vercel Sandbox API: three generations from one store, commands as real processes.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on. Whoever reaches it can run commands.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Most VMs that may run at one time.
    #[arg(long, default_value_t = Options::default().running)]
    running: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { host, port, running } = Arguments::parse();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let listener =
        TcpListener::bind((host.as_str(), port)).await.with_context(|| format!("cannot listen on {host}:{port}"))?;
    let double = VercelDouble::new(Options { running, ..Options::default() }).context("no throw-away folder")?;
    let mut output = std::io::stdout();
    writeln!(output, "listening on http://{}", listener.local_addr()?)?;
    output.flush()?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    double.serve(listener, stop).await;
    Ok(())
}
