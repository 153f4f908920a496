//! Commands that are followed: whole lines whatever the pieces, taken up again after a cut, never run twice.

use reqwest::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::CommandRequest;
use crate::error::Error;
use crate::lines::Lines;
use crate::machine::Machine;
use crate::values::Command;

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Of standard output.
    Stdout(String),
    /// Of standard error.
    Stderr(String),
}

/// What happens to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It began.
    Started(Command),
    /// It wrote something.
    Output(Output),
    /// It ended; the exit code is set. Nothing follows.
    Ended(Command),
}

/// One line of a stream.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Command { command: Command },
    Failure { stream: ErrorStream, data: Failure },
    Output { stream: OutputStream, data: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ErrorStream {
    Error,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutputStream {
    Stdout,
    Stderr,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
}

/// A command that is being followed. Dropping it leaves the command running.
///
/// When the stream breaks, it is opened again, and what was delivered before is skipped; five breaks without anything
/// new between them are [`Error::StreamCut`]. The exit code is always the service's: a stream that ends early is never
/// taken for the end of the command.
#[derive(Debug)]
pub struct Execution {
    machine: Machine,
    command: Option<String>,
    stream: Option<Response>,
    lines: Lines,
    /// Bytes delivered of standard output and of standard error.
    delivered: [usize; 2],
    /// Bytes that the stream opened last repeats.
    skip: [usize; 2],
    breaks: u32,
    done: bool,
}

impl Execution {
    pub(crate) async fn start(machine: Machine, request: &CommandRequest) -> Result<Self, Error> {
        if machine.first_generation {
            let command = machine.start(request).await?;
            let mut execution = Self::follow(machine, &command.id);
            execution.lines.push(format!("{}\n", json!({"command": started(&command)})).as_bytes())?;
            return Ok(execution);
        }
        let stream = machine.start_streamed(request).await?;
        Ok(Self { stream: Some(stream), ..Self::idle(machine, None) })
    }

    pub(crate) fn follow(machine: Machine, command: &str) -> Self {
        Self::idle(machine, Some(command.to_owned()))
    }

    fn idle(machine: Machine, command: Option<String>) -> Self {
        let (lines, delivered, skip) = (Lines::default(), [0, 0], [0, 0]);
        Self { machine, command, stream: None, lines, delivered, skip, breaks: 0, done: false }
    }

    /// Identity of the command, once it is known.
    pub fn command(&self) -> Option<&str> {
        self.command.as_deref()
    }

    /// The next event, or `None` after the end.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        while !self.done {
            if let Some(event) = self.buffered()? {
                self.breaks = 0;
                self.done = matches!(event, Event::Ended(_));
                return Ok(Some(event));
            }
            let Some(stream) = &mut self.stream else {
                self.open().await?;
                continue;
            };
            match stream.chunk().await {
                Ok(Some(piece)) => self.lines.push(&piece)?,
                Ok(None) => {
                    if let Some(ended) = self.ended_stream().await? {
                        self.done = true;
                        return Ok(Some(Event::Ended(ended)));
                    }
                }
                Err(error) => self.broken(&crate::transport::cause(error)).await?,
            }
        }
        Ok(None)
    }

    /// Runs to the end and collects all output.
    pub async fn collect(&mut self) -> Result<(Vec<Output>, Command), Error> {
        let mut output = Vec::new();
        loop {
            match self.next().await? {
                Some(Event::Output(piece)) => output.push(piece),
                Some(Event::Started(_)) => {}
                Some(Event::Ended(command)) => return Ok((output, command)),
                None => return Err(Error::Protocol("the command was followed to its end before".to_owned())),
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<Event>, Error> {
        while let Some(line) = self.lines.next() {
            let line: Line = serde_json::from_slice(line)
                .map_err(|error| Error::Protocol(format!("a line of output is none: {error}")))?;
            match line {
                Line::Command { command } if command.exit_code.is_some() => return Ok(Some(Event::Ended(command))),
                Line::Command { command } => {
                    self.command = Some(command.id.clone());
                    return Ok(Some(Event::Started(command)));
                }
                Line::Failure { stream: ErrorStream::Error, data: Failure { code, message } } => {
                    self.done = true;
                    return Err(Error::Stream { code, message });
                }
                Line::Output { stream, data } => {
                    if let Some(event) = self.fresh(stream, data) {
                        return Ok(Some(event));
                    }
                }
            }
        }
        Ok(None)
    }

    /// What of a piece was not delivered before. A repeated stream may be cut into other pieces.
    fn fresh(&mut self, stream: OutputStream, data: String) -> Option<Event> {
        let at = stream as usize;
        let known = self.skip[at].min(data.len());
        self.skip[at] -= known;
        let data = if known == 0 { data } else { String::from_utf8_lossy(&data.as_bytes()[known..]).into_owned() };
        if data.is_empty() {
            return None;
        }
        self.delivered[at] += data.len();
        Some(Event::Output(match stream {
            OutputStream::Stdout => Output::Stdout(data),
            OutputStream::Stderr => Output::Stderr(data),
        }))
    }

    async fn open(&mut self) -> Result<(), Error> {
        let command = self.command.as_deref().ok_or_else(|| {
            Error::OutcomeUnknown("the answer was cut before it named the command, which may run".to_owned())
        })?;
        self.stream = Some(self.machine.log_stream(command).await?);
        self.lines = Lines::default();
        self.skip = self.delivered;
        Ok(())
    }

    /// After the end of a stream: the ended command, or nothing when it still runs and the stream ended early.
    async fn ended_stream(&mut self) -> Result<Option<Command>, Error> {
        let Some(command) = self.command.clone() else {
            return self.open().await.map(|()| None);
        };
        let state = self.machine.command(&command).await?;
        let whole = self.skip == [0, 0] && self.stream_was_logs();
        if state.exit_code.is_some() && whole {
            return Ok(Some(state));
        }
        self.broken("the stream ended early").await.map(|()| None)
    }

    /// A stream of logs ends without a word about the command; the answer of a start ends with one, which did not come.
    fn stream_was_logs(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.url().path().ends_with("/logs"))
    }

    async fn broken(&mut self, cause: &str) -> Result<(), Error> {
        self.stream = None;
        self.breaks += 1;
        if self.breaks > self.machine.transport.policy.retries {
            let command = self.command.clone().unwrap_or_default();
            return Err(Error::StreamCut { command, cause: cause.to_owned() });
        }
        self.machine.transport.clock.sleep(self.machine.transport.backoff(self.breaks - 1)).await;
        Ok(())
    }
}

/// A command that has been started, as a first line says it.
fn started(command: &Command) -> Value {
    json!({"id": command.id, "name": command.name, "args": command.args, "cwd": command.cwd, "exitCode": null})
}

impl Machine {
    /// Starts a command and follows its output until it ends.
    pub async fn run(&self, request: &CommandRequest) -> Result<Execution, Error> {
        Execution::start(self.clone(), request).await
    }

    /// Follows a command that was started before, from its first output on.
    pub fn follow(&self, command: &str) -> Execution {
        Execution::follow(self.clone(), command)
    }
}
