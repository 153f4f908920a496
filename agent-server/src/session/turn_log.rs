//! The numbered chunk log of one turn: written once, read by any number of readers from any number on.
//!
//! Owns numbering, what replay leaves out, and the log on disk. Must not know what chunks mean to a session.
//! A chunk is serialised once; readers share its bytes.

mod reader;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use tokio::sync::watch;

use self::reader::{Framed, Reader};
use crate::harness::chunk::Chunk;
use crate::storage::{make_private_dir, private_file};

/// First bytes of a stream, so that its headers go out at once.
pub(super) const OPENING: Bytes = Bytes::from_static(b": stream-open\n\n");
/// Last bytes of a stream.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
/// Sent after [`HEARTBEAT`].
pub(super) const BEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");
/// Comment after this long without a chunk.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// A reader that has taken nothing for this long while chunks waited is cut off; it can resume.
const SLOW_READER: Duration = Duration::from_secs(30);
/// Numbers left free when a crashed turn is closed, so that a cursor beyond the last flushed chunk stays valid:
/// chunks are flushed at least every 250 ms and come at a few hundred a second.
pub const CRASH_GAP: u64 = 1_000;

/// One numbered frame.
#[derive(Debug, Clone)]
struct Frame {
    number: u64,
    bytes: Bytes,
    transient: bool,
    /// Call of a preliminary output; a newer output of the call takes its place.
    preliminary_of: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    /// A superseded preliminary output leaves a hole.
    frames: Vec<Option<Frame>>,
    next: u64,
    unflushed: Vec<u8>,
    sealed: Option<Frame>,
    ended: bool,
    broken: bool,
}

impl State {
    /// A log without a path lives in memory only.
    fn note_for_disk(&mut self, path: &Path, number: u64, json: &str) {
        if !path.as_os_str().is_empty() {
            self.unflushed.extend_from_slice(format!("{number}\t{json}\n").as_bytes());
        }
    }
}

/// Appends all of the bytes or none.
fn append_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    if let Some(folder) = path.parent() {
        make_private_dir(folder)?;
    }
    let mut file = private_file().create(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    let written = file.write_all(bytes);
    if written.is_err()
        && let Err(error) = file.set_len(before)
    {
        tracing::error!(kind = ?error.kind(), "a half-written piece of a turn's log could not be cut");
    }
    written
}

fn to_json(chunk: &Chunk) -> String {
    serde_json::to_string(chunk).expect("chunks hold no map with keys other than strings")
}

/// The log of one turn.
#[derive(Debug)]
pub struct TurnLog {
    turn_id: String,
    path: PathBuf,
    state: Mutex<State>,
    grown: watch::Sender<usize>,
}

/// The stream cannot be completed; the transfer must break so that no client takes it for a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was cut; resume it")]
pub struct Cut;

