//! The life of a gateway process: connect, watch, listen, serve, drain, end.
//!
//! Owns these steps, connections and what is done now and then. Must not know what a request does.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use ipnet::IpNet;
use kube::Config;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    access::Access,
    arguments::GatewayArguments,
    connections::accept,
    flight::Flights,
    forward::Forwarding,
    identity::Identities,
    request::Gateway,
    session::Sessions,
    streams::Streams,
    tokens::Tokens,
    upload::Room,
    upstream::{POD_PORT, Upstreams},
};
use crate::{
    cluster::{
        Calls, GatewayCaches, GatewayKeys, KeysError, Reviews, WATCHED_BY_GATEWAY, Wakes, client_for_calls,
        client_for_watches,
    },
    server::{Shown, serve as serve_health},
    telemetry::{Freshness, GatewayMetrics, Metrics},
    trust::KeyRing,
};

/// Whoever opened a stream may lose the right to it while it is open.
pub const ASK_AGAIN: Duration = Duration::from_secs(60);
/// How often kept connections and open streams are looked through.
const SWEEP: Duration = Duration::from_secs(2);
/// How often the keys are read: a rotation leaves 120 s.
const KEYS_PERIOD: Duration = Duration::from_secs(30);
/// Pause between attempts to read the keys at the start.
const KEYS_RETRY: Duration = Duration::from_secs(1);
/// Streams asked about at once.
const ASKED_AT_ONCE: usize = 16;
/// How often open sockets are counted at the end.
const ENDED_PACE: Duration = Duration::from_millis(100);
/// What is broken off at the end gets this long to notice.
const BREAK_LIMIT: Duration = Duration::from_secs(2);

/// What a gateway needs to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the keys.
    pub namespace: String,
    /// Suffix of host names.
    pub domain: Option<String>,
    /// Addresses that pods can have.
    pub pod_cidrs: Vec<IpNet>,
    /// Port of pods: [`POD_PORT`].
    pub pod_port: u16,
    /// Whether tokens for the API server are taken.
    pub accept_cluster_tokens: bool,
    /// Connections, at most.
    pub max_connections: usize,
    /// Waiting requests, at most.
    pub max_held_requests: usize,
    /// Bytes of a body, at most.
    pub max_body_bytes: u64,
    /// Rights to open streams are asked for again after this long: [`ASK_AGAIN`].
    pub ask_again: Duration,
    /// From "not ready" to the first refused connection.
    pub drain_delay: Duration,
    /// For what is open then.
    pub drain: Duration,
}

impl From<&GatewayArguments> for Settings {
    fn from(arguments: &GatewayArguments) -> Self {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            namespace: arguments.place.namespace.clone(),
            domain: arguments.domain.clone(),
            pod_cidrs: arguments.pod_cidrs.clone(),
            pod_port: POD_PORT,
            accept_cluster_tokens: arguments.accept_cluster_tokens,
            max_connections: count(arguments.max_connections),
            max_held_requests: count(arguments.max_held_requests),
            max_body_bytes: arguments.max_body_bytes,
            ask_again: ASK_AGAIN,
            drain_delay: Duration::from_secs(arguments.drain_delay_seconds.into()),
            drain: Duration::from_secs(arguments.drain_seconds.into()),
        }
    }
}

/// Why a gateway could not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// No client of the API server.
    #[error("cannot make a client of the API server")]
    Client(#[source] kube::Error),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Keys that cannot be used: no restart helps.
    #[error(transparent)]
    Keys(KeysError),
    /// A task that must run for ever has ended.
    #[error("a watch has ended")]
    WatchEnded,
}

impl GatewayError {
    /// Stable word for logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Client(_) => "NoClient",
            Self::Listen { .. } => "ListenFailed",
            Self::Keys(_) => "KeysUnusable",
            Self::WatchEnded => "WatchEnded",
        }
    }
}

/// The open ports.
#[derive(Debug)]
pub struct Listeners {
    /// For callers.
    pub callers: TcpListener,
    /// For health, readiness and metrics.
    pub health: TcpListener,
}

