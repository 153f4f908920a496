//! Entry point: reads the command line, then serves or prints a generated document.
//!
//! Exit codes are part of the contract with the operator: 0 after SIGTERM, 78 for a configuration that does not
//! validate (the message is the last output), 1 for anything else.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use agent_server::config::{Arguments, Command, CommandLine, Config, Document, Surroundings, load, reference};
use agent_server::run;
use agent_server::sandbox::conformance::{network_table, system_call_table, table};
use agent_server::serve::{BLOCKING_KEEP_ALIVE, MAX_BLOCKING_THREADS, worker_threads};
use anyhow::Context as _;
use clap::Parser as _;

/// `EX_CONFIG` of sysexits.h.
const EXIT_CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    let started_at = Instant::now();
    agent_server::sandbox::helper::run_if_requested();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_CONFIGURATION } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    let outcome = match line.command {
        Some(Command::Gen { document }) => print(document),
        Some(Command::CheckSandbox { serve, server_pid, outside }) => check_sandbox(*serve, server_pid, &outside),
        Some(Command::Serve(arguments)) => serve(*arguments, started_at),
        None => serve(line.serve, started_at),
    };
    outcome.unwrap_or_else(|error| {
        report(&format!("agent-server: {error:#}"));
        ExitCode::FAILURE
    })
}

/// The last words of the process; there is nobody left to tell if they cannot be written.
fn report(message: &str) {
    let _nobody_left_to_tell = writeln!(std::io::stderr(), "{message}");
}

fn print(document: Document) -> anyhow::Result<ExitCode> {
    let text = match document {
        Document::Openapi => agent_server::http::openapi::generate()?,
        Document::Configuration => reference(),
        Document::Attacks => [table(), network_table(), system_call_table()].join("\n"),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: Arguments, started_at: Instant) -> anyhow::Result<ExitCode> {
    let print_config = arguments.print_config;
    let config = match load(arguments, &Surroundings::of_process()) {
        Ok(config) => config,
        Err(error) => {
            report(&format!("agent-server: {error}"));
            return Ok(ExitCode::from(EXIT_CONFIGURATION));
        }
    };
    if print_config {
        let text = serde_json::to_string_pretty(&config)? + "\n";
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    agent_server::telemetry::start_logging(&config.log).map_err(anyhow::Error::msg)?;
    start(config, started_at)?;
    Ok(ExitCode::SUCCESS)
}

fn check_sandbox(arguments: Arguments, server: Option<u32>, outside: &std::path::Path) -> anyhow::Result<ExitCode> {
    let config = match load(arguments, &Surroundings::of_process()) {
        Ok(config) => config,
        Err(error) => {
            report(&format!("agent-server: {error}"));
            return Ok(ExitCode::from(EXIT_CONFIGURATION));
        }
    };
    let runtime = runtime()?;
    let outcome = runtime.block_on(agent_server::check_sandbox(config, server, outside));
    runtime.shutdown_background();
    let checked = outcome?;
    let text = serde_json::to_string_pretty(&checked)? + "\n";
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if checked.is_as_promised() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn start(config: Config, started_at: Instant) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(run(config, started_at));
    // Storage that hangs must not keep the process: its threads are left behind.
    runtime.shutdown_background();
    Ok(outcome?)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .enable_all()
        .build()
        .context("the asynchronous runtime cannot be started")
}
