//! The tool `bash`: runs a command in the workspace.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::arguments::{optional_count, parse, schema};
use super::artifacts::{Artifact, Artifacts};
use super::background::{self, Background, NO_TIMEOUT, Process};
use super::output_tail::OutputTail;
use super::results::{append_notice, refused};
use super::{Access, Tool, ToolContent, ToolContext, ToolDefinition, ToolFailure, ToolProgress, ToolResult};
use crate::sandbox::{ExecEnd, ExecEvent, ExecOutcome, ExecRequest, Network};
use crate::workspace::WorkspacePath;

/// Between two preliminary views; a receiver may thin them out further.
const PREVIEW_EVERY: Duration = Duration::from_millis(50);

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// Command for bash
    command: String,
    /// Seconds until the command is ended (default 120, at most 3600)
    #[serde(default, deserialize_with = "optional_count")]
    timeout: Option<u64>,
    /// Start it and return at once; it goes on after this turn, without a timeout unless one is given
    #[serde(default)]
    background: Option<bool>,
}

/// A background command that fails does so at once more often than not, and the model should see it.
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// Of its first output so much is shown.
const FIRST_OUTPUT_BYTES: usize = 4 * 1024;

/// Runs commands.
pub struct Bash {
    artifacts: Artifacts,
    background: Background,
    default_timeout: Duration,
    max_timeout: Duration,
}

impl Bash {
    /// With a store for long outputs, a place for background commands, and its two timeouts.
    pub fn new(artifacts: Artifacts, background: Background, default_timeout: Duration, max_timeout: Duration) -> Self {
        Self { artifacts, background, default_timeout, max_timeout }
    }

    /// Starts a command that goes on by itself.
    async fn start(&self, command: String, timeout: Duration, context: &ToolContext) -> ToolResult {
        let started = match self.background.start(context.sandbox.as_ref(), command, timeout).await {
            Ok(started) => started,
            Err(error) => return refused(error.to_string()),
        };
        let process = self.background.wait(&started.id, FIRST_LOOK).await.unwrap_or(started);
        let mut text = background::glance(&self.artifacts, &process.artifact, FIRST_OUTPUT_BYTES).await;
        let Process { id, artifact, end, .. } = process;
        let state = end.as_deref().map_or_else(|| "runs in the background".to_owned(), |end| format!("has {end}"));
        let how = "read that for its output, list and end such processes with the tool processes";
        append_notice(&mut text, &format!("{id} {state}; its output goes to {artifact}; {how}"));
        let details = json!({"processId": id, "artifact": artifact, "background": true, "end": end});
        let is_error = end.is_some_and(|end| end != "exited with code 0");
        ToolResult { content: vec![ToolContent::Text(text)], details: Some(details), is_error }
    }

    fn timeout(&self, asked: Option<u64>) -> Result<Duration, ToolFailure> {
        let Some(seconds) = asked else { return Ok(self.default_timeout) };
        let timeout = Duration::from_secs(seconds);
        if timeout > self.max_timeout {
            let most = self.max_timeout.as_secs();
            return Err(ToolFailure(format!("timeout is in seconds and at most {most}, found {seconds}")));
        }
        Ok(timeout)
    }

    fn definition_text(&self) -> (String, Value) {
        let (default, most) = (self.default_timeout.as_secs(), self.max_timeout.as_secs());
        let mut schema = schema::<Arguments>();
        schema["properties"]["timeout"]["description"] =
            format!("Seconds until the command is ended (default {default}, at most {most})").into();
        let description = "Run a command with bash in the workspace root. Returns stdout and stderr together, and the \
                           exit code if it is not 0. Long output is cut to its last 2000 lines or 50 KiB; the whole is \
                           kept for read. There is no terminal and no input. What a command leaves running ends \
                           with the turn; to keep a server or watcher running, use background: true, which returns at \
                           once with an id and the artifact that gets its output. The tool processes lists and ends \
                           such processes.";
        (description.into(), schema)
    }
}

