//! How long ago the API server last answered each watch.
//!
//! The watcher reconnects silently, so an idle but healthy watch brings no event for hours. What does come, at least once per
//! watch timeout, is a response: this layer notes it. A watch that is refused or broken is known at once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::http;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tower::{Layer, Service};

use super::Kind;

/// The server ends each watch after this long. Load balancers cut idle connections at 240 s and more; ours ends before.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(180);
/// 180 s watch + 5 s until the watcher gives a silent one up + 30 s backoff, and some air.
const STALE_AFTER: Duration = Duration::from_secs(240);

#[derive(Clone, Debug, Default)]
struct Watch {
    answered: Option<Instant>,
    listed: bool,
    failure: Option<String>,
}

/// State of every watch of this process.
#[derive(Debug)]
pub struct Freshness {
    watches: Mutex<BTreeMap<Kind, Watch>>,
    starting: Mutex<Option<String>>,
    progress: Notify,
}

impl Freshness {
    /// Expects one watch for each of `kinds`; until all have listed, the process is not ready.
    pub fn new(kinds: &[Kind]) -> Self {
        Self {
            watches: Mutex::new(kinds.iter().map(|kind| (*kind, Watch::default())).collect()),
            starting: Mutex::new(Some("starting".to_owned())),
            progress: Notify::new(),
        }
    }

    /// What the start waits for, for readiness and people.
    pub fn starting(&self, waits_for: String) {
        *self.starting.lock().unwrap_or_else(PoisonError::into_inner) = Some(waits_for);
    }

    /// The start is over.
    pub fn started(&self) {
        *self.starting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns when every watch has completed its first list.
    pub async fn all_listed(&self) {
        loop {
            let progress = self.progress.notified();
            if self.lock().values().all(|watch| watch.listed) {
                return;
            }
            progress.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, Watch>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch that is answered after its first list has no failure any more, also where it is quiet and no event says so.
    fn answered(&self, plural: &str, is_watch: bool) {
        if let Some(kind) = kind_of(plural)
            && let Some(watch) = self.lock().get_mut(&kind)
        {
            watch.answered = Some(Instant::now());
            if is_watch && watch.listed {
                watch.failure = None;
            }
        }
    }

    /// The first list of a watch is complete.
    pub fn listed(&self, kind: Kind) {
        if let Some(watch) = self.lock().get_mut(&kind) {
            watch.listed = true;
            watch.failure = None;
        }
        self.progress.notify_waiters();
    }

    /// An event came through: an earlier failure is over.
    pub fn recovered(&self, kind: Kind) {
        if let Some(watch) = self.lock().get_mut(&kind) {
            watch.failure = None;
        }
    }

    /// The watch failed; true when this is news, so that it is logged once and not at every attempt.
    pub fn failed(&self, kind: Kind, failure: String) -> bool {
        let mut watches = self.lock();
        let Some(watch) = watches.get_mut(&kind) else { return true };
        let news = watch.failure.as_ref() != Some(&failure);
        watch.failure = Some(failure);
        news
    }

    /// Age of each watch, for metrics.
    pub fn ages(&self) -> Vec<(Kind, Duration)> {
        self.lock().iter().filter_map(|(kind, watch)| watch.answered.map(|at| (*kind, at.elapsed()))).collect()
    }

    /// Why the process should not be called ready: one line per watch that has not listed, is refused or is stale.
    pub fn problems(&self) -> Vec<String> {
        let starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let watches = self.lock();
        let watches = watches.iter().filter_map(|(kind, watch)| {
            let stale = watch.answered.map(|at| at.elapsed()).filter(|age| *age > STALE_AFTER);
            match (&watch.failure, watch.listed, stale) {
                (Some(failure), _, _) => Some(format!("watch of {kind:?}: {failure}")),
                (None, false, _) => Some(format!("watch of {kind:?}: first list is not complete")),
                (None, true, Some(age)) => Some(format!("watch of {kind:?}: no answer for {} s", age.as_secs())),
                (None, true, None) => None,
            }
        });
        starting.into_iter().chain(watches).collect()
    }
}

fn kind_of(plural: &str) -> Option<Kind> {
    match plural {
        "agentworkspaces" => Some(Kind::AgentWorkspace),
        "pods" => Some(Kind::Pod),
        "persistentvolumeclaims" => Some(Kind::PersistentVolumeClaim),
        "services" => Some(Kind::Service),
        "agentworkspacewakes" => Some(Kind::AgentWorkspaceWake),
        "networkpolicies" => Some(Kind::NetworkPolicy),
        _ => None,
    }
}

/// Notes every successful answer by the last part of the request's path.
#[derive(Clone, Debug)]
pub struct FreshnessLayer {
    freshness: Arc<Freshness>,
}

impl FreshnessLayer {
    /// Writes into `freshness`.
    pub fn new(freshness: Arc<Freshness>) -> Self {
        Self { freshness }
    }
}

impl<S> Layer<S> for FreshnessLayer {
    type Service = FreshnessService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FreshnessService { inner, freshness: Arc::clone(&self.freshness) }
    }
}

/// See [`FreshnessLayer`].
#[derive(Debug)]
pub struct FreshnessService<S> {
    inner: S,
    freshness: Arc<Freshness>,
}

impl<S, Q, B> Service<http::Request<Q>> for FreshnessService<S>
where
    S: Service<http::Request<Q>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Q>) -> Self::Future {
        let plural = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let freshness = Arc::clone(&self.freshness);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            if response.status().is_success() {
                freshness.answered(&plural, is_watch);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answered_watch_is_over_its_failure_and_an_answered_list_is_not() {
        let freshness = Arc::new(Freshness::new(&[Kind::AgentWorkspaceWake]));
        freshness.started();
        freshness.listed(Kind::AgentWorkspaceWake);
        freshness.failed(Kind::AgentWorkspaceWake, "storage is (re)initializing".to_owned());
        let server = tower::service_fn(|_: http::Request<()>| async { Ok::<_, ()>(http::Response::new(())) });
        let mut client = FreshnessLayer::new(Arc::clone(&freshness)).layer(server);
        let mut ask = async |query: &str| {
            let uri = format!("/apis/agents.boring.dev/v1alpha1/agentworkspacewakes?{query}");
            client.call(http::Request::get(uri).body(()).expect("a request")).await.expect("an answer");
            freshness.problems()
        };
        let failure = vec!["watch of AgentWorkspaceWake: storage is (re)initializing".to_owned()];
        assert_eq!(ask("limit=500").await, failure);
        assert_eq!(ask("limit=500&watch=true").await, Vec::<String>::new());
    }
}
