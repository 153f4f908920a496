//! The model provider's double as a program: prints its address as the first line and serves until SIGTERM or Ctrl-C.

use std::io::Write;

use anyhow::Context;
use clap::Parser;
use fakes::model::{ModelDouble, Options, bind, serve};
use tokio::signal::unix::{SignalKind, signal};

/// A strict double of the Anthropic Messages API and of OpenAI-compatible chat completions, scripted from the prompt.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Size of the context window in estimated tokens.
    #[arg(long, default_value_t = Options::default().context_tokens)]
    context_tokens: u64,
    /// Join neighbouring messages of one role, as the provider does, instead of refusing them.
    #[arg(long)]
    join_roles: bool,
    /// Answer chat completions without a key, as a server of one's own does.
    #[arg(long)]
    keyless: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (listener, address) = bind(&arguments.host, arguments.port)
        .await
        .with_context(|| format!("cannot listen on {}:{}", arguments.host, arguments.port))?;
    let Arguments { context_tokens, join_roles, keyless, .. } = arguments;
    let options = Options { context_tokens, join_roles, keyless };
    let (router, _record) = ModelDouble::router(options);
    let mut output = std::io::stdout();
    writeln!(output, "listening on http://{address}")?;
    output.flush()?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve(listener, router, stop).await.context("the server failed")
}
