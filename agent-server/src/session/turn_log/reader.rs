//! One reader of a turn's log: what it gets next, heartbeats, and the cut of one that takes nothing.
//!
//! Owns the order of what one client sees. Must not know sessions or HTTP.

use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{BEAT, Cut, DONE, HEARTBEAT, OPENING, SLOW_READER, TurnLog};

/// Whether the stream has its own beginning and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framed {
    Yes,
    No,
}

pub(super) struct Reader {
    log: Arc<TurnLog>,
    grown: watch::Receiver<usize>,
    cursor: u64,
    at: usize,
    joined: usize,
    framed: Framed,
    opened: bool,
    over: bool,
    last_taken: Instant,
}

enum Next {
    Bytes(Bytes),
    Broken,
    Ended,
    Wait,
}

impl Reader {
    pub(super) fn new(log: &Arc<TurnLog>, cursor: u64, framed: Framed) -> Self {
        let joined = log.lock().frames.len();
        Self {
            log: Arc::clone(log),
            grown: log.grown.subscribe(),
            cursor,
            at: 0,
            joined,
            framed,
            opened: framed == Framed::No,
            over: false,
            last_taken: Instant::now(),
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Cut>> + Send {
        futures::stream::unfold(self, |mut reader| async move { reader.next().await.map(|item| (item, reader)) })
    }

    async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        if self.over {
            return None;
        }
        if !self.opened {
            self.opened = true;
            self.last_taken = Instant::now();
            return Some(Ok(OPENING));
        }
        // The connection asks for the next piece when it could write the last one.
        let waited = self.last_taken.elapsed();
        loop {
            self.grown.borrow_and_update();
            match self.take() {
                Next::Broken => {
                    self.over = true;
                    return Some(Err(Cut));
                }
                Next::Bytes(_) if waited > SLOW_READER => {
                    self.over = true;
                    return Some(Err(Cut));
                }
                Next::Bytes(bytes) => {
                    self.last_taken = Instant::now();
                    return Some(Ok(bytes));
                }
                Next::Ended => {
                    self.over = true;
                    return (self.framed == Framed::Yes).then_some(Ok(DONE));
                }
                Next::Wait => {}
            }
            let changed = tokio::time::timeout(HEARTBEAT, self.grown.changed()).await;
            if changed.is_err() {
                self.last_taken = Instant::now();
                return Some(Ok(BEAT));
            }
        }
    }

    fn take(&mut self) -> Next {
        let state = self.log.lock();
        while let Some(slot) = state.frames.get(self.at) {
            let index = self.at;
            self.at += 1;
            if let Some(frame) = slot
                && frame.number > self.cursor
                && !(frame.transient && index < self.joined)
            {
                return Next::Bytes(frame.bytes.clone());
            }
        }
        match (state.broken, state.ended) {
            (true, _) => Next::Broken,
            (false, true) => Next::Ended,
            (false, false) => Next::Wait,
        }
    }
}
