//! The messages of a running turn on their way into the session file: one write at a time, in order.
//!
//! Owns which line each message of the conversation has. Must not know chunks or how a turn ends.

use std::pin::Pin;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::attachments::Attachments;
use super::entry::{Assistant, Block, Kind, ToolResult};
use super::error::SessionError;
use super::in_use::Session;
use crate::catalog::ToolContent;
use crate::harness::compaction::CompactionRecord;
use crate::harness::{AssistantRecord, Harness, ToolRecord};

type Writing = Pin<Box<dyn Future<Output = Result<Vec<String>, SessionError>> + Send>>;

/// Something to write.
pub(super) enum Record {
    /// A message of the model.
    Assistant(AssistantRecord),
    /// A result of a tool.
    ToolResult(ToolRecord),
    /// A summary in the place of older messages.
    Compaction(CompactionRecord),
}

/// What is written together.
enum Batch {
    Messages,
    /// With the index of the first message that stays.
    Compaction(usize),
}

/// Writes the messages of one turn.
pub(super) struct Recorder {
    session: Arc<Session>,
    store: Attachments,
    harness: Arc<dyn Harness>,
    model: String,
    /// What waits until the last write is done.
    waiting: Vec<Record>,
    writing: Option<(Batch, Writing)>,
    /// The lines of the turn's messages.
    entries: Vec<String>,
    /// The line of each message of the conversation.
    lines: Vec<String>,
}

impl Recorder {
    /// For a conversation whose messages have these lines.
    pub fn new(
        session: Arc<Session>,
        store: Attachments,
        harness: Arc<dyn Harness>,
        model: String,
        lines: Vec<String>,
    ) -> Self {
        Self { session, store, harness, model, waiting: Vec::new(), writing: None, entries: Vec::new(), lines }
    }

    /// Takes something to write.
    pub fn push(&mut self, record: Record) {
        self.waiting.push(record);
        self.start();
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Waits for the write that is under way and begins the next one; pending when there is none.
    pub async fn written(&mut self) -> Result<(), SessionError> {
        let Some((_, writing)) = &mut self.writing else { return std::future::pending().await };
        let written = writing.as_mut().await;
        let Some((batch, _)) = self.writing.take() else { return Ok(()) };
        let ids = written?;
        match batch {
            Batch::Messages => {
                self.entries.extend(ids.iter().cloned());
                self.lines.extend(ids);
            }
            Batch::Compaction(first_kept) => {
                self.lines.splice(..first_kept.min(self.lines.len()), ids);
            }
        }
        self.start();
        Ok(())
    }

    /// The lines of the turn's messages.
    pub fn take_entries(&mut self) -> Vec<String> {
        std::mem::take(&mut self.entries)
    }

    /// Begins to write what waits, unless a write is under way; what comes meanwhile goes with the next one. A summary
    /// goes alone: the lines of what it keeps are known then.
    fn start(&mut self) {
        if self.writing.is_some() || self.waiting.is_empty() {
            return;
        }
        if matches!(self.waiting[0], Record::Compaction(_))
            && let Record::Compaction(record) = self.waiting.remove(0)
        {
            let first_kept = self.lines.get(record.first_kept).cloned().unwrap_or_default();
            let CompactionRecord { summary, tokens_before, first_kept: at } = record;
            let kinds = vec![Kind::Compaction { summary, first_kept, tokens_before }];
            self.writing = Some((Batch::Compaction(at), write(Arc::clone(&self.session), move || Ok(kinds))));
            return;
        }
        let until = self.waiting.iter().position(|record| matches!(record, Record::Compaction(_)));
        let rest = self.waiting.split_off(until.unwrap_or(self.waiting.len()));
        let records = std::mem::replace(&mut self.waiting, rest);
        let (session, store) = (Arc::clone(&self.session), self.store.clone());
        let (api, provider) = (self.harness.api().to_owned(), self.harness.provider().to_owned());
        let (model, id) = (self.model.clone(), session.id.clone());
        let kinds = move || {
            let kind = |record| match record {
                Record::Assistant(record) => Ok(Kind::Assistant(Assistant::new(record, &api, &provider, &model))),
                Record::ToolResult(record) => tool_result(record, &store, &id),
                Record::Compaction(_) => Err(SessionError::Storage("a summary among messages".into())),
            };
            records.into_iter().map(kind).collect()
        };
        self.writing = Some((Batch::Messages, write(session, kinds)));
    }
}

/// Appends lines; gives their ids.
fn write(session: Arc<Session>, kinds: impl FnOnce() -> Result<Vec<Kind>, SessionError> + Send + 'static) -> Writing {
    Box::pin(async move {
        session
            .with_disk(move |disk, session| {
                disk.write(&session.id, &session.places, |writer| {
                    Ok(kinds()?.into_iter().map(|kind| writer.add(kind)).collect())
                })
            })
            .await
    })
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
