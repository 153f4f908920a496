//! The life of a server process: listen, announce, serve, drain, end.
//!
//! Owns the order of these steps and the signals. Must not know routes or adapters; `lib.rs` composes them.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::http::lifecycle::close_turns;
use crate::http::server::{Server, connection_limit};
use crate::http::{AppState, metrics_router, router};
use crate::shutdown::{turn_grace, whole_budget};
use crate::{StartError, auth, compose, storage};

/// Connections of the metrics port: a scraper or two.
const METRICS_CONNECTIONS: usize = 64;

/// Serves until a signal ends it. Returns when everything is closed.
pub async fn run(config: Config, started_at: Instant) -> Result<(), StartError> {
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    let limit = connection_limit();
    let listener = listen(SocketAddr::new(config.host, config.port)).await?;
    let metrics_listener = match config.metrics_port {
        Some(port) => Some(listen(SocketAddr::new(config.host, port)).await?),
        None => None,
    };
    announce(&config, &listener)?;
    let app = compose(config, started_at).await?;
    tracing::info!(mode = app.config.mode.as_str(), named = app.config.mode_named, "serving");

    let stop = CancellationToken::new();
    let servers = TaskTracker::new();
    let server = Server { listener, router: router(app.clone()), limit, metrics: app.metrics.clone() };
    servers.spawn(server.serve(stop.clone()));
    if let Some(listener) = metrics_listener {
        // Not counted among the connections of the interface.
        let metrics = Arc::new(crate::telemetry::Metrics::new());
        let router = metrics_router(app.metrics.clone());
        servers.spawn(Server { listener, router, limit: METRICS_CONNECTIONS, metrics }.serve(stop.clone()));
    }
    servers.close();
    let folders = vec![("workspace", app.config.workspace_root.clone()), ("state", app.config.state_dir.clone())];
    tokio::spawn(storage::watch(folders, app.readiness.clone()));
    app.readiness.set_started();

    signals.next().await;
    tracing::info!("stopping");
    tokio::select! {
        () = end(&app, &stop, &servers) => {}
        () = signals.next() => tracing::warn!("second signal: ending at once"),
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| StartError::Listen(address, error))
}

/// The first line says where the server listens. With its own token a second one gives the link that opens it.
fn announce(config: &Config, listener: &TcpListener) -> Result<(), StartError> {
    let address =
        listener.local_addr().map_err(|error| StartError::Listen((config.host, config.port).into(), error))?;
    let mut lines = format!("listening on http://{address}\n");
    if config.authentication.generated
        && let Some(file) = &config.authentication.static_token_file
    {
        let token = auth::ensure_generated(file).map_err(|error| StartError::folder("token file", file, error))?;
        lines = format!("{lines}open http://{address}/#token={token}\n");
    }
    let mut output = std::io::stdout().lock();
    output.write_all(lines.as_bytes()).and_then(|()| output.flush()).map_err(StartError::Output)
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
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
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
