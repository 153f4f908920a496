//! One command from its supervisor's start to the end of its tree, seen from the server.
//!
//! Owns the talk with the supervisor, the timeout, the cancelling and the order of events. Must not know the rules that
//! the command runs under.

use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::{KILL_DEADLINE, TERMINATION_GRACE};
use super::output::{EVENTS_BUFFERED, OutputPump, discard};
use super::protocol::{END_TREE, Report, ShellStatus};
use super::registry::Registration;
use super::strays::{self, Supervisor};
use super::{ExecEnd, ExecEvent, ExecOutcome, ExecRequest, OutputStream, SandboxError};

/// The supervisor reports its start within milliseconds; on a machine that swaps it may take seconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// After an order to end: the supervisor's own bounds and a second for its report.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(TERMINATION_GRACE.as_secs() + KILL_DEADLINE.as_secs() + 1);
/// After the shell's end its children may write a last word (`> >(tee log)`); then the command counts as ended.
const OUTPUT_GRACE: Duration = Duration::from_millis(100);

/// Why the server ended a tree.
enum Cause {
    TimedOut,
    Stopped,
    Limit(String),
}

/// A command whose shell runs.
pub struct RunningCommand {
    supervisor: Supervisor,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
    started: Instant,
    /// The reports ended before the tree did.
    is_lost: bool,
}

impl RunningCommand {
    /// Starts a supervisor that is completely described by `command` and waits for its first report.
    pub async fn start(mut command: Command) -> Result<Self, SandboxError> {
        let spawn_failed = |error: std::io::Error| SandboxError::Spawn(describe(&error));
        let started = Instant::now();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(spawn_failed)?;
        ours.set_nonblocking(true).map_err(spawn_failed)?;
        let socket = UnixStream::from_std(ours).map_err(spawn_failed)?;
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let supervisor = strays::start_supervisor(&mut command).map_err(spawn_failed)?;
        // The command holds a copy of the supervisor's end of the socket; without it the end of the stream never comes.
        drop(command);
        let (reader, orders) = socket.into_split();
        let mut this = Self { supervisor, reports: BufReader::new(reader).lines(), orders, started, is_lost: false };
        match tokio::time::timeout(START_TIMEOUT, this.next_report()).await {
            Ok(Some(Report::Started)) => Ok(this),
            Ok(Some(Report::Failed(message))) => Err(SandboxError::Spawn(message)),
            Ok(_) => Err(SandboxError::Spawn("the supervisor ended without a report".into())),
            Err(_) => {
                this.supervisor.child.start_kill().map_err(spawn_failed)?;
                Err(SandboxError::Spawn(format!("the supervisor did not start within {START_TIMEOUT:?}")))
            }
        }
    }

    /// Follows the command to the end of its tree. `events` gets the output and `Ended` when the shell is gone;
    /// background processes are followed further until they end, or until `request.cancel` or the registry ends them.
    pub async fn follow(mut self, request: ExecRequest, events: mpsc::Sender<ExecEvent>, registration: Registration) {
        let dropped = Arc::new(AtomicU64::new(0));
        let finish = CancellationToken::new();
        let (stdout, stderr) = (self.supervisor.child.stdout.take(), self.supervisor.child.stderr.take());
        let pump = |stream| (stream, request.max_output_bytes, events.clone(), Arc::clone(&dropped), finish.clone());
        let stdout = spawn_pump(stdout, pump(OutputStream::Stdout));
        let stderr = spawn_pump(stderr, pump(OutputStream::Stderr));

        let (outcome, tree_runs) = self.until_shell_ends(&request, &events, registration.stop()).await;
        let registration = tree_runs.then_some(registration);
        let mut both = pin!(async { (join(stdout).await, join(stderr).await) });
        let rest = if let Ok(rest) = tokio::time::timeout(OUTPUT_GRACE, &mut both).await {
            rest
        } else {
            finish.cancel();
            both.await
        };
        let end = ExecEnd {
            outcome,
            dropped_bytes: dropped.load(Ordering::Relaxed),
            duration: self.started.elapsed(),
            others_run: tree_runs,
        };
        // A receiver that is gone does not want to know.
        let _ = events.send(ExecEvent::Ended(end)).await;
        drop(events);
        if let Some(registration) = registration {
            let draining = tokio::spawn(async move { tokio::join!(discard(rest.0), discard(rest.1)) });
            self.until_background_ends(&request.cancel, registration.stop()).await;
            draining.abort();
        }
        self.bury().await;
    }

