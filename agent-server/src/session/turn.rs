//! A running turn: drives the harness, numbers its chunks, writes its messages, and ends it whatever happens.
//!
//! Owns the order at the end: parts closed, transcript durable, session free, last chunk. Must not know HTTP.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Sessions;
use super::attachments::Attachments;
use super::entry::{Assistant, Block, Kind, ToolResult, TurnData, TurnStatus};
use super::error::SessionError;
use super::in_use::{ActiveTurn, Session};
use super::turn_log::TurnLog;
use super::{retention, turn_end};
use crate::catalog::ToolContent;
use crate::harness::chunk::Chunk;
use crate::harness::open_parts::OpenParts;
use crate::harness::{AbortReason, EVENT_BUFFER, ToolRecord, TurnEnd, TurnEvent, TurnRequest};

/// The chunk log goes to disk this often; a crash loses no more of it.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// What a running turn holds.
pub(super) struct TurnStart {
    /// All sessions.
    pub sessions: Arc<Sessions>,
    /// Its session.
    pub session: Arc<Session>,
    /// The turn.
    pub turn: Arc<ActiveTurn>,
    /// Its first line.
    pub data: TurnData,
    /// Held until the last chunk.
    pub guard: Box<dyn Any + Send>,
}

type Writing = Pin<Box<dyn Future<Output = Result<Vec<String>, SessionError>> + Send>>;

struct Running {
    start: TurnStart,
    model: String,
    began: Instant,
    open: OpenParts,
    /// Messages that wait until the last write is done.
    waiting: Vec<TurnEvent>,
    writing: Option<Writing>,
    entries: Vec<String>,
    /// The first failure to store something; it ends the turn.
    fault: Option<SessionError>,
}

/// Runs a turn to its last chunk.
pub(super) async fn run(start: TurnStart, request: TurnRequest) {
    let began = Instant::now();
    let harness = Arc::clone(&start.sessions.harness);
    let model = request.model.clone();
    let mut running = Running {
        start,
        model,
        began,
        open: OpenParts::default(),
        waiting: Vec::new(),
        writing: None,
        entries: Vec::new(),
        fault: None,
    };
    let (sender, mut events) = mpsc::channel(EVENT_BUFFER);
    let mut harness_run = Box::pin(AssertUnwindSafe(harness.run(request, sender)).catch_unwind());
    let mut end = None;
    let mut flush = tokio::time::interval_at(began + FLUSH_INTERVAL, FLUSH_INTERVAL);
    flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => running.take(event),
                // The harness has dropped its end; nothing more comes.
                None if end.is_some() => break,
                None => end = Some(harness_run.as_mut().await),
            },
            result = &mut harness_run, if end.is_none() => end = Some(result),
            written = poll_writing(&mut running.writing), if running.writing.is_some() => running.written(written),
            _ = flush.tick() => write_log(&running.start.turn.log).await,
        }
    }
    drop(harness_run);
    let end = end.expect("the loop ends only with an end").unwrap_or_else(|_| {
        tracing::error!("a turn broke off because of a defect");
        TurnEnd::Failed {
            code: "internal".into(),
            message: "The turn broke off because of a defect; the server's log has the detail.".into(),
            retry_after: None,
        }
    });
    running.finish(end).await;
}

async fn poll_writing(writing: &mut Option<Writing>) -> Result<Vec<String>, SessionError> {
    match writing {
        Some(future) => {
            let result = future.as_mut().await;
            *writing = None;
            result
        }
        None => std::future::pending().await,
    }
}

