//! The body of a request on its way to the pod, which may have to be sent twice.
//!
//! A pod that is just stopping refuses a request after its body began to flow; then the request is held, the workspace woken,
//! and the body sent again. So a bounded beginning is kept. Bytes are counted references, nothing is copied. Owns the bound.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Kept of one body: a chat with its whole history and a pasted image fits.
pub const KEPT_BYTES: usize = 1024 * 1024;
/// Kept of all bodies of one gateway: 64 large requests at once, or thousands of ordinary ones.
pub const KEPT_BYTES_TOGETHER: usize = 64 * 1024 * 1024;

/// What all uploads of a gateway share: room for kept bytes.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(KEPT_BYTES_TOGETHER)))
    }
}

struct Source {
    incoming: Incoming,
    kept: Vec<Bytes>,
    permits: Option<OwnedSemaphorePermit>,
    kept_bytes: usize,
    /// Bytes that may still come.
    left: u64,
    too_large: bool,
    /// False once something was not kept: then the body cannot be sent again.
    whole: bool,
    ended: bool,
    /// Number of the attempt that may read: an older one, on a connection that is going down, must not take bytes away.
    attempt: u64,
}

/// The body of one request. Each attempt to send it takes a [`Sending`].
pub struct Upload {
    source: Option<Arc<Mutex<Source>>>,
    hint: SizeHint,
    room: Room,
}

impl Upload {
    /// Nothing is read yet. More than `limit` bytes break it off.
    pub fn new(incoming: Incoming, room: &Room, limit: u64) -> Self {
        let hint = incoming.size_hint();
        let source = (!incoming.is_end_stream()).then(|| {
            Arc::new(Mutex::new(Source {
                incoming,
                kept: Vec::new(),
                permits: None,
                kept_bytes: 0,
                left: limit,
                too_large: false,
                whole: true,
                ended: false,
                attempt: 0,
            }))
        });
        Self { source, hint, room: room.clone() }
    }

    /// Whether there is a body.
    pub fn is_some(&self) -> bool {
        self.source.is_some()
    }

    /// Whether everything that was read so far is kept.
    pub fn can_be_sent_again(&self) -> bool {
        self.source.as_ref().is_none_or(|source| lock(source).whole)
    }

    /// Whether more came than is permitted.
    pub fn is_too_large(&self) -> bool {
        self.source.as_ref().is_some_and(|source| lock(source).too_large)
    }

    /// The body from its first byte on. `None` when its beginning is gone.
    pub fn send(&self) -> Option<Sending> {
        let Some(source) = &self.source else {
            return Some(Sending { source: None, attempt: 0, next: 0, hint: self.hint, room: self.room.clone() });
        };
        let mut state = lock(source);
        if !state.whole {
            return None;
        }
        state.attempt += 1;
        let attempt = state.attempt;
        drop(state);
        Some(Sending { source: Some(Arc::clone(source)), attempt, next: 0, hint: self.hint, room: self.room.clone() })
    }

    /// The whole body, when it is short enough to be kept; it can still be sent.
    pub async fn peek(&self) -> Option<Bytes> {
        let mut sending = self.send()?;
        let mut all = BytesMut::new();
        while let Some(frame) = sending.frame().await {
            if let Ok(data) = frame.ok()?.into_data() {
                all.extend_from_slice(&data);
            }
            if !self.can_be_sent_again() {
                return None;
            }
        }
        Some(all.freeze())
    }
}

fn lock(source: &Mutex<Source>) -> MutexGuard<'_, Source> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    fn keep(&mut self, data: &Bytes, room: &Room) {
        if !self.whole {
            return;
        }
        let permit = u32::try_from(data.len())
            .ok()
            .filter(|_| self.kept_bytes + data.len() <= KEPT_BYTES)
            .and_then(|bytes| Arc::clone(&room.0).try_acquire_many_owned(bytes).ok());
        let Some(permit) = permit else {
            // The reader of this attempt has had all of it.
            self.whole = false;
            self.kept = Vec::new();
            self.permits = None;
            return;
        };
        match &mut self.permits {
            Some(permits) => permits.merge(permit),
            None => self.permits = Some(permit),
        }
        self.kept_bytes += data.len();
        self.kept.push(data.clone());
    }
}

/// One attempt to send an upload.
pub struct Sending {
    source: Option<Arc<Mutex<Source>>>,
    attempt: u64,
    next: usize,
    hint: SizeHint,
    room: Room,
}

/// The body's own error, or a later attempt that took over.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The caller broke off.
    #[error("the caller's body ended early")]
    Caller(#[source] hyper::Error),
    /// More bytes than are permitted.
    #[error("the body is too large")]
    TooLarge,
    /// The body is being sent on another connection.
    #[error("the request is sent on another connection")]
    TakenOver,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(source) = self.source.clone() else { return Poll::Ready(None) };
        let mut state = lock(&source);
        if state.attempt != self.attempt {
            return Poll::Ready(Some(Err(UploadError::TakenOver)));
        }
        if let Some(data) = state.kept.get(self.next).cloned() {
            self.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut state.incoming).poll_frame(context);
        let Poll::Ready(frame) = polled else { return Poll::Pending };
        match frame {
            None => {
                state.ended = true;
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                state.whole = false;
                Poll::Ready(Some(Err(UploadError::Caller(error))))
            }
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let Some(left) = state.left.checked_sub(data.len() as u64) else {
                        (state.too_large, state.whole) = (true, false);
                        return Poll::Ready(Some(Err(UploadError::TooLarge)));
                    };
                    state.left = left;
                    state.keep(data, &self.room);
                    self.next += 1;
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.as_ref().is_none_or(|source| {
            let state = lock(source);
            state.attempt == self.attempt && state.ended && self.next >= state.kept.len()
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}