    /// Returns the outcome and whether processes of the tree still run.
    async fn until_shell_ends(
        &mut self,
        request: &ExecRequest,
        events: &mpsc::Sender<ExecEvent>,
        stop: &CancellationToken,
    ) -> (ExecOutcome, bool) {
        let deadline = self.started + request.timeout;
        let mut cause = None;
        let report = loop {
            tokio::select! {
                report = self.next_report() => match report {
                    Some(Report::LimitExceeded(limit)) => {
                        cause = Some(Cause::Limit(limit));
                        break self.report_of_tree_end().await;
                    }
                    report => break report,
                },
                () = tokio::time::sleep_until(deadline) => cause = Some(Cause::TimedOut),
                () = request.cancel.cancelled() => cause = Some(Cause::Stopped),
                () = stop.cancelled() => cause = Some(Cause::Stopped),
                () = events.closed() => cause = Some(Cause::Stopped),
            }
            if cause.is_some() {
                break self.end_tree().await;
            }
        };
        let outcome = match (cause, &report) {
            (Some(Cause::TimedOut), _) => ExecOutcome::TimedOut,
            (Some(Cause::Stopped), _) => ExecOutcome::Stopped,
            (Some(Cause::Limit(limit)), _) => ExecOutcome::LimitExceeded(limit),
            (None, Some(Report::ShellEnded { status: ShellStatus::Exited(code), .. })) => ExecOutcome::Exited(*code),
            (None, Some(Report::ShellEnded { status: ShellStatus::Signaled(signal), .. })) => {
                ExecOutcome::Signaled(*signal)
            }
            (None, _) => {
                tracing::error!(?report, "the supervisor of a command was lost");
                self.bury().await;
                ExecOutcome::LimitExceeded("its supervisor was lost, probably for lack of memory".into())
            }
        };
        (outcome, matches!(report, Some(Report::ShellEnded { others_run: true, .. })))
    }

    async fn until_background_ends(&mut self, cancel: &CancellationToken, stop: &CancellationToken) {
        loop {
            tokio::select! {
                report = self.next_report() => match report {
                    Some(Report::LimitExceeded(limit)) => tracing::warn!(limit, "background processes ended by a limit"),
                    Some(Report::TreeStuck(count)) => tracing::error!(count, "background processes could not be ended"),
                    Some(Report::TreeEnded) | None => return,
                    Some(_) => {}
                },
                () = cancel.cancelled() => break,
                () = stop.cancelled() => break,
            }
        }
        self.end_tree().await;
    }

    /// Orders the end and waits for it; the answer is the supervisor's last report.
    async fn end_tree(&mut self) -> Option<Report> {
        // If the supervisor is gone, the reports say so by ending.
        let _ = self.orders.write_all(&[END_TREE]).await;
        self.report_of_tree_end().await
    }

    async fn report_of_tree_end(&mut self) -> Option<Report> {
        let last = async {
            loop {
                match self.next_report().await {
                    Some(report @ (Report::TreeEnded | Report::TreeStuck(_))) => return Some(report),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        let report = tokio::time::timeout(END_TIMEOUT, last).await.ok().flatten();
        if report != Some(Report::TreeEnded) {
            tracing::error!(?report, "a command's processes could not all be ended");
        }
        report
    }

    async fn next_report(&mut self) -> Option<Report> {
        let report = self.reports.next_line().await.ok().flatten().and_then(|line| {
            serde_json::from_str(&line)
                .inspect_err(|error| tracing::error!(%error, "the supervisor sent something unexpected"))
                .ok()
        });
        self.is_lost |= report.is_none();
        report
    }

    /// Waits for the supervisor, which exits after its last report; one that does not is killed. Ends what a lost one
    /// left behind.
    async fn bury(&mut self) {
        if tokio::time::timeout(END_TIMEOUT, self.supervisor.child.wait()).await.is_err() {
            tracing::error!("the supervisor of a command had to be killed");
            // Fails only if it ended in this moment.
            let _ = self.supervisor.child.kill().await;
            self.is_lost = true;
        }
        if self.is_lost {
            // Fails only if the runtime ends.
            let _ = tokio::task::spawn_blocking(strays::end_strays).await;
        }
    }
}

type PumpParts = (OutputStream, u64, mpsc::Sender<ExecEvent>, Arc<AtomicU64>, CancellationToken);

fn spawn_pump<R>(pipe: Option<R>, parts: PumpParts) -> JoinHandle<Option<R>>
where
    R: tokio::io::AsyncRead + Unpin + Send + 'static,
{
    let (stream, max_bytes, events, dropped, finish) = parts;
    tokio::spawn(async move {
        let pipe = pipe?;
        OutputPump { pipe, stream, events, max_bytes, dropped, finish }.run().await
    })
}

async fn join<R>(pump: JoinHandle<Option<R>>) -> Option<R> {
    pump.await.ok().flatten()
}

/// A spawn error in words without the operating system's text or host paths.
fn describe(error: &std::io::Error) -> String {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::TOOBIG) => "the command and its environment are too long".into(),
        Some(rustix::io::Errno::AGAIN) => "no more processes are allowed".into(),
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => "no more open files are allowed".into(),
        _ => format!("{:?}", error.kind()),
    }
}

/// Room for the events of one command.
pub fn event_channel() -> (mpsc::Sender<ExecEvent>, mpsc::Receiver<ExecEvent>) {
    mpsc::channel(EVENTS_BUFFERED)
}
