//! Logs go to standard error, so that a command's result is alone on standard output.

use std::io;

use tracing_subscriber::{EnvFilter, fmt};

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for log collectors.
    #[default]
    Json,
    /// For people.
    Text,
}

/// Starts logging once for the process. `filter` is a list of directives as in `RUST_LOG`; one that does not parse is replaced
/// by `info`, and a warning says so.
pub fn start_logs(format: LogFormat, filter: &str) {
    let (filter, problem) = match EnvFilter::try_new(filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    // An earlier subscriber stays: tests start several in one process.
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(error, "logs were started before");
    }
    if let Some(error) = problem {
        tracing::warn!(%error, "the log filter does not parse, info is used");
    }
}