#[async_trait::async_trait]
impl Tool for Bash {
    fn definition(&self) -> ToolDefinition {
        let (description, input_schema) = self.definition_text();
        ToolDefinition { name: "bash".into(), description, input_schema }
    }

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        let timeout = self.timeout(arguments.timeout)?;
        if arguments.background == Some(true) {
            let timeout = if arguments.timeout.is_some() { timeout } else { NO_TIMEOUT };
            return Ok(self.start(arguments.command, timeout, &context).await);
        }
        let request = ExecRequest {
            command: arguments.command,
            working_directory: WorkspacePath::root(),
            environment: BTreeMap::new(),
            timeout,
            // The end is what is shown, so all of it must pass by; memory and disk are bounded by `OutputTail`.
            max_output_bytes: u64::MAX,
            cancel: context.cancel.clone(),
        };
        let mut events = match context.sandbox.exec(request).await {
            Ok(events) => events,
            Err(error) => return Ok(refused(error.to_string())),
        };
        let mut output = OutputTail::new(self.artifacts.clone());
        let mut end = None;
        let (mut next_preview, mut is_new) = (Instant::now(), false);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(ExecEvent::Output { stream, bytes }) => {
                        output.push(stream, &bytes).await;
                        is_new = true;
                    }
                    Some(ExecEvent::Ended(value)) => end = Some(value),
                    None => break,
                },
                () = tokio::time::sleep_until(next_preview), if is_new => {
                    // A closed channel is no error.
                    let _ = context.progress.send(ToolProgress::Preliminary(output.preview()));
                    (next_preview, is_new) = (Instant::now() + PREVIEW_EVERY, false);
                }
            }
        }
        let (text, artifact) = output.finish().await;
        let end = end.ok_or_else(|| ToolFailure("the command was lost".into()))?;
        let network = context.sandbox.isolation().network;
        Ok(result(text, artifact.as_ref(), &end, timeout, network))
    }
}

/// What common programs write when they find no network. Looked for in the end of the output only.
const NETWORK_WORDS: [&str; 14] = [
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "network is unreachable",
    "failed to establish a new connection",
    "failed to connect to",
    "could not connect to",
    "couldn't connect to server",
    "getaddrinfo",
    "enetunreach",
    "no route to host",
    "socket: operation not permitted",
];
const END_LOOKED_AT: usize = 8 * 1024;

fn speaks_of_the_network(text: &str) -> bool {
    let from = text.ceil_char_boundary(text.len().saturating_sub(END_LOOKED_AT));
    let end = text[from..].to_lowercase();
    NETWORK_WORDS.iter().any(|words| end.contains(words))
}

fn result(
    mut text: String,
    artifact: Option<&Artifact>,
    end: &ExecEnd,
    timeout: Duration,
    network: Network,
) -> ToolResult {
    let mut details =
        json!({"exitCode": null, "durationMs": u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX)});
    if let Some(artifact) = artifact {
        details["artifact"] = artifact.uri.as_str().into();
    }
    let status = match &end.outcome {
        ExecOutcome::Exited(code) => {
            details["exitCode"] = (*code).into();
            (*code != 0).then(|| format!("command exited with code {code}"))
        }
        ExecOutcome::Signaled(signal) => {
            details["signal"] = (*signal).into();
            Some(format!("command was ended by signal {signal}"))
        }
        ExecOutcome::TimedOut => {
            details["timedOut"] = true.into();
            Some(format!("command timed out after {} seconds and was ended with all its processes", timeout.as_secs()))
        }
        ExecOutcome::Stopped => {
            details["stopped"] = true.into();
            Some("command was stopped by the user".into())
        }
        ExecOutcome::LimitExceeded(limit) => {
            details["limit"] = limit.as_str().into();
            Some(format!("command was ended with all its processes: {limit}"))
        }
    };
    let is_error = status.is_some();
    let lacks_network = is_error && network == Network::Isolated && speaks_of_the_network(&text);
    if text.is_empty() {
        text.push_str("(no output)");
    }
    if let Some(status) = status {
        append_notice(&mut text, &status);
    }
    if lacks_network {
        details["networkIsolated"] = true.into();
        append_notice(&mut text, "commands have no network: this workspace's sandbox is set to `network: Isolated`");
    }
    if let Some(notice) = &end.notice {
        details["notice"] = notice.as_str().into();
        append_notice(&mut text, notice);
    }
    if end.others_run {
        details["background"] = true.into();
        append_notice(&mut text, "processes of this command still run in the background; they end with this turn");
    }
    ToolResult { content: vec![ToolContent::Text(text)], details: Some(details), is_error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, code: i32, network: Network) -> String {
        let end = ExecEnd {
            outcome: ExecOutcome::Exited(code),
            dropped_bytes: 0,
            duration: Duration::ZERO,
            others_run: false,
            notice: Some("built anew".into()),
        };
        match result(text.into(), None, &end, Duration::ZERO, network).content.remove(0) {
            ToolContent::Text(text) => text,
            other @ ToolContent::Image { .. } => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_command_that_found_no_network_is_told_the_setting() {
        let failure = format!("{}curl: (6) Could not resolve host: example.com\n", "ä".repeat(10_000));
        assert!(shown(&failure, 6, Network::Isolated).contains("`network: Isolated`"));
        for (text, code, network) in [(failure.as_str(), 6, Network::Inherit), (&failure, 0, Network::Isolated)] {
            assert!(!shown(text, code, network).contains("Isolated"), "{code} {network:?}");
        }
        assert!(!shown("error: no such file", 1, Network::Isolated).contains("Isolated"));
    }

    #[test]
    fn what_happened_to_the_sandbox_is_told() {
        assert!(shown("x", 0, Network::Inherit).contains("built anew"));
    }
}
