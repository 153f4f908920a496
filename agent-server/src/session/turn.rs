//! A running turn: drives the harness, numbers its chunks, and ends it whatever happens.
//!
//! Owns the order at the end: parts closed, transcript durable, session free, last chunk. Must not know HTTP.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Sessions;
use super::entry::{Kind, TurnData, TurnStatus};
use super::error::SessionError;
use super::in_use::{ActiveTurn, Disk, Session};
use super::recording::{Record, Recorder};
use super::submit::Stored;
use super::turn_log::TurnLog;
use super::{queue, retention, turn_end};
use crate::harness::chunk::Chunk;
use crate::harness::metrics::{Outcome, TokenKind};
use crate::harness::open_parts::OpenParts;
use crate::harness::{AbortReason, EVENT_BUFFER, TurnEnd, TurnEvent, TurnRequest};

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

/// The turn that begins when one ends.
struct Next {
    stored: Stored,
    guard: Box<dyn Any + Send>,
}

struct Running {
    start: TurnStart,
    began: Instant,
    has_spoken: bool,
    open: OpenParts,
    recorder: Recorder,
    /// The first failure to store something; it ends the turn.
    fault: Option<SessionError>,
}

/// Runs a turn to its last chunk; `lines` are those of the messages of the request.
pub(super) async fn run(start: TurnStart, request: TurnRequest, lines: Vec<String>) {
    let began = Instant::now();
    let harness = Arc::clone(&start.sessions.harness);
    let recorder = Recorder::new(
        Arc::clone(&start.session),
        start.sessions.attachments.clone(),
        Arc::clone(&harness),
        request.model.clone(),
        lines,
    );
    let mut running = Running { start, began, has_spoken: false, open: OpenParts::default(), recorder, fault: None };
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
            written = running.recorder.written(), if running.recorder.is_writing() => running.note_fault(written),
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

impl Running {
    fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Chunk(chunk) => {
                self.time_first(&chunk);
                self.publish(&chunk);
            }
            TurnEvent::Assistant(record) => self.recorder.push(Record::Assistant(record)),
            TurnEvent::ToolResult(record) => self.recorder.push(Record::ToolResult(record)),
            TurnEvent::Compaction(record) => self.recorder.push(Record::Compaction(record)),
        }
    }

    fn time_first(&mut self, chunk: &Chunk) {
        let says =
            matches!(chunk, Chunk::TextStart { .. } | Chunk::ReasoningStart { .. } | Chunk::ToolInputStart { .. });
        if says && !std::mem::replace(&mut self.has_spoken, true) {
            let seconds = self.began.elapsed().as_secs_f64();
            self.start.sessions.harness.metrics().first_chunk_seconds.observe(seconds);
        }
    }

    fn count(&self, status: TurnStatus) {
        let metrics = self.start.sessions.harness.metrics();
        let outcome = match status {
            TurnStatus::Finished => "finished",
            TurnStatus::Aborted => "aborted",
            TurnStatus::Error | TurnStatus::Running => "error",
        };
        metrics.turns.get_or_create(&Outcome { outcome }).inc();
        let usage = self.usage();
        for (kind, key) in [
            ("input", "inputTokens"),
            ("output", "outputTokens"),
            ("cache_read", "cacheReadTokens"),
            ("cache_write", "cacheWriteTokens"),
        ] {
            metrics.tokens.get_or_create(&TokenKind { kind }).inc_by(usage[key].as_u64().unwrap_or(0));
        }
    }

    fn publish(&mut self, chunk: &Chunk) {
        self.open.apply(chunk);
        self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner).apply(chunk);
        self.start.turn.log.push(chunk);
    }

    /// What cannot be stored must not go on; the harness ends at the next point where it looks.
    fn note_fault(&mut self, written: Result<(), SessionError>) {
        if let Err(error) = written {
            tracing::error!(session = self.start.session.id, %error, "a turn's messages could not be stored");
            self.start.turn.stop.stop(AbortReason::Shutdown);
            self.fault.get_or_insert(error);
        }
    }

    async fn settle_writes(&mut self) {
        while self.fault.is_none() && self.recorder.is_writing() {
            let written = self.recorder.written().await;
            self.note_fault(written);
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
        self.count(status);
        let terminal = last.pop();
        for chunk in &last {
            self.publish(chunk);
        }
        if let Some(terminal) = &terminal {
            self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner).apply(terminal);
        }
        let (terminal, next) = self.store_end(status, terminal).await;
        let TurnStart { sessions, session, turn, guard, .. } = self.start;
        if let Some(terminal) = &terminal {
            turn.log.seal(terminal);
        }
        write_log(&turn.log).await;
        // Who sees the last chunk finds the turn on disk and the session free, or the next turn in its place.
        match &next {
            Some(next) => session.hand_over(&turn, next.stored.turn()),
            None => session.release(&turn),
        }
        turn.log.end();
        let folder = session.places.turns.join(&session.id);
        tokio::task::spawn_blocking(move || retention::sweep_session(&folder));
        drop(guard);
        if let Some(Next { stored, guard }) = next {
            let system = sessions.harness.system_prompt(None, stored.touched()).await;
            sessions.launch(stored, system, guard);
        }
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

    /// Writes the line that says how the turn ended, with the beginning of the next one when a follow-up waits. Gives the
    /// last chunk, which then announces it.
    async fn store_end(&mut self, status: TurnStatus, terminal: Option<Chunk>) -> (Option<Chunk>, Option<Next>) {
        let data = {
            let fold = self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner);
            turn_end::end_data(&self.start.data, status, &fold, self.recorder.take_entries())
        };
        let (sessions, turn) = (Arc::clone(&self.start.sessions), Arc::clone(&self.start.turn));
        let shared = Arc::clone(&self.start.session);
        let last = terminal.clone();
        let stored = self.start.session.with_disk(move |disk, session| {
            // Whoever queues something from now on begins it himself.
            turn.decided.store(true, Ordering::SeqCst);
            // A stop that came too late for this turn is meant for what would come next all the same.
            if status == TurnStatus::Finished
                && turn.stop.reason().is_none()
                && let Some((chunk, next)) = sessions.go_on(disk, &shared, &data, last.as_ref())
            {
                return Ok((Some(chunk), Some(next)));
            }
            disk.write(&session.id, &session.places, |writer| {
                writer.add(Kind::Turn(Box::new(data)));
                Ok(())
            })?;
            sessions.index_loaded(disk, &session.id);
            Ok((last, None))
        });
        match stored.await {
            Ok((chunk, next)) => {
                if let Some(chunk) = &chunk {
                    self.start.turn.fold.lock().unwrap_or_else(PoisonError::into_inner).apply(chunk);
                }
                (chunk, next)
            }
            Err(error) => {
                tracing::error!(session = self.start.session.id, %error, "the end of a turn could not be stored");
                (terminal, None)
            }
        }
    }
}