impl Running {
    fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Chunk(chunk) => self.publish(&chunk),
            record => {
                self.waiting.push(record);
                self.start_writing();
            }
        }
    }

    fn publish(&mut self, chunk: &Chunk) {
        self.open.apply(chunk);
        self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner).apply(chunk);
        self.start.turn.log.push(chunk);
    }

    /// Begins to write what waits, unless a write is under way; what comes meanwhile goes with the next one.
    fn start_writing(&mut self) {
        if self.writing.is_some() || self.waiting.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.waiting);
        let session = Arc::clone(&self.start.session);
        let store = self.start.sessions.attachments.clone();
        let harness = &self.start.sessions.harness;
        let (api, provider, model) = (harness.api().to_owned(), harness.provider().to_owned(), self.model.clone());
        self.writing = Some(Box::pin(async move {
            session
                .with_disk(move |disk, session| {
                    disk.write(&session.id, &session.places, |writer| {
                        let mut ids = Vec::new();
                        for record in records {
                            let kind = match record {
                                TurnEvent::Assistant(record) => {
                                    Kind::Assistant(Assistant::new(record, &api, &provider, &model))
                                }
                                TurnEvent::ToolResult(record) => tool_result(record, &store, &session.id)?,
                                TurnEvent::Chunk(_) => continue,
                            };
                            ids.push(writer.add(kind));
                        }
                        Ok(ids)
                    })
                })
                .await
        }));
    }

    fn written(&mut self, written: Result<Vec<String>, SessionError>) {
        match written {
            Ok(ids) => {
                self.entries.extend(ids);
                self.start_writing();
            }
            Err(error) => {
                tracing::error!(session = self.start.session.id, %error, "a turn's messages could not be stored");
                // What cannot be stored must not go on; the harness ends at the next point where it looks.
                self.start.turn.stop.stop(AbortReason::Shutdown);
                self.fault.get_or_insert(error);
            }
        }
    }

    async fn settle_writes(&mut self) {
        while self.fault.is_none() && self.writing.is_some() {
            let written = poll_writing(&mut self.writing).await;
            self.written(written);
        }
    }

    async fn finish(mut self, end: TurnEnd) {
        self.settle_writes().await;
        let end = match self.fault.take() {
            None => end,
            Some(error) => TurnEnd::Failed {
                code: match error {
                    SessionError::StorageFull => "storage_full",
                    SessionError::NotWritable => "volume_not_writable",
                    _ => "internal",
                }
                .into(),
                message: error.to_string(),
                retry_after: None,
            },
        };
        let reason = self.start.turn.stop.reason().unwrap_or(AbortReason::User);
        let closing = match &end {
            TurnEnd::Failed { .. } => "Not run because the turn failed.",
            TurnEnd::Aborted | TurnEnd::Finished(_) => reason.text(),
        };
        for chunk in self.open.close(closing) {
            self.publish(&chunk);
        }
        let (status, mut last) = self.last_chunks(end, reason);
        let terminal = last.pop();
        for chunk in &last {
            self.publish(chunk);
        }
        if let Some(terminal) = &terminal {
            self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner).apply(terminal);
        }
        self.store_end(status).await;
        let TurnStart { session, turn, guard, .. } = self.start;
        if let Some(terminal) = &terminal {
            turn.log.seal(terminal);
        }
        write_log(&turn.log).await;
        // Who sees the last chunk finds the session free and the turn on disk.
        session.release(&turn);
        turn.log.end();
        let folder = session.places.turns.join(&session.id);
        tokio::task::spawn_blocking(move || retention::sweep_session(&folder));
        drop(guard);
    }

    fn last_chunks(&self, end: TurnEnd, reason: AbortReason) -> (TurnStatus, Vec<Chunk>) {
        match end {
            TurnEnd::Finished(finish_reason) => {
                let duration = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                (TurnStatus::Finished, turn_end::finished(finish_reason, self.usage(), duration))
            }
            TurnEnd::Aborted => (TurnStatus::Aborted, turn_end::aborted(reason, Some(&self.usage()))),
            TurnEnd::Failed { code, message, retry_after } => {
                let seconds = retry_after.map(|pause| pause.as_secs().max(1));
                (TurnStatus::Error, turn_end::failed(&code, message, seconds))
            }
        }
    }

    /// The sum over the steps shown so far.
    fn usage(&self) -> Value {
        let fold = self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner);
        let steps: Vec<&Value> =
            fold.parts().iter().filter(|part| part["type"] == "data-usage").map(|part| &part["data"]).collect();
        let sum = |key: &str| steps.iter().map(|step| step[key].as_u64().unwrap_or(0)).sum::<u64>();
        let mut usage = json!({
            "inputTokens": sum("inputTokens"), "outputTokens": sum("outputTokens"),
            "cacheReadTokens": sum("cacheReadTokens"), "cacheWriteTokens": sum("cacheWriteTokens"),
        });
        let costs: Option<Vec<f64>> = steps.iter().map(|step| step["costUsd"].as_f64()).collect();
        if let Some(costs) = costs.filter(|costs| !costs.is_empty()) {
            usage["costUsd"] = json!((costs.iter().sum::<f64>() * 1e8).round() / 1e8);
        }
        usage
    }

    /// The line that says how the turn ended, and the index.
    async fn store_end(&mut self, status: TurnStatus) {
        let data = {
            let fold = self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner);
            turn_end::end_data(&self.start.data, status, &fold, std::mem::take(&mut self.entries))
        };
        let stored = self
            .start
            .session
            .with_disk(move |disk, session| {
                disk.write(&session.id, &session.places, |writer| {
                    writer.add(Kind::Turn(Box::new(data)));
                    Ok(())
                })
            })
            .await;
        let indexed = match stored {
            Ok(()) => self.start.sessions.refresh_index(&self.start.session.id).await,
            Err(error) => Err(error),
        };
        if let Err(error) = indexed {
            tracing::error!(session = self.start.session.id, %error, "the end of a turn could not be stored");
        }
    }
}

/// Brings the chunk log to disk. It serves resumption only, so a failure is logged and does not end the turn.
async fn write_log(log: &Arc<TurnLog>) {
    if !log.needs_flush() {
        return;
    }
    let log = Arc::clone(log);
    match tokio::task::spawn_blocking(move || log.flush()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(kind = ?error.kind(), "the chunk log could not be written"),
        Err(error) => tracing::warn!(%error, "the chunk log could not be written"),
    }
}

/// A tool result as a line; images go to the store.
fn tool_result(record: ToolRecord, store: &Attachments, session_id: &str) -> Result<Kind, SessionError> {
    let mut content = Vec::with_capacity(record.content.len());
    for piece in record.content {
        content.push(match piece {
            ToolContent::Text(text) => Block::Text(text),
            ToolContent::Image { data, .. } => match decode_image(&data) {
                Ok(bytes) => Block::Kept(store.keep(session_id, "image", &bytes)?),
                Err(reason) => Block::Text(format!("[image could not be kept: {reason}]")),
            },
        });
    }
    Ok(Kind::ToolResult(ToolResult {
        tool_call_id: record.tool_call_id,
        tool_name: record.tool_name,
        content,
        details: record.details,
        is_error: record.is_error,
    }))
}

/// The bytes of an image in a tool result.
pub(super) fn decode_image(data: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(data).map_err(|_| "its data is no base64".to_owned())
}
