//! Connections of callers.
//!
//! Owns their number and what one may send before a request is complete. Must not know what a request does.

use std::{sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::request::Gateway;

/// Longer than proxies keep idle connections (60 s), so that it is they who close them and no request meets a closed one. It
/// bounds slow headers too; connections are bounded by number.
const HEADERS_LIMIT: Duration = Duration::from_secs(75);
/// Request line and headers of one request.
const HEADER_BYTES: usize = 64 * 1024;
/// Headers of one request.
const HEADERS: usize = 128;
/// Pause after a connection could not be accepted: descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Accepts until it is dropped; each connection ends with its last request once `ending` is cancelled.
pub async fn accept(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    limit: usize,
    connections: TaskTracker,
    ending: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(limit));
    loop {
        // At the limit nobody is accepted: the kernel's queue holds callers back, and a health check fails.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, Arc::clone(&gateway), ending.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    gateway: Arc<Gateway>,
    ending: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone at once");
        return;
    }
    gateway.metrics.connection_opened();
    let for_requests = Arc::clone(&gateway);
    let service = service_fn(move |request| {
        let gateway = Arc::clone(&for_requests);
        async move { Ok::<_, std::convert::Infallible>(gateway.handle(request).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_LIMIT)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
    gateway.metrics.connection_closed();
}