impl Sessions {
    /// Ends a turn and begins the follow-up that waits, in one write. `None` when none waits, or it cannot begin now.
    fn go_on(
        self: &Arc<Self>,
        disk: &mut Disk,
        session: &Arc<Session>,
        end: &TurnData,
        terminal: Option<&Chunk>,
    ) -> Option<(Chunk, Next)> {
        let Some(Chunk::Finish { finish_reason, message_metadata }) = terminal else { return None };
        let queued = disk.transcript()?.follow_ups().waiting().first()?.clone();
        let guard = (self.begin_turn)().ok()?;
        let next = ActiveTurn::new(session);
        let announced = queue::announcement(&next.turn_id, &queued.user_message_id);
        let (mut end, mut message_metadata) = (end.clone(), message_metadata.clone());
        end.metadata.insert("next".into(), announced.clone());
        message_metadata.insert("next".into(), announced);
        let stored = queue::submission(&session.id, queued)
            .and_then(|submission| self.store_behind(disk, session, end, &next, submission));
        match stored {
            Ok(stored) => {
                let chunk = Chunk::Finish { finish_reason: *finish_reason, message_metadata };
                Some((chunk, Next { stored, guard }))
            }
            Err(error) => {
                tracing::error!(session = session.id, %error, "a follow-up could not begin");
                None
            }
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
