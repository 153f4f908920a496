//! One command from its supervisor's start to the end of its tree, seen from the server.
//!
//! Owns the talk with the supervisor, the timeout, the cancelling and the order of events. Must not know the rules that
//! the command runs under.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::{CommandLimits, KILL_DEADLINE, TERMINATION_GRACE};
use super::output::{EVENTS_BUFFERED, OutputCount, OutputPump, discard};
use super::protocol::{END_TREE, KILL_TREE, OrderMessage, Orders, Report, ShellStatus};
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

/// The ends of a command's channels that its supervisor gets.
pub struct SupervisorEnds {
    /// Its standard input: orders and reports.
    pub socket: OwnedFd,
    /// Standard output of the command.
    pub stdout: OwnedFd,
    /// Standard error of the command.
    pub stderr: OwnedFd,
}

/// The server's ends of a command's channels.
pub struct Channels {
    socket: std::os::unix::net::UnixStream,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Channels {
    /// Fresh channels, all of them close-on-exec.
    pub fn new() -> Result<(Self, SupervisorEnds), SandboxError> {
        let failed = |error: std::io::Error| SandboxError::Spawn(describe(&error));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(std::io::Error::from);
        let ((stdout, their_stdout), (stderr, their_stderr)) = (pipe().map_err(failed)?, pipe().map_err(failed)?);
        let ends = SupervisorEnds { socket: theirs.into(), stdout: their_stdout, stderr: their_stderr };
        Ok((Self { socket: ours, stdout, stderr }, ends))
    }
}

/// A command whose shell runs.
pub struct RunningCommand {
    /// The supervisor, where it is a child of this process.
    child: Option<Supervisor>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
    output: Option<(pipe::Receiver, pipe::Receiver)>,
    limits: CommandLimits,
    started: Instant,
    /// The reports ended before the tree did.
    is_lost: bool,
}

impl RunningCommand {
    /// Sends the orders to a supervisor that was started a moment ago and waits for its first report. `table` is for a
    /// supervisor that has no table of processes of its own.
    pub async fn start(
        channels: Channels,
        child: Option<Supervisor>,
        orders: &Orders,
        table: Option<BorrowedFd<'_>>,
    ) -> Result<Self, SandboxError> {
        let failed = |error: std::io::Error| SandboxError::Spawn(describe(&error));
        let started = Instant::now();
        let message = OrderMessage::new(orders).map_err(SandboxError::Spawn)?;
        // A supervisor that is gone already is noticed by the missing report.
        let _ = message.send_head(channels.socket.as_fd(), table);
        channels.socket.set_nonblocking(true).map_err(failed)?;
        let (reader, writer) = UnixStream::from_std(channels.socket).map_err(failed)?.into_split();
        let receiver = |end| pipe::Receiver::from_owned_fd(end).map_err(failed);
        let output = Some((receiver(channels.stdout)?, receiver(channels.stderr)?));
        let reports = BufReader::new(reader).lines();
        let mut this = Self { child, reports, orders: writer, output, limits: orders.limits, started, is_lost: false };
        let first = async {
            let _ = this.orders.write_all(message.body()).await;
            this.next_report().await
        };
        match tokio::time::timeout(START_TIMEOUT, first).await {
            Ok(Some(Report::Started)) => Ok(this),
            Ok(Some(Report::Failed(message))) => Err(SandboxError::Spawn(message)),
            Ok(_) => Err(SandboxError::Spawn("the supervisor ended without a report".into())),
            Err(_) => {
                if let Some(child) = &mut this.child {
                    child.child.start_kill().map_err(failed)?;
                }
                Err(SandboxError::Spawn(format!("the supervisor did not start within {START_TIMEOUT:?}")))
            }
        }
    }

    /// Follows the command to the end of its tree. `events` gets the output and `Ended` when the shell is gone;
    /// background processes are followed further until they end, or until `request.cancel` or the registry ends them.
    pub async fn follow(
        mut self,
        request: ExecRequest,
        events: mpsc::Sender<ExecEvent>,
        registration: Registration,
        notice: Option<String>,
    ) {
        let count = OutputCount::new(self.limits.output_bytes);
        let finish = CancellationToken::new();
        let (stdout, stderr) = self.output.take().unzip();
        let pump = |stream| (stream, request.max_output_bytes, events.clone(), Arc::clone(&count), finish.clone());
        let stdout = spawn_pump(stdout, pump(OutputStream::Stdout));
        let stderr = spawn_pump(stderr, pump(OutputStream::Stderr));

        let (outcome, tree_runs) = self.until_shell_ends(&request, &events, &registration, &count.exceeded).await;
        let registration = tree_runs.then_some(registration);
        let mut both = pin!(async { (join(stdout).await, join(stderr).await) });
        let rest = if let Ok(rest) = tokio::time::timeout(OUTPUT_GRACE, &mut both).await {
            rest
        } else {
            finish.cancel();
            both.await
        };
        let notice = [notice, self.file_notice(&outcome)].into_iter().flatten().reduce(|all, next| all + "; " + &next);
        let end = ExecEnd {
            outcome,
            dropped_bytes: count.dropped(),
            duration: self.started.elapsed(),
            others_run: tree_runs,
            notice,
        };
        // A receiver that is gone does not want to know.
        let _ = events.send(ExecEvent::Ended(end)).await;
        drop(events);
        if let Some(registration) = registration {
            let draining = tokio::spawn(async move { tokio::join!(discard(rest.0), discard(rest.1)) });
            self.until_background_ends(&request.cancel, &registration).await;
            draining.abort();
        }
        self.bury().await;
    }