/// Opens the ports. Separate from [`run`], so that tests can use port 0.
pub async fn listen(callers: SocketAddr, health: SocketAddr) -> Result<Listeners, GatewayError> {
    let bind =
        async |address| TcpListener::bind(address).await.map_err(|source| GatewayError::Listen { address, source });
    Ok(Listeners { callers: bind(callers).await?, health: bind(health).await? })
}

/// What is there before keys are.
struct Parts {
    metrics: Arc<Metrics>,
    gateway_metrics: Arc<GatewayMetrics>,
    freshness: Arc<Freshness>,
    caches: GatewayCaches,
    streams: Arc<Streams>,
    upstreams: Arc<Upstreams>,
    flights: Arc<Flights>,
    keys: GatewayKeys,
    reviews: Reviews,
}

/// Runs the gateway until `stop` is cancelled; then it is not ready, and open requests end within the limits of `settings`.
pub async fn run(
    config: Config,
    settings: Settings,
    listeners: Listeners,
    metrics: Arc<Metrics>,
    gateway_metrics: Arc<GatewayMetrics>,
    stop: CancellationToken,
) -> Result<(), GatewayError> {
    let client = client_for_calls(&config).map_err(GatewayError::Client)?;
    let freshness = Arc::new(Freshness::new(&WATCHED_BY_GATEWAY));
    let watch_client = client_for_watches(&config, Arc::clone(&freshness)).map_err(GatewayError::Client)?;
    let calls = Calls::new(Arc::clone(&metrics));
    let caches = GatewayCaches::default();
    let upstreams = Upstreams::new(settings.pod_cidrs.clone(), settings.pod_port);
    let wakes = Wakes::new(client.clone(), calls.clone(), &caches);
    let parts = Parts {
        flights: Flights::new(caches.clone(), wakes, Arc::clone(&upstreams), Arc::clone(&gateway_metrics)),
        keys: GatewayKeys::new(client.clone(), calls.clone(), &settings.namespace),
        reviews: Reviews::new(client, calls),
        streams: Streams::new(settings.ask_again),
        metrics,
        gateway_metrics,
        freshness,
        caches,
        upstreams,
    };
    let flights = Arc::clone(&parts.flights);
    let mut watches =
        parts.caches.watch(&watch_client, &parts.freshness, &parts.metrics, move |key| flights.changed(&key));
    let health_stop = CancellationToken::new();
    let health = serve_health(listeners.health, shown(&parts), health_stop.clone().cancelled_owned());
    let health = tokio::spawn(health);
    let result = tokio::select! {
        _ = watches.join_next() => Err(GatewayError::WatchEnded),
        result = serve(&parts, &settings, listeners.callers, &stop) => result,
    };
    health_stop.cancel();
    match health.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the health server ended with an error");
        }
        Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the health server ended by a defect"),
    }
    result
}

fn shown(parts: &Parts) -> Shown {
    let (streams, gateway_metrics) = (Arc::clone(&parts.streams), Arc::clone(&parts.gateway_metrics));
    let refresh = move |_: &Metrics| gateway_metrics.streams(streams.count());
    Shown { metrics: Arc::clone(&parts.metrics), freshness: Arc::clone(&parts.freshness), refresh: Arc::new(refresh) }
}

