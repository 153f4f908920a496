//! Wires watches, queue, workers, election and server together, and ends them in order.
//!
//! Owns concurrency and shutdown. Must not know what a reconcile does.

mod election;
mod queue;
mod rotation;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Config;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::AgentClient,
    cluster::{
        Caches, Calls, Cluster, GatewayKeys, Keys, KeysError, WATCHED, WorkspaceKey, client_for_calls,
        client_for_watches, rbac::KEYS_SECRET_NAME,
    },
    crd::Phase,
    observed::Pass,
    plan,
    reconcile::Reconciler,
    server::{Shown, serve},
    telemetry::{Freshness, Metrics},
    trust::{KeyRing, Signer, rotation::Times},
};
use election::Election;
use queue::Queue;
use rotation::Rotation;

/// Workers get this long to end at shutdown: a pass waits at most for one write (12 s), and pods get 30 s by default.
const DRAIN_LIMIT: Duration = Duration::from_secs(15);
/// Pause between attempts to read the keys at the start.
const KEYS_RETRY: Duration = Duration::from_secs(2);
/// Every phase, so that one that empties goes to zero.
const PHASES: [(Phase, &str); 8] = [
    (Phase::Pending, "Pending"),
    (Phase::Starting, "Starting"),
    (Phase::Running, "Running"),
    (Phase::Stopping, "Stopping"),
    (Phase::Sleeping, "Sleeping"),
    (Phase::Stopped, "Stopped"),
    (Phase::Failed, "Failed"),
    (Phase::Terminating, "Terminating"),
];

/// What a controller needs to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of Lease and key Secret.
    pub namespace: String,
    /// Name of this replica.
    pub identity: String,
    /// Whether to wait for the Lease.
    pub leader_election: bool,
    /// Workspaces worked on at once.
    pub concurrency: usize,
    /// What decisions depend on.
    pub plan: plan::Config,
    /// How often key pairs are replaced.
    pub key_rotation: Times,
    /// Over how many seconds, at least, agents of which nothing is known are asked after a start or a handover.
    pub least_spread_seconds: i64,
    /// Called when the Lease is lost; must end the process.
    pub on_lost: fn(),
}

/// Why a controller could not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// No client of the API server.
    #[error("cannot make a client of the API server")]
    Client(#[source] kube::Error),
    /// No client of agent servers.
    #[error("cannot make a client of agent servers")]
    AgentClient(#[source] reqwest::Error),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// No thread for the election.
    #[error("cannot start the leader election")]
    Election(#[source] std::io::Error),
    /// Keys that cannot be used: no restart helps.
    #[error(transparent)]
    Keys(KeysError),
    /// A task that must run for ever has ended.
    #[error("a watch has ended")]
    WatchEnded,
}

impl ControllerError {
    /// Stable word for logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Client(_) => "NoClient",
            Self::AgentClient(_) => "NoAgentClient",
            Self::Listen { .. } => "ListenFailed",
            Self::Election(_) => "ElectionFailed",
            Self::Keys(_) => "KeysUnusable",
            Self::WatchEnded => "WatchEnded",
        }
    }
}

/// Parts that are there before leadership.
struct Parts {
    metrics: Arc<Metrics>,
    freshness: Arc<Freshness>,
    caches: Arc<Caches>,
    queue: Arc<Queue>,
}

/// Binds the server's address. Separate from [`run`], so that tests can use port 0.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ControllerError> {
    TcpListener::bind(address).await.map_err(|source| ControllerError::Listen { address, source })
}

