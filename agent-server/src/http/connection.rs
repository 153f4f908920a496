//! One connection: limits of its requests, and its end.
//!
//! Owns a socket and what the HTTP library is told about it. Must not know routes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::error::{ApiError, Code};
use super::parse_errors::ParseErrors;
use super::server::Switch;
use super::write_limit::WriteLimit;

/// Time for a whole request head, also the longest pause between two requests of a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a request head, and of a connection's read buffer.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Headers of a request.
const MAX_HEADERS: usize = 100;
/// After the order to stop, a connection without an answer in progress has this long to send its last bytes.
const LAST_BYTES: Duration = Duration::from_millis(250);

/// Serves one connection until it ends, or until `stop` and then only what is being answered.
pub async fn connection(socket: TcpStream, switch: Arc<Switch>, stop: CancellationToken) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no-delay could not be set");
    }
    // No buffer is made for a connection that never sends anything.
    tokio::select! {
        () = stop.cancelled() => return,
        first = tokio::time::timeout(HEADER_TIMEOUT, socket.readable()) => {
            if !matches!(first, Ok(Ok(()))) {
                return;
            }
        }
    }
    serve(WriteLimit::new(socket), switch, stop).await;
}

/// As [`connection`], over anything that bytes can go through.
pub(super) async fn serve<T>(socket: T, switch: Arc<Switch>, stop: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answers = Arc::new(Answers::default());
    let begun = answers.clone();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(
            TokioIo::new(ParseErrors::new(socket)),
            service_fn(move |request| answer(request, switch.clone(), Answering::begin(&begun))),
        );
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                // A client in the middle of a request head would keep the connection for its whole time.
                () = answers.done() => return,
            }
        }
    };
    if let Err(error) = ended {
        // Clients leave at any time and send anything; neither is an event for the operator of the server.
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn answer(
    request: Request<Incoming>,
    switch: Arc<Switch>,
    answering: Answering,
) -> Result<hyper::Response<AnswerBody>, Infallible> {
    // The parser's own limit counts what is in its buffer, which may be twice as much.
    let response: Response = if head_bytes(&request) > MAX_HEAD_BYTES {
        head_too_large().into_response()
    } else {
        switch.router().oneshot(request).await?
    };
    Ok(response.map(|body| AnswerBody { body, _answering: answering }))
}

/// The answer to a head over the limit.
pub fn head_too_large() -> ApiError {
    ApiError::new(Code::HeadTooLarge, format!("the request head is larger than {MAX_HEAD_BYTES} bytes"))
        .with_extra("limit", MAX_HEAD_BYTES)
}

/// Bytes of the head as it came: request line and header lines with their separators.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(1, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + " HTTP/1.1\r\n".len() + 1;
    let headers = request.headers().iter();
    headers.fold(line + 2, |sum, (name, value)| sum + name.as_str().len() + value.len() + ": \r\n".len())
}

/// The answers in progress on one connection.
#[derive(Default)]
struct Answers {
    count: AtomicUsize,
    fewer: Notify,
}

impl Answers {
    /// Completes when nothing was being answered for [`LAST_BYTES`].
    async fn done(&self) {
        loop {
            let fewer = self.fewer.notified();
            if self.count.load(Ordering::Acquire) > 0 {
                fewer.await;
                continue;
            }
            tokio::time::sleep(LAST_BYTES).await;
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// One answer in progress, from its request's head to its last byte.
struct Answering(Arc<Answers>);

impl Answering {
    fn begin(answers: &Arc<Answers>) -> Self {
        answers.count.fetch_add(1, Ordering::AcqRel);
        Self(answers.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_one();
    }
}

/// A body that is in progress as long as it lives.
struct AnswerBody {
    body: Body,
    _answering: Answering,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