async fn serve(
    parts: &Parts,
    settings: &Settings,
    listener: TcpListener,
    stop: &CancellationToken,
) -> Result<(), GatewayError> {
    let Some(keys) = keys_at_start(parts, stop).await? else { return Ok(()) };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        // Before that, every workspace looks as if it did not exist.
        () = parts.freshness.all_listed() => {}
    }
    let gateway = Arc::new(gateway(parts, settings, keys));
    parts.freshness.started();
    let mut tasks = JoinSet::new();
    tasks.spawn(now_and_then(Arc::clone(&gateway), Arc::clone(&parts.upstreams), Arc::clone(&parts.streams)));
    tasks.spawn(follow_keys(Arc::clone(&gateway), parts.keys.clone()));
    let connections = TaskTracker::new();
    let ending = CancellationToken::new();
    let accepting =
        accept(listener, Arc::clone(&gateway), settings.max_connections, connections.clone(), ending.clone());
    let accepting = tokio::spawn(accepting);
    stop.cancelled().await;
    tracing::info!(streams = parts.streams.count(), connections = connections.len(), "asked to end: no longer ready");
    parts.freshness.starting("the gateway is ending".to_owned());
    sleep(settings.drain_delay).await;
    accepting.abort();
    ending.cancel();
    connections.close();
    let ended = async {
        connections.wait().await;
        // What changed its protocol is no connection any more.
        while parts.streams.count() > 0 {
            sleep(ENDED_PACE).await;
        }
    };
    if timeout(settings.drain, ended).await.is_err() {
        tracing::info!(streams = parts.streams.count(), "what is still open is broken off");
        parts.streams.end_all();
        if timeout(BREAK_LIMIT, connections.wait()).await.is_err() {
            tracing::warn!(connections = connections.len(), "connections are cut off");
        }
    }
    Ok(())
}

fn gateway(parts: &Parts, settings: &Settings, keys: Arc<KeyRing>) -> Gateway {
    Gateway {
        domain: settings.domain.clone(),
        max_body_bytes: settings.max_body_bytes,
        caches: parts.caches.clone(),
        identities: Identities::new(parts.reviews.clone(), settings.accept_cluster_tokens),
        access: Access::new(parts.reviews.clone()),
        sessions: Sessions::new(Arc::clone(&keys)),
        tokens: Tokens::new(keys),
        flights: Arc::clone(&parts.flights),
        waiting: Semaphore::new(settings.max_held_requests),
        forwarding: Forwarding {
            upstreams: Arc::clone(&parts.upstreams),
            streams: Arc::clone(&parts.streams),
            metrics: Arc::clone(&parts.gateway_metrics),
        },
        room: Room::default(),
        metrics: Arc::clone(&parts.gateway_metrics),
    }
}

/// Reads the keys. What passes by itself (no operator yet, no API server) is waited for.
async fn keys_at_start(parts: &Parts, stop: &CancellationToken) -> Result<Option<Arc<KeyRing>>, GatewayError> {
    let mut last = String::new();
    loop {
        let result = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            result = parts.keys.read() => result,
        };
        match result {
            Ok(ring) => return Ok(Some(Arc::new(ring))),
            Err(error @ KeysError::Content { .. }) => return Err(GatewayError::Keys(error)),
            Err(error) => {
                let text = error.to_string();
                if text != last {
                    tracing::warn!(error = text, "no keys yet, trying again");
                    parts.freshness.starting(text.clone());
                    last = text;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = sleep(KEYS_RETRY) => {}
        }
    }
}

/// Takes over other keys when the operator hands out some.
async fn follow_keys(gateway: Arc<Gateway>, keys: GatewayKeys) {
    loop {
        sleep(KEYS_PERIOD).await;
        match keys.read().await {
            Ok(ring) => {
                let ring = Arc::new(ring);
                gateway.tokens.use_keys(Arc::clone(&ring));
                gateway.sessions.use_keys(ring);
            }
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "the keys were not read again"),
        }
    }
}

/// Drops idle connections to pods, and asks again about streams that have been open for a while.
async fn now_and_then(gateway: Arc<Gateway>, upstreams: Arc<Upstreams>, streams: Arc<Streams>) {
    let mut ticks = interval(SWEEP);
    loop {
        ticks.tick().await;
        upstreams.sweep();
        let ask = async |(id, opened)| {
            if !gateway.still_permitted(&opened).await {
                streams.end(id);
            }
        };
        futures::stream::iter(streams.due(Instant::now())).for_each_concurrent(ASKED_AT_ONCE, ask).await;
    }
}
