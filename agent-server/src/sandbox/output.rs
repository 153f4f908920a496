//! Passing the output of a command on, with a bound on what is held in memory.
//!
//! Owns reading one stream, its cap and its end. Must not know how a command ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{ExecEvent, OutputStream};

/// One read: the default size of a pipe's buffer on Linux.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Events that wait for a slow reader: 32 × 64 KiB = 2 MiB per command, then the command waits in its `write`.
pub const EVENTS_BUFFERED: usize = 32;
/// What a pipe can hold at most without privilege (`/proc/sys/fs/pipe-max-size`). Once the shell has ended, everything it
/// wrote is among the next bytes of this number.
const PIPE_CAPACITY: u64 = 1024 * 1024;
/// After the shell's end a read that takes longer than this finds an empty pipe that a background process holds open.
const EMPTY_AFTER: Duration = Duration::from_millis(20);

/// What both streams of a command wrote.
pub struct OutputCount {
    /// Bytes that were not passed on.
    dropped: AtomicU64,
    written: AtomicU64,
    allowed: u64,
    /// Cancelled when more was written than is allowed.
    pub exceeded: CancellationToken,
}

impl OutputCount {
    /// Nothing yet.
    pub fn new(allowed: u64) -> Arc<Self> {
        let (dropped, written) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { dropped, written, allowed, exceeded: CancellationToken::new() })
    }

    /// Bytes that were not passed on.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        let before = self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        if before + bytes as u64 > self.allowed {
            self.exceeded.cancel();
        }
    }
}

/// Reads one stream of a command.
pub struct OutputPump<R> {
    /// The pipe.
    pub pipe: R,
    /// Which stream it is.
    pub stream: OutputStream,
    /// Where the output goes.
    pub events: mpsc::Sender<ExecEvent>,
    /// Bytes that are passed on.
    pub max_bytes: u64,
    /// Counts both streams.
    pub count: Arc<OutputCount>,
    /// Cancelled some time after the shell's end: what is in the pipe is still passed on, but not waited for.
    pub finish: CancellationToken,
}

impl<R: AsyncRead + Unpin> OutputPump<R> {
    /// Passes output on until the stream ends or is to be finished. Returns the pipe if somebody still holds its other end.
    pub async fn run(mut self) -> Option<R> {
        let mut passed: u64 = 0;
        let mut buffer = BytesMut::new();
        let mut after_finish: u64 = 0;
        loop {
            buffer.reserve(CHUNK_BYTES);
            let read = if self.finish.is_cancelled() {
                if after_finish >= PIPE_CAPACITY {
                    return Some(self.pipe);
                }
                match tokio::time::timeout(EMPTY_AFTER, self.pipe.read_buf(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => return Some(self.pipe),
                }
            } else {
                tokio::select! {
                    read = self.pipe.read_buf(&mut buffer) => read,
                    () = self.finish.cancelled() => continue,
                }
            };
            // An error on a pipe means the same as its end: nothing more will come.
            let Ok(1..) = read else { return None };
            let chunk = buffer.split().freeze();
            if self.finish.is_cancelled() {
                after_finish += chunk.len() as u64;
            }
            self.pass_on(chunk, &mut passed).await;
        }
    }

    async fn pass_on(&mut self, mut chunk: Bytes, passed: &mut u64) {
        self.count.add(chunk.len());
        let room = usize::try_from(self.max_bytes.saturating_sub(*passed)).unwrap_or(usize::MAX);
        let surplus = if chunk.len() > room { chunk.split_off(room).len() } else { 0 };
        *passed += chunk.len() as u64;
        let mut lost = surplus;
        if !chunk.is_empty() {
            let bytes = chunk.len();
            // A receiver that is gone ends the command elsewhere; here its bytes only count as dropped.
            if self.events.send(ExecEvent::Output { stream: self.stream, bytes: chunk }).await.is_err() {
                lost += bytes;
            }
        }
        self.count.dropped.fetch_add(lost as u64, Ordering::Relaxed);
    }
}

/// Reads and forgets, so that a background process neither blocks nor dies on its output.
pub async fn discard(pipe: Option<impl AsyncRead + Unpin>) {
    if let Some(mut pipe) = pipe {
        // The end and an error are the same here: there is nothing more to forget.
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn pump(
        pipe: tokio::io::DuplexStream,
        max_bytes: u64,
    ) -> (OutputPump<tokio::io::DuplexStream>, mpsc::Receiver<ExecEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_BUFFERED);
        let pump = OutputPump {
            pipe,
            stream: OutputStream::Stdout,
            events,
            max_bytes,
            count: OutputCount::new(7),
            finish: CancellationToken::new(),
        };
        (pump, receiver)
    }

    #[tokio::test]
    async fn bytes_over_the_cap_are_counted_and_not_passed_on() {
        let (mut writer, pipe) = tokio::io::duplex(64);
        let (pump, mut events) = pump(pipe, 5);
        let count = Arc::clone(&pump.count);
        let running = tokio::spawn(pump.run());
        writer.write_all(b"abcdefgh").await.unwrap();
        drop(writer);
        assert!(running.await.unwrap().is_none());
        let mut passed = Vec::new();
        while let Some(ExecEvent::Output { bytes, .. }) = events.recv().await {
            passed.extend_from_slice(&bytes);
        }
        assert_eq!((passed.as_slice(), count.dropped()), (b"abcde".as_slice(), 3));
        assert!(count.exceeded.is_cancelled(), "eight bytes are more than seven");
    }

    #[tokio::test]
    async fn a_stream_held_open_is_given_back_after_what_it_holds_was_passed_on() {
        let (mut writer, pipe) = tokio::io::duplex(64);
        let (pump, mut events) = pump(pipe, 100);
        writer.write_all(b"last words").await.unwrap();
        pump.finish.cancel();
        assert!(pump.run().await.is_some());
        let expected = ExecEvent::Output { stream: OutputStream::Stdout, bytes: Bytes::from_static(b"last words") };
        assert_eq!(events.recv().await, Some(expected));
        assert_eq!(events.recv().await, None);
    }
}
