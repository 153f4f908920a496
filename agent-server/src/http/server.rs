//! Listening: accepting connections, their number and the graceful end.
//!
//! Owns sockets. Must not know routes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::connection;
use crate::telemetry::Metrics;

/// Connections at once. One costs about 2 KiB before its first byte and 25 KiB after (measured): 300 MiB at worst.
const MAX_CONNECTIONS: usize = 12_000;
/// File descriptors kept for everything else: 64 blocking threads with a few each, walks, pipes of commands.
const RESERVED_FILES: u64 = 1024;
/// Pause after the system had no file descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const FULL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 81\r\n\r\n\
{\"error\":{\"code\":\"rate_limited\",\"message\":\"too many connections\",\"retryAfter\":1}}";

/// Raises the limit of open files to what the system allows, at most 64 Ki, and returns how many connections fit.
pub fn connection_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile);
    let target = limit.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    let mut files = limit.current.unwrap_or(WANTED);
    if files < target {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum }) {
            Ok(()) => files = target,
            Err(error) => tracing::warn!(%error, files, "the limit of open files stays low"),
        }
    }
    usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(MAX_CONNECTIONS).clamp(64, MAX_CONNECTIONS)
}

/// The router that answers now: one for the start, then the whole one. Each request asks anew, so that connections
/// opened during the start go on.
pub struct Switch {
    starting: Router,
    whole: OnceLock<Router>,
}

impl Switch {
    /// Answers with `starting` until [`Switch::complete`].
    pub fn new(starting: Router) -> Arc<Self> {
        Arc::new(Self { starting, whole: OnceLock::new() })
    }

    /// From now on `whole` answers; a second call changes nothing.
    pub fn complete(&self, whole: Router) {
        let _first_one_stays = self.whole.set(whole);
    }

    /// The router that answers now.
    pub fn router(&self) -> Router {
        self.whole.get().unwrap_or(&self.starting).clone()
    }
}

/// A listener with its router.
pub struct Server {
    /// Where to listen.
    pub listener: TcpListener,
    /// What answers.
    pub switch: Arc<Switch>,
    /// Connections at once.
    pub limit: usize,
    /// Counted there.
    pub metrics: Arc<Metrics>,
}

impl Server {
    /// Serves until `stop`, then takes no connection, lets requests in progress end, and returns when all are done.
    /// The caller bounds the time.
    pub async fn serve(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.limit));
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // A client that left before it was accepted is no event; a lack of descriptors passes.
                    if error.kind() != std::io::ErrorKind::ConnectionAborted {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                self.metrics.connections_refused.inc();
                // Best effort: the answer fits the socket's empty buffer, and nobody waits for this client.
                let _written = socket.try_write(FULL);
                continue;
            };
            let (switch, stop, metrics) = (self.switch.clone(), stop.clone(), self.metrics.clone());
            connections.spawn(async move {
                metrics.connections.inc();
                connection(socket, switch, stop).await;
                metrics.connections.dec();
                drop(slot);
            });
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_of_a_full_server_announces_its_length() {
        let text = std::str::from_utf8(super::FULL).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