impl TurnLog {
    /// An empty log that is kept at `path`.
    pub fn new(turn_id: &str, path: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            turn_id: turn_id.to_owned(),
            path,
            state: Mutex::new(State { next: 1, ..State::default() }),
            grown: watch::Sender::new(0),
        })
    }

    /// Reads a log from disk. Blocking. `None` when there is none.
    pub fn load(turn_id: &str, path: PathBuf) -> std::io::Result<Option<(Arc<Self>, Vec<Chunk>)>> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let log = Self::new(turn_id, path);
        let mut chunks = Vec::new();
        let mut terminal = false;
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let Some((number, json)) = line.trim_end().split_once('\t') else { continue };
            let (Ok(number), Ok(chunk)) = (number.parse(), serde_json::from_str::<Chunk>(json)) else { continue };
            log.lock().next = number;
            log.add(&chunk, json, false);
            terminal = chunk.is_terminal();
            chunks.push(chunk);
        }
        log.lock().ended = terminal;
        Ok(Some((log, chunks)))
    }

    /// A log made from a whole message, numbered from 1, for turns whose chunks are no longer kept.
    pub fn from_chunks(turn_id: &str, chunks: &[Chunk]) -> Arc<Self> {
        let log = Self::new(turn_id, PathBuf::new());
        for chunk in chunks {
            log.push(chunk);
        }
        log.end();
        log
    }

    /// Turn.
    pub fn turn_id(&self) -> &str {
        &self.turn_id
    }

    /// Appends a chunk and wakes the readers.
    pub fn push(&self, chunk: &Chunk) {
        self.add(chunk, &to_json(chunk), true);
    }

    fn add(&self, chunk: &Chunk, json: &str, to_disk: bool) {
        let mut state = self.lock();
        if state.sealed.is_some() || state.ended {
            // Only a notice can come this late.
            return;
        }
        let number = state.next;
        state.next += 1;
        if let Chunk::ToolOutputAvailable { tool_call_id, .. } | Chunk::ToolOutputError { tool_call_id, .. } = chunk {
            // Only frames since the call began can match, and few lie between two outputs of one call.
            if let Some(old) =
                state.frames.iter_mut().rev().find(|frame| {
                    frame.as_ref().is_some_and(|frame| frame.preliminary_of.as_ref() == Some(tool_call_id))
                })
            {
                *old = None;
            }
        }
        if to_disk && !chunk.is_transient() {
            state.note_for_disk(&self.path, number, json);
        }
        state.frames.push(Some(self.frame(number, chunk, json)));
        let length = state.frames.len();
        drop(state);
        self.grown.send_replace(length);
    }

    fn frame(&self, number: u64, chunk: &Chunk, json: &str) -> Frame {
        Frame {
            number,
            bytes: Bytes::from(format!("id: {}:{number}\ndata: {json}\n\n", self.turn_id)),
            transient: chunk.is_transient(),
            preliminary_of: chunk.preliminary_of().map(str::to_owned),
        }
    }

    /// Prepares the terminal chunk: it goes to disk with the next flush, readers get it with [`TurnLog::end`]. Nothing
    /// can be pushed behind it.
    pub fn seal(&self, chunk: &Chunk) {
        let json = to_json(chunk);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.note_for_disk(&self.path, number, &json);
        state.sealed = Some(self.frame(number, chunk, &json));
    }

    /// Leaves numbers free before the next chunk.
    pub fn skip_numbers(&self, count: u64) {
        self.lock().next += count;
    }

    /// Gives readers the sealed chunk, if there is one, and ends them after it.
    pub fn end(&self) {
        {
            let mut state = self.lock();
            if let Some(frame) = state.sealed.take() {
                state.frames.push(Some(frame));
            }
            state.ended = true;
        }
        self.grown.send_modify(|_| {});
    }

    /// The turn never came to be; readers that came early are cut off.
    pub fn abandon(&self) {
        self.lock().broken = true;
        self.grown.send_modify(|_| {});
    }

    /// Whether the last chunk is in.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// The highest number so far; 0 when empty.
    pub fn last_number(&self) -> u64 {
        self.lock().next - 1
    }

    /// Whether a reader that has seen `cursor` would get anything, now or later.
    pub fn has_more(&self, cursor: u64) -> bool {
        let state = self.lock();
        !state.ended || state.frames.iter().flatten().any(|frame| frame.number > cursor && !frame.transient)
    }

    /// Writes what has not been written yet. Blocking, by one at a time. After a failure nothing of it stays in the file and
    /// all of it is tried again by the next call: a gap would make a later replay look whole without being so.
    pub fn flush(&self) -> std::io::Result<()> {
        let bytes = std::mem::take(&mut self.lock().unflushed);
        if bytes.is_empty() {
            return Ok(());
        }
        let written = append_whole(&self.path, &bytes);
        if written.is_err() {
            self.lock().unflushed.splice(0..0, bytes);
        }
        written
    }

    /// Whether `flush` has something to do.
    pub fn needs_flush(&self) -> bool {
        !self.lock().unflushed.is_empty()
    }

    /// Everything after `cursor` as it goes to a client, then live, then `[DONE]`. Transient chunks from before now are
    /// left out. Ends with an error where the client must not take it for whole.
    pub fn follow(self: &Arc<Self>, cursor: u64) -> impl Stream<Item = Result<Bytes, Cut>> + Send + use<> {
        Reader::new(self, cursor, Framed::Yes).into_stream()
    }

    /// As [`TurnLog::follow`], without the comment at the beginning and without `[DONE]`: a part of a longer stream.
    pub fn frames(self: &Arc<Self>, cursor: u64) -> impl Stream<Item = Result<Bytes, Cut>> + Send + use<> {
        Reader::new(self, cursor, Framed::No).into_stream()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::harness::chunk::{NoticeLevel, OutputContent, ToolOutput, True};

    fn delta(text: &str) -> Chunk {
        Chunk::TextDelta { id: "t".into(), delta: text.into() }
    }

    fn preliminary(text: &str) -> Chunk {
        Chunk::ToolOutputAvailable {
            tool_call_id: "a".into(),
            output: ToolOutput {
                content: vec![OutputContent::Text { text: text.into() }],
                details: None,
                is_error: None,
            },
            preliminary: Some(True),
            provider_executed: True,
        }
    }

    async fn read(log: &Arc<TurnLog>, cursor: u64) -> Vec<String> {
        let bytes: Vec<_> = log.follow(cursor).collect().await;
        bytes.into_iter().map(|item| String::from_utf8(item.expect("whole").to_vec()).expect("text")).collect()
    }

    #[tokio::test]
    async fn a_reader_gets_everything_after_its_cursor_and_the_end() {
        let log = TurnLog::new("turn_1", PathBuf::new());
        log.push(&delta("a"));
        log.push(&Chunk::notice(NoticeLevel::Info, "gone on replay"));
        log.push(&preliminary("old"));
        log.push(&preliminary("new"));
        log.push(&delta("b"));
        log.end();
        let line = |number: u64, json: &str| format!("id: turn_1:{number}\ndata: {json}\n\n");
        assert_eq!(
            read(&log, 1).await,
            [
                ": stream-open\n\n".to_owned(),
                line(4, &serde_json::to_string(&preliminary("new")).expect("json")),
                line(5, r#"{"type":"text-delta","id":"t","delta":"b"}"#),
                "data: [DONE]\n\n".to_owned(),
            ]
        );
        assert!(log.has_more(4));
        assert!(!log.has_more(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_reader_sees_transient_chunks_and_heartbeats_and_a_stalled_one_is_cut() {
        let log = TurnLog::new("turn_1", PathBuf::new());
        let mut reader = Box::pin(log.follow(0));
        assert_eq!(reader.next().await, Some(Ok(Bytes::from_static(b": stream-open\n\n"))));
        assert_eq!(reader.next().await, Some(Ok(Bytes::from_static(b": heartbeat\n\n"))));
        log.push(&Chunk::notice(NoticeLevel::Info, "live"));
        assert!(reader.next().await.is_some_and(|item| item.is_ok()));
        log.push(&delta("x"));
        tokio::time::advance(SLOW_READER + Duration::from_secs(1)).await;
        assert_eq!(reader.next().await, Some(Err(Cut)));
        assert_eq!(reader.next().await, None);
    }

    #[tokio::test]
    async fn a_log_on_disk_reads_back_with_its_numbers() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s").join("turn_1.log");
        let log = TurnLog::new("turn_1", path.clone());
        log.push(&delta("a"));
        log.push(&preliminary("old"));
        log.flush().expect("flush");
        log.push(&preliminary("new"));
        log.skip_numbers(CRASH_GAP);
        log.push(&Chunk::Abort {});
        log.end();
        log.flush().expect("flush");
        let (loaded, chunks) = TurnLog::load("turn_1", path).expect("read").expect("there");
        assert_eq!(chunks, [delta("a"), preliminary("old"), preliminary("new"), Chunk::Abort {}]);
        assert_eq!(loaded.last_number(), 4 + CRASH_GAP);
        assert!(loaded.has_ended());
        assert_eq!(read(&loaded, 0).await, read(&log, 0).await);
    }

    #[test]
    fn what_could_not_be_written_is_written_by_the_next_attempt() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("turns").join("turn_1.log");
        std::fs::write(folder.path().join("turns"), "in the way").expect("written");
        let log = TurnLog::new("turn_1", path.clone());
        log.push(&delta("a"));
        log.flush().expect_err("no folder");
        log.push(&Chunk::Abort {});
        log.end();
        std::fs::remove_file(folder.path().join("turns")).expect("removed");
        log.flush().expect("flush");
        let (_, chunks) = TurnLog::load("turn_1", path).expect("read").expect("there");
        assert_eq!(chunks, [delta("a"), Chunk::Abort {}]);
    }
}