    /// Returns the outcome and whether processes of the tree still run.
    async fn until_shell_ends(
        &mut self,
        request: &ExecRequest,
        events: &mpsc::Sender<ExecEvent>,
        registration: &Registration,
        too_much_output: &CancellationToken,
    ) -> (ExecOutcome, bool) {
        let deadline = self.started + request.timeout;
        let mut cause = None;
        let report = loop {
            tokio::select! {
                report = self.next_report() => match report {
                    Some(Report::Usage(usage)) => registration.report(usage),
                    Some(Report::LimitExceeded(limit)) => {
                        cause = Some(Cause::Limit(limit));
                        break self.report_of_tree_end().await;
                    }
                    report => break report,
                },
                () = tokio::time::sleep_until(deadline) => cause = Some(Cause::TimedOut),
                () = request.cancel.cancelled() => cause = Some(Cause::Stopped),
                () = registration.stop().cancelled() => cause = Some(Cause::Stopped),
                () = events.closed() => cause = Some(Cause::Stopped),
                limit = registration.exceeded() => cause = Some(Cause::Limit(limit)),
                () = too_much_output.cancelled() => {
                    cause = Some(Cause::Limit(format!("more than {} MiB of output", self.limits.output_bytes >> 20)));
                }
            }
            match &cause {
                Some(Cause::Limit(_)) => break self.end_tree(KILL_TREE).await,
                Some(_) => break self.end_tree(END_TREE).await,
                None => {}
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

    /// A file over its limit gets a process a signal, which a shell hands on as an exit code.
    fn file_notice(&self, outcome: &ExecOutcome) -> Option<String> {
        let is_it = [ExecOutcome::Signaled(libc::SIGXFSZ), ExecOutcome::Exited(128 + libc::SIGXFSZ)].contains(outcome);
        let mebibytes = self.limits.file_size_bytes >> 20;
        is_it.then(|| format!("a process was ended because a file was to become larger than {mebibytes} MiB"))
    }

    async fn until_background_ends(&mut self, cancel: &CancellationToken, registration: &Registration) {
        let order = loop {
            tokio::select! {
                report = self.next_report() => match report {
                    Some(Report::Usage(usage)) => registration.report(usage),
                    Some(Report::LimitExceeded(limit)) => tracing::warn!(limit, "background processes ended by a limit"),
                    Some(Report::TreeStuck(count)) => tracing::error!(count, "background processes could not be ended"),
                    Some(Report::TreeEnded) | None => return,
                    Some(_) => {}
                },
                () = cancel.cancelled() => break END_TREE,
                () = registration.stop().cancelled() => break END_TREE,
                limit = registration.exceeded() => {
                    tracing::warn!(limit, "background processes ended by a limit");
                    break KILL_TREE;
                }
            }
        };
        self.end_tree(order).await;
    }

    /// Orders the end and waits for it; the answer is the supervisor's last report.
    async fn end_tree(&mut self, order: u8) -> Option<Report> {
        // If the supervisor is gone, the reports say so by ending.
        let _ = self.orders.write_all(&[order]).await;
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
    /// left behind. Inside a standing sandbox its holder does both.
    async fn bury(&mut self) {
        let Some(supervisor) = &mut self.child else { return };
        if tokio::time::timeout(END_TIMEOUT, supervisor.child.wait()).await.is_err() {
            tracing::error!("the supervisor of a command had to be killed");
            // Fails only if it ended in this moment.
            let _ = supervisor.child.kill().await;
            self.is_lost = true;
        }
        if self.is_lost {
            // Fails only if the runtime ends.
            let _ = tokio::task::spawn_blocking(strays::end_strays).await;
        }
    }
}

type PumpParts = (OutputStream, u64, mpsc::Sender<ExecEvent>, Arc<OutputCount>, CancellationToken);

fn spawn_pump<R>(pipe: Option<R>, parts: PumpParts) -> JoinHandle<Option<R>>
where
    R: tokio::io::AsyncRead + Unpin + Send + 'static,
{
    let (stream, max_bytes, events, count, finish) = parts;
    tokio::spawn(async move {
        let pipe = pipe?;
        OutputPump { pipe, stream, events, max_bytes, count, finish }.run().await
    })
}

async fn join<R>(pump: JoinHandle<Option<R>>) -> Option<R> {
    pump.await.ok().flatten()
}

/// A spawn error in words without the operating system's text or host paths.
pub(super) fn describe(error: &std::io::Error) -> String {
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
