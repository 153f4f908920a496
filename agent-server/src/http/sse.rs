//! The one framing of Server-Sent Events: frames, heartbeats and the headers every event stream carries.
//!
//! Owns the wire format. Must not know what the events mean.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

/// Pause after which a comment is sent, so that proxies do not close a quiet stream.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// Frames joined into one chunk at most: bounds the memory of one write, about 32 deltas of 2 KiB.
const MAX_JOINED_BYTES: usize = 64 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// `id:` line; must hold no line break.
    pub id: Option<String>,
    /// `event:` line; must hold no line break.
    pub event: Option<&'static str>,
    /// Payload; each line becomes a `data:` line.
    pub data: String,
}

impl Frame {
    /// A frame with data alone.
    pub fn data(data: impl Into<String>) -> Self {
        Self { data: data.into(), ..Self::default() }
    }

    /// A named frame.
    pub fn event(event: &'static str, data: impl Into<String>) -> Self {
        Self { event: Some(event), data: data.into(), id: None }
    }

    /// With an id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Writes the frame's bytes. Line breaks in `id` are dropped, since they would end the line early.
    pub fn encode(&self, out: &mut BytesMut) {
        if let Some(id) = &self.id {
            out.put_slice(b"id: ");
            out.extend(id.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r' | 0)));
            out.put_u8(b'\n');
        }
        if let Some(event) = self.event {
            out.put_slice(b"event: ");
            out.put_slice(event.as_bytes());
            out.put_u8(b'\n');
        }
        for line in lines(&self.data) {
            out.put_slice(b"data: ");
            out.put_slice(line.as_bytes());
            out.put_u8(b'\n');
        }
        out.put_u8(b'\n');
    }
}

/// The lines as readers of events see them: CRLF, LF and a bare CR each end one.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(at) = text.find(['\r', '\n']) else {
            rest = None;
            return Some(text);
        };
        let end = if text[at..].starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&text[at + end..]);
        Some(&text[..at])
    })
}

/// An event stream response: 200, the headers every stream needs, frames as they come, heartbeats in between.
/// The response ends when `frames` ends.
pub fn response(frames: impl Stream<Item = Frame> + Send + 'static) -> Response {
    let body = Body::from_stream(Encoder { frames: Box::pin(frames), sleep: None, finished: false });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

struct Encoder<S> {
    frames: Pin<Box<S>>,
    sleep: Option<Pin<Box<Sleep>>>,
    finished: bool,
}

impl<S: Stream<Item = Frame>> Stream for Encoder<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut out = BytesMut::new();
        while !self.finished && out.len() < MAX_JOINED_BYTES {
            match self.frames.poll_next_unpin(context) {
                Poll::Ready(Some(frame)) => frame.encode(&mut out),
                Poll::Ready(None) => self.finished = true,
                Poll::Pending => break,
            }
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(HEARTBEAT)));
        if !out.is_empty() {
            sleep.as_mut().reset(Instant::now() + HEARTBEAT);
            return Poll::Ready(Some(Ok(out.freeze())));
        }
        if self.finished {
            return Poll::Ready(None);
        }
        let sleep = self.sleep.as_mut().expect("set above");
        if sleep.as_mut().poll(context).is_ready() {
            sleep.as_mut().reset(Instant::now() + HEARTBEAT);
            return Poll::Ready(Some(Ok(Bytes::from_static(b": heartbeat\n\n"))));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use bytes::BytesMut;
    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;

    use super::{Frame, response};

    fn encoded(frame: &Frame) -> String {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        String::from_utf8(out.to_vec()).expect("text")
    }

    #[test]
    fn a_frame_has_id_event_and_a_data_line_per_line() {
        let frame = Frame::event("status", "one\ntwo\r\nthree\rfour").with_id("7\n8");
        assert_eq!(encoded(&frame), "id: 78\nevent: status\ndata: one\ndata: two\ndata: three\ndata: four\n\n");
        assert_eq!(encoded(&Frame::data("")), "data: \n\n");
    }

    async fn next(body: &mut Body) -> Option<String> {
        let frame = body.frame().await?.expect("infallible");
        Some(String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text"))
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_are_ready_share_a_chunk_and_a_quiet_stream_gets_heartbeats() {
        let frames = stream::iter([Frame::data("a"), Frame::data("b")]).chain(stream::pending());
        let mut body = response(frames).into_body();
        assert_eq!(next(&mut body).await.as_deref(), Some("data: a\n\ndata: b\n\n"));
        let before = tokio::time::Instant::now();
        assert_eq!(next(&mut body).await.as_deref(), Some(": heartbeat\n\n"));
        assert_eq!(next(&mut body).await.as_deref(), Some(": heartbeat\n\n"));
        assert_eq!(before.elapsed().as_secs(), 30);
    }

    #[tokio::test]
    async fn the_response_ends_with_the_frames() {
        let mut body = response(stream::iter([Frame::data("last")])).into_body();
        assert_eq!(next(&mut body).await.as_deref(), Some("data: last\n\n"));
        assert_eq!(next(&mut body).await, None);
    }
}
