//! The calls of one step: readers together, a writer alone; every call leaves exactly one result.
//!
//! Owns order, stop, progress and the bounds of results. Must not know what tools do.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::chunk::{Chunk, NoticeLevel, OutputContent, StatusData, ToolOutput, True, object};
use super::emit::Emitter;
use super::metrics::{ToolName, ToolOutcome, TurnMetrics};
use super::pace::PRELIMINARY_INTERVAL;
use super::sanitize::drop_prototype_keys;
use super::step::Call;
use super::{AbortReason, StopSignal, StoreImage, ToolRecord, TurnEvent};
use crate::catalog::{Access, Catalog, Tool, ToolContent, ToolContext, ToolFailure, ToolProgress, ToolResult};
use crate::sandbox::Sandbox;
use crate::workspace::Workspace;

/// A stopped tool gets this long to end by itself: TERM, KILL after 2 s, and a second to notice.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// How often a running call says how long it has been running.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// Tools cap their own results at 50 KiB; this catches one that does not.
const MAX_RESULT_BYTES: usize = 256 * 1024;
/// Preliminary output shows the end of the view.
const MAX_PRELIMINARY_BYTES: usize = 8 * 1024;

/// What all calls of a turn share.
#[derive(Clone)]
pub struct ToolRunner {
    /// The tools.
    pub catalog: Arc<Catalog>,
    /// Files.
    pub workspace: Arc<dyn Workspace>,
    /// Commands.
    pub sandbox: Arc<dyn Sandbox>,
    /// Events out.
    pub emitter: Emitter,
    /// Stop.
    pub stop: StopSignal,
    /// Cancelled on stop and when the turn ends: what a call left running in the background ends then.
    pub turn_over: CancellationToken,
    /// Keeps images.
    pub store_image: StoreImage,
    /// What is counted.
    pub metrics: Arc<TurnMetrics>,
}

