//! The life of a server process: listen, announce, serve, drain, end.
//!
//! Owns these steps and the signals. Must not know routes or adapters; `lib.rs` composes them and calls the steps in
//! order.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth;
use crate::config::Config;
use crate::http::lifecycle::close_turns;
use crate::http::server::{Server, Switch, connection_limit};
use crate::http::{AppState, metrics_router, router};
use crate::shutdown::{turn_grace, whole_budget};
use crate::telemetry::Metrics;

/// Connections of the metrics port: a scraper or two.
const METRICS_CONNECTIONS: usize = 64;

/// Why the server cannot listen or be ended in order.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// The generated token.
    #[error("the token file {0} cannot be made: {1}")]
    Token(String, std::io::Error),
    /// Standard output.
    #[error("standard output cannot be written: {0}")]
    Output(std::io::Error),
    /// Signals.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
}

/// The open ports.
pub struct Listeners {
    interface: TcpListener,
    metrics: Option<TcpListener>,
    limit: usize,
}

/// Opens the ports and makes room for connections.
pub async fn listen(config: &Config) -> Result<Listeners, ServeError> {
    let limit = connection_limit();
    let interface = bind(SocketAddr::new(config.host, config.port)).await?;
    let metrics = match config.metrics_port {
        Some(port) => Some(bind(SocketAddr::new(config.host, port)).await?),
        None => None,
    };
    Ok(Listeners { interface, metrics, limit })
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|error| ServeError::Listen(address, error))
}

impl Listeners {
    /// The first line says where the server listens. With its own token a second one gives the link that opens it.
    pub fn announce(&self, config: &Config) -> Result<(), ServeError> {
        let address = self
            .interface
            .local_addr()
            .map_err(|error| ServeError::Listen((config.host, config.port).into(), error))?;
        let mut lines = format!("listening on http://{address}\n");
        if config.authentication.generated
            && let Some(file) = &config.authentication.static_token_file
        {
            let token =
                auth::ensure_generated(file).map_err(|error| ServeError::Token(file.display().to_string(), error))?;
            lines = format!("{lines}open http://{address}/#token={token}\n");
        }
        let mut output = std::io::stdout().lock();
        output.write_all(lines.as_bytes()).and_then(|()| output.flush()).map_err(ServeError::Output)
    }

    /// Begins to serve with what answers during the start.
    pub fn start(self, starting: Router, metrics: Arc<Metrics>) -> Serving {
        let serving =
            Serving { switch: Switch::new(starting), stop: CancellationToken::new(), servers: TaskTracker::new() };
        if let Some(listener) = self.metrics {
            let switch = Switch::new(metrics_router(metrics.clone()));
            // Its own counters, which nobody reads: scrapers are not connections of the interface.
            let metrics = Arc::new(Metrics::new());
            let server = Server { listener, switch, limit: METRICS_CONNECTIONS, metrics };
            serving.servers.spawn(server.serve(serving.stop.clone()));
        }
        let server = Server { listener: self.interface, switch: serving.switch.clone(), limit: self.limit, metrics };
        serving.servers.spawn(server.serve(serving.stop.clone()));
        serving.servers.close();
        serving
    }
}

/// A server whose ports are served.
pub struct Serving {
    switch: Arc<Switch>,
    stop: CancellationToken,
    servers: TaskTracker,
}

impl Serving {
    /// Serves the whole interface until a signal ends it. Returns when everything is closed.
    pub async fn serve(self, app: AppState, mut signals: Signals) {
        self.switch.complete(router(app.clone()));
        signals.next().await;
        tracing::info!("stopping");
        tokio::select! {
            () = end(&app, &self.stop, &self.servers) => {}
            () = signals.next() => tracing::warn!("second signal: ending at once"),
        }
    }
}

/// Drains as `POST /drain` does, for good; then closes what is left, all within the budget of the shutdown.
async fn end(app: &AppState, stop: &CancellationToken, servers: &TaskTracker) {
    let closing = async {
        app.activity.stop();
        close_turns(app, turn_grace(app.config.stop_grace)).await;
        stop.cancel();
        app.sandbox.stop_all().await;
        servers.wait().await;
    };
    let budget = whole_budget(app.config.stop_grace);
    if tokio::time::timeout(budget, closing).await.is_err() {
        tracing::warn!(?budget, "connections or commands did not end in time and were cut off");
    }
}

/// SIGINT and SIGTERM, alike.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on a signal no longer ends the process by itself.
    pub fn new() -> Result<Self, ServeError> {
        let receive = |kind| signal(kind).map_err(ServeError::Signals);
        Ok(Self { interrupt: receive(SignalKind::interrupt())?, terminate: receive(SignalKind::terminate())? })
    }

    /// The next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Worker threads: requests are short and storage has its own pool, so more would only cost memory.
pub fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get).clamp(1, 4)
}

/// Idle blocking threads end after this, so that a quiet server is a small one.
pub const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Blocking threads at most: storage that hangs takes this many stacks and no more.
pub const MAX_BLOCKING_THREADS: usize = 64;
