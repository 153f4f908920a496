//! A bound on how long a client may take nothing of an answer: then the connection breaks, and the client sees that the
//! answer is not whole.
//!
//! Owns that time. Must not know what is written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Longest time in which not one byte is taken.
const MAX_STALL: Duration = Duration::from_secs(30);

/// A connection whose writes fail once the other side has stalled for too long.
pub struct WriteLimit<T> {
    inner: T,
    /// Runs only while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteLimit<T> {
    /// Around a connection.
    pub fn new(inner: T) -> Self {
        Self { inner, stalled: None }
    }

    fn watch<R>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + MAX_STALL)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteLimit<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteLimit<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_something_in_time_goes_on_and_a_stalled_one_is_cut() {
        let (server, mut client) = duplex(4);
        let mut server = WriteLimit::new(server);
        let reading = async {
            let mut buffer = [0; 4];
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                client.read_exact(&mut buffer).await.expect("read");
            }
        };
        let writing = async { server.write_all(&[7; 12]).await };
        let (written, ()) = tokio::join!(writing, reading);
        written.expect("a slow reader is no stalled one");
        let started = Instant::now();
        let error = server.write_all(&[7; 12]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), MAX_STALL);
    }
}