/// Held while a call runs.
enum Turnstile {
    Read(#[allow(dead_code, reason = "held for its drop")] OwnedRwLockReadGuard<()>),
    Write(#[allow(dead_code, reason = "held for its drop")] OwnedRwLockWriteGuard<()>),
}

impl ToolRunner {
    /// Runs the calls of one step; results come back in the order of the calls and are emitted as they come.
    pub async fn run(&self, calls: Vec<Call>) -> Vec<ToolRecord> {
        // The lock is fair and `join_all` polls in order, so calls get their turn in the model's order.
        let lock = Arc::new(RwLock::new(()));
        let records = join_all(calls.into_iter().map(|call| self.run_call(call, Arc::clone(&lock)))).await;
        for record in &records {
            self.emitter.event(TurnEvent::ToolResult(record.clone())).await;
        }
        records
    }

    async fn run_call(&self, call: Call, lock: Arc<RwLock<()>>) -> ToolRecord {
        let begun = Instant::now();
        let result = match (call.arguments, self.catalog.get(&call.name)) {
            (Err(fault), _) => Err(ToolFailure(fault)),
            (Ok(_), None) => Err(ToolFailure(format!("There is no tool named {}.", call.name))),
            (Ok(arguments), Some(tool)) => {
                let turnstile = async {
                    match tool.access() {
                        Access::Read => Turnstile::Read(lock.read_owned().await),
                        Access::Write => Turnstile::Write(lock.write_owned().await),
                    }
                };
                tokio::select! {
                    biased;
                    () = self.stop.token().cancelled() => Err(self.stopped()),
                    turnstile = turnstile => {
                        let result = self.follow(&call.id, tool, arguments).await;
                        drop(turnstile);
                        result
                    }
                }
            }
        };
        self.count(&call.name, &result, begun.elapsed());
        self.finish(call.id, call.name, result).await
    }

    fn count(&self, name: &str, outcome: &Result<ToolResult, ToolFailure>, elapsed: Duration) {
        let tool = if self.catalog.get(name).is_some() { name.to_owned() } else { "unknown".to_owned() };
        let outcome = match outcome {
            Ok(result) if result.is_error => "error",
            Ok(_) => "ok",
            Err(_) => "not_run",
        };
        self.metrics.tool_calls.get_or_create(&ToolOutcome { tool: tool.clone(), outcome }).inc();
        self.metrics.tool_seconds.get_or_create(&ToolName { tool }).observe(elapsed.as_secs_f64());
    }

    /// Runs one tool in a task of its own, so that a panic stays there, and passes its progress on.
    async fn follow(
        &self,
        id: &str,
        tool: &Arc<dyn Tool>,
        arguments: serde_json::Value,
    ) -> Result<ToolResult, ToolFailure> {
        let (sender, mut progress) = mpsc::unbounded_channel();
        let context = ToolContext {
            tool_call_id: id.to_owned(),
            workspace: Arc::clone(&self.workspace),
            sandbox: Arc::clone(&self.sandbox),
            progress: sender,
            cancel: self.turn_over.child_token(),
        };
        let tool = Arc::clone(tool);
        let mut task = AbortOnDrop(tokio::spawn(async move { tool.run(arguments, context).await }));
        let started = Instant::now();
        let mut status = tokio::time::interval_at(started + STATUS_INTERVAL, STATUS_INTERVAL);
        status.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut view = View::new(id);
        let mut deadline: Option<Instant> = None;
        let result = loop {
            let due = view.due();
            tokio::select! {
                biased;
                result = &mut task.0 => break Some(result),
                Some(report) = progress.recv() => view.take(report, &self.emitter).await,
                () = self.stop.token().cancelled(), if deadline.is_none() => deadline = Some(Instant::now() + STOP_GRACE),
                () = tokio::time::sleep_until(deadline.unwrap_or(started)), if deadline.is_some() => break None,
                () = tokio::time::sleep_until(due.unwrap_or(started)), if due.is_some() => view.show(&self.emitter).await,
                _ = status.tick() => {
                    let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                    let data = StatusData { tool_call_id: id.to_owned(), elapsed_ms };
                    self.emitter.chunk(Chunk::DataStatus { data, transient: True }).await;
                }
            }
        };
        // What was done just before the end counts; a late preliminary does not.
        while let Ok(report) = progress.try_recv() {
            if !matches!(report, ToolProgress::Preliminary(_)) {
                view.take(report, &self.emitter).await;
            }
        }
        match result {
            Some(Ok(Ok(result))) if result.is_error && self.stop.reason().is_some() => Err(self.stopped()),
            Some(Ok(Err(_))) if self.stop.reason().is_some() => Err(self.stopped()),
            None => Err(self.stopped()),
            Some(Ok(result)) => result,
            Some(Err(error)) => {
                tracing::error!(%error, "a tool broke off");
                Err(ToolFailure("The tool broke off because of a defect; the server's log has the detail.".into()))
            }
        }
    }

    fn stopped(&self) -> ToolFailure {
        ToolFailure(self.stop.reason().unwrap_or(AbortReason::User).text().into())
    }

    /// Emits the final output and makes the record.
    async fn finish(&self, id: String, name: String, result: Result<ToolResult, ToolFailure>) -> ToolRecord {
        match result {
            Err(ToolFailure(text)) => {
                self.emitter
                    .chunk(Chunk::ToolOutputError {
                        tool_call_id: id.clone(),
                        error_text: text.clone(),
                        provider_executed: True,
                    })
                    .await;
                ToolRecord {
                    tool_call_id: id,
                    tool_name: name,
                    content: vec![ToolContent::Text(text)],
                    details: None,
                    is_error: true,
                }
            }
            Ok(mut result) => {
                bound(&mut result.content);
                if result.details.as_mut().map_or(0, drop_prototype_keys) > 0 {
                    let text = format!("Some keys of the details of {name} are not allowed and were left out.");
                    self.emitter.chunk(Chunk::notice(NoticeLevel::Warn, text)).await;
                }
                let output = ToolOutput {
                    content: self.shown(&result.content).await,
                    details: result.details.clone(),
                    is_error: result.is_error.then_some(True),
                };
                self.emitter
                    .chunk(Chunk::ToolOutputAvailable {
                        tool_call_id: id.clone(),
                        output,
                        preliminary: None,
                        provider_executed: True,
                    })
                    .await;
                ToolRecord {
                    tool_call_id: id,
                    tool_name: name,
                    content: result.content,
                    details: result.details,
                    is_error: result.is_error,
                }
            }
        }
    }

    async fn shown(&self, content: &[ToolContent]) -> Vec<OutputContent> {
        let mut shown = Vec::with_capacity(content.len());
        for piece in content {
            shown.push(match piece {
                ToolContent::Text(text) => OutputContent::Text { text: text.clone() },
                ToolContent::Image { media_type, data } => {
                    let (store, kind, bytes) = (Arc::clone(&self.store_image), media_type.clone(), data.clone());
                    match tokio::task::spawn_blocking(move || store(&kind, &bytes)).await {
                        Ok(Ok(url)) => OutputContent::Image { media_type: media_type.clone(), url },
                        Ok(Err(reason)) => OutputContent::Text { text: format!("[image could not be kept: {reason}]") },
                        Err(_) => OutputContent::Text { text: "[image could not be kept]".into() },
                    }
                }
            });
        }
        shown
    }
}

/// Cuts texts that are too long, with a mark.
fn bound(content: &mut [ToolContent]) {
    for piece in content {
        if let ToolContent::Text(text) = piece
            && text.len() > MAX_RESULT_BYTES
        {
            let whole = text.len();
            text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES));
            *text = format!("{text}\n[cut: {MAX_RESULT_BYTES} of {whole} bytes shown]");
        }
    }
}