/// Runs the controller until `stop` is cancelled: then no pass begins, those that run end, and the Lease is released.
pub async fn run(
    config: Config,
    settings: Settings,
    listener: TcpListener,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), ControllerError> {
    let parts = Parts {
        metrics,
        freshness: Arc::new(Freshness::new(&WATCHED)),
        caches: Arc::new(Caches::default()),
        queue: Arc::new(Queue::default()),
    };
    let calls = Calls::new(Arc::clone(&parts.metrics));
    let client = client_for_calls(&config).map_err(ControllerError::Client)?;
    let watch_client = client_for_watches(&config, Arc::clone(&parts.freshness)).map_err(ControllerError::Client)?;
    let (always, _) = watch::channel(true);
    let election = if settings.leader_election {
        let start = Election::start(&config, &settings.namespace, &settings.identity, &parts.metrics, settings.on_lost);
        Some(start.map_err(ControllerError::Election)?)
    } else {
        None
    };
    let leading = election.as_ref().map_or_else(|| always.subscribe(), |election| election.leading.clone());
    let server_stop = CancellationToken::new();
    let server = tokio::spawn(serve(listener, shown(&parts, leading.clone()), server_stop.clone().cancelled_owned()));

    let queue = Arc::clone(&parts.queue);
    let mut watches = parts.caches.watch(&watch_client, &parts.freshness, &parts.metrics, move |key| queue.add(key));
    let result = async {
        let keys = Keys::new(client.clone(), calls.clone(), &settings.namespace, KEYS_SECRET_NAME);
        let Some(ring) = keys_at_start(&keys, &parts.freshness, &stop).await? else { return Ok(()) };
        let gateway_keys = GatewayKeys::new(client.clone(), calls.clone(), &settings.namespace);
        parts.freshness.started();
        let cluster = Cluster::new(client, calls, Arc::clone(&parts.caches), &settings.identity);
        let signer = Signer::new(ring);
        let agent = AgentClient::new(signer.clone()).map_err(ControllerError::AgentClient)?;
        if !leads(&parts, leading, &mut watches, &stop).await? {
            return Ok(());
        }
        // Another replica may have led since, and replaced the keys.
        let Some(ring) = keys_at_start(&keys, &parts.freshness, &stop).await? else { return Ok(()) };
        signer.replace(ring);
        let (plan, metrics) = (settings.plan.clone(), Arc::clone(&parts.metrics));
        let reconciler = Arc::new(Reconciler::new(
            cluster,
            agent,
            signer.clone(),
            plan,
            Arc::clone(&metrics),
            settings.least_spread_seconds,
        ));
        let (caches, queue) = (Arc::clone(&parts.caches), Arc::clone(&parts.queue));
        let times = settings.key_rotation;
        let rotation = Rotation { keys, gateway_keys, signer, caches, queue, metrics, times };
        tokio::select! {
            result = work(&parts, reconciler, settings.concurrency, &mut watches, &stop) => result,
            () = rotation.run() => Ok(()),
        }
    }
    .await;
    if let Some(election) = election {
        election.resign().await;
    }
    server_stop.cancel();
    match server.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = &error as &dyn std::error::Error, "the server ended with an error"),
        Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the server ended by a defect"),
    }
    result
}

/// Reads the keys, or makes them. What passes by itself (no API server, no rights yet) is waited for; unusable keys are not.
async fn keys_at_start(
    keys: &Keys,
    freshness: &Freshness,
    stop: &CancellationToken,
) -> Result<Option<KeyRing>, ControllerError> {
    let mut last = String::new();
    loop {
        let result = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            result = keys.read_or_create() => result,
        };
        match result {
            Ok(stored) => return Ok(Some(stored.ring)),
            Err(error @ KeysError::Content { .. }) => return Err(ControllerError::Keys(error)),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                let text = format!("{error}: {cause}");
                if text != last {
                    tracing::error!(error = text, "no key pairs yet, trying again");
                    freshness.starting(text.clone());
                    last = text;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(KEYS_RETRY) => {}
        }
    }
}

