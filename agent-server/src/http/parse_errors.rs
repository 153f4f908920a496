//! Answers of the HTTP parser in the one error shape.
//!
//! Owns the exchange: the parser answers bytes that are no request with a bare status and an empty body, and gives no
//! other way in. None of this server's own errors has an empty body, so such an answer is recognised by its head.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection::head_too_large;
use super::error::{ApiError, Code};

/// A client that still sends gets this long to see the answer: closing with unread bytes would take it back.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes read and dropped at once meanwhile.
const DROPPED_AT_ONCE: usize = 8 * 1024;

/// A connection on which the parser's own answers are exchanged.
pub struct ParseErrors<T> {
    inner: T,
    /// What is still to be sent in place of such an answer.
    instead: Bytes,
    /// Such an answer was sent, and this is when the connection closes at the latest.
    linger: Option<Pin<Box<Sleep>>>,
}

impl<T> ParseErrors<T> {
    /// Around a connection.
    pub fn new(inner: T) -> Self {
        Self { inner, instead: Bytes::new(), linger: None }
    }
}

/// The answer in place of the parser's own; `None` for everything else that is written.
fn instead_of(written: &[u8]) -> Option<Bytes> {
    let status = written.strip_prefix(b"HTTP/1.1 4")?.get(..2)?;
    // The parser's heads are about 100 bytes; a longer one is not looked through.
    let head = written.get(..written.len().min(512))?;
    let empty = head.windows(19).any(|line| line.eq_ignore_ascii_case(b"content-length: 0\r\n"));
    if !empty || !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let error = match status {
        b"00" => ApiError::new(Code::ValidationError, "the bytes are no HTTP request"),
        b"14" => ApiError::new(Code::UriTooLong, "the request's target is too long"),
        b"31" => head_too_large(),
        _ => return None,
    };
    let (status, body) = (error.code().status(), error.body().to_string());
    let (number, reason) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    Some(Bytes::from(format!(
        "HTTP/1.1 {number} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )))
}

impl<T: AsyncRead + AsyncWrite + Unpin> ParseErrors<T> {
    fn exchange(&mut self, instead: Bytes) {
        self.instead = instead;
        self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
    }

    /// Reads and drops what the client still sends, until it stops or the time is over.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else { return Poll::Ready(()) };
        let mut dropped = [0; DROPPED_AT_ONCE];
        while linger.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut dropped);
            match ready!(Pin::new(&mut self.inner).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.instead.has_remaining() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ParseErrors<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ParseErrors<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(context))?;
        if let Some(instead) = instead_of(bytes) {
            self.exchange(instead);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(context))?;
        if let [bytes] = pieces
            && let Some(instead) = instead_of(bytes)
        {
            self.exchange(instead);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        ready!(Pin::new(&mut self.inner).poll_shutdown(context))?;
        self.poll_linger(context).map(Ok)
    }
}