/// A task that does not outlive its owner.
struct AbortOnDrop(JoinHandle<Result<ToolResult, ToolFailure>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What clients see of a running call.
struct View<'a> {
    id: &'a str,
    pending: Option<String>,
    shown: Option<String>,
    last: Option<Instant>,
    changes: usize,
}

impl<'a> View<'a> {
    fn new(id: &'a str) -> Self {
        Self { id, pending: None, shown: None, last: None, changes: 0 }
    }

    fn due(&self) -> Option<Instant> {
        self.pending.as_ref().map(|_| self.last.map_or_else(Instant::now, |last| last + PRELIMINARY_INTERVAL))
    }

    async fn take(&mut self, report: ToolProgress, emitter: &Emitter) {
        match report {
            ToolProgress::Preliminary(text) => {
                let start = text.len().saturating_sub(MAX_PRELIMINARY_BYTES);
                let tail = text[text.ceil_char_boundary(start)..].to_owned();
                self.pending = (self.shown.as_ref() != Some(&tail)).then_some(tail);
            }
            ToolProgress::FileChanged(change) => {
                let (id, data) = self.part(&change);
                emitter.chunk(Chunk::DataFileChanged { id, data }).await;
            }
            ToolProgress::UiCommand(command) => {
                let (id, data) = self.part(&command);
                emitter.chunk(Chunk::DataUiCommand { id, data }).await;
            }
        }
    }

    /// Id and content of a persistent part that belongs to the call.
    fn part(&mut self, content: &impl serde::Serialize) -> (String, serde_json::Map<String, serde_json::Value>) {
        let mut data = object(content);
        for value in data.values_mut() {
            drop_prototype_keys(value);
        }
        data.insert("toolCallId".into(), self.id.into());
        let id = format!("{}-{}", self.id, self.changes);
        self.changes += 1;
        (id, data)
    }

    async fn show(&mut self, emitter: &Emitter) {
        let Some(text) = self.pending.take() else { return };
        self.last = Some(Instant::now());
        self.shown = Some(text.clone());
        let output = ToolOutput { content: vec![OutputContent::Text { text }], details: None, is_error: None };
        emitter
            .chunk(Chunk::ToolOutputAvailable {
                tool_call_id: self.id.to_owned(),
                output,
                preliminary: Some(True),
                provider_executed: True,
            })
            .await;
    }
}