/// Waits for leadership and for the first lists; false when told to stop before.
async fn leads(
    parts: &Parts,
    mut leading: watch::Receiver<bool>,
    watches: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<bool, ControllerError> {
    tokio::select! {
        () = stop.cancelled() => Ok(false),
        _ = watches.join_next() => Err(ControllerError::WatchEnded),
        () = async {
            // An error means that the election's thread is gone, and then the process is ending.
            let _ = leading.wait_for(|leading| *leading).await;
            parts.freshness.all_listed().await;
        } => Ok(true),
    }
}

/// Hands out work until told to stop.
async fn work(
    parts: &Parts,
    reconciler: Arc<Reconciler>,
    concurrency: usize,
    watches: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<(), ControllerError> {
    tracing::info!(workspaces = parts.caches.workspaces.len(), concurrency, "the controller works");
    let errors = Arc::new(Mutex::new(HashMap::new()));
    let mut workers = JoinSet::new();
    let result = loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(()),
            _ = watches.join_next() => break Err(ControllerError::WatchEnded),
            Some(ended) = workers.join_next() => report_defect(&ended),
            key = parts.queue.next(), if workers.len() < concurrency => {
                let worker = Worker {
                    reconciler: Arc::clone(&reconciler),
                    metrics: Arc::clone(&parts.metrics),
                    queue: Arc::clone(&parts.queue),
                    errors: Arc::clone(&errors),
                    key: Some(key),
                };
                workers.spawn(worker.run());
            }
        }
    };
    let drained = timeout(DRAIN_LIMIT, async {
        while let Some(ended) = workers.join_next().await {
            report_defect(&ended);
        }
    });
    if drained.await.is_err() {
        tracing::warn!(workers = workers.len(), "passes did not end in time and are cut short");
        workers.shutdown().await;
    }
    result
}

fn report_defect(ended: &Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = error as &dyn std::error::Error, "a reconcile ended by a defect");
    }
}

/// One pass. The key goes back to the queue whatever happens, a panic included.
struct Worker {
    reconciler: Arc<Reconciler>,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    errors: Arc<Mutex<HashMap<WorkspaceKey, u32>>>,
    key: Option<WorkspaceKey>,
}

impl Worker {
    async fn run(mut self) {
        let Some(key) = self.key.clone() else { return };
        let pass = Pass::begin(&self.metrics);
        let result = self.reconciler.reconcile(&key, &|| self.queue.observing(&key)).await;
        let before = self.count_errors(&key, result.is_err());
        let pause = pass.end(&key, &result, before);
        self.key = None;
        self.queue.done(key, pause);
    }

    /// Failed passes in a row before this one.
    fn count_errors(&self, key: &WorkspaceKey, failed: bool) -> u32 {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if failed {
            let count = errors.entry(key.clone()).or_insert(0);
            *count = count.saturating_add(1);
            *count - 1
        } else {
            errors.remove(key);
            0
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let before = self.count_errors(&key, true);
            let pause = Duration::try_from(crate::reconcile::backoff(before + 1, rand::random())).unwrap_or_default();
            self.queue.done(key, Some(pause));
        }
    }
}

/// What the server shows; gauges are computed when somebody looks.
fn shown(parts: &Parts, leading: watch::Receiver<bool>) -> Shown {
    let (caches, queue) = (Arc::clone(&parts.caches), Arc::clone(&parts.queue));
    let refresh = move |metrics: &Metrics| {
        let leads = *leading.borrow();
        metrics.leader(leads);
        metrics.queue_depth(if leads { queue.depth() } else { 0 });
        let mut counts = [0; PHASES.len()];
        if leads {
            caches.workspaces.for_each(|_, workspace| {
                let phase = workspace.status.as_ref().and_then(|status| status.phase);
                if let Some(index) = PHASES.iter().position(|(known, _)| Some(*known) == phase) {
                    counts[index] += 1;
                }
            });
        }
        for ((_, name), count) in PHASES.iter().zip(counts) {
            metrics.workspaces(name, count);
        }
    };
    Shown { metrics: Arc::clone(&parts.metrics), freshness: Arc::clone(&parts.freshness), refresh: Arc::new(refresh) }
}
