//! The body of an answer on its way to the caller: handed on as it comes, never gathered.
//!
//! Owns what ends it: the pod's end (then the connection is kept for the next request), the pod's break (passed on as a
//! break, so that no client takes half an answer for a whole one), the end of the caller's rights, and the shutdown.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{streams::OpenStream, upstream::Lease};

/// Why a body breaks off.
#[derive(Debug, thiserror::Error)]
pub enum BrokenBody {
    /// The pod did.
    #[error("the pod broke off")]
    Pod(#[source] hyper::Error),
    /// The caller may no longer connect, or the gateway ends.
    #[error("the stream was ended by the gateway")]
    Ended,
}

/// Body of every answer.
pub enum Payload {
    /// Made here.
    Own(Full<Bytes>),
    /// From a pod.
    Pod(Box<Streamed>),
}

/// A pod's body.
pub struct Streamed {
    incoming: Incoming,
    lease: Option<Lease>,
    /// Bodies without a known length are open until somebody ends them.
    open: Option<(Arc<OpenStream>, Pin<Box<WaitForCancellationFutureOwned>>)>,
}

impl Streamed {
    /// `lease` goes back to its pool at the end of `incoming`; `open` ends the body when it is cancelled.
    pub fn new(incoming: Incoming, lease: Lease, open: Option<Arc<OpenStream>>) -> Self {
        let open = open.map(|stream| {
            let ended = Box::pin(stream.ended());
            (stream, ended)
        });
        let mut streamed = Self { incoming, lease: Some(lease), open };
        streamed.give_back_at_the_end();
        streamed
    }

    fn give_back_at_the_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Pending => match &mut self.open {
                Some((_, ended)) => ended.as_mut().poll(context).map(|()| Some(Err(BrokenBody::Ended))),
                None => Poll::Pending,
            },
            Poll::Ready(None) => {
                if let Some(lease) = self.lease.take() {
                    lease.give_back();
                }
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.give_back_at_the_end();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BrokenBody::Pod(error)))),
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match self.get_mut() {
            Self::Own(full) => Pin::new(full)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(|never: Infallible| match never {}))),
            Self::Pod(streamed) => streamed.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(full) => full.is_end_stream(),
            Self::Pod(streamed) => streamed.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(full) => full.size_hint(),
            Self::Pod(streamed) => streamed.incoming.size_hint(),
        }
    }
}
