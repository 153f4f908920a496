//! The end of the server: how long each step may take, and what is called to close running turns.
//!
//! Owns the budget and the list of closers. Must not know sessions: they register a closure.
//!
//! For the other parts: `shutdown.on_close("sessions", move |why| Box::pin(async move { … }))` once, at composition.
//! The closure must end every running turn with a marked abort and flush; it is cut off after [`CLOSE_BUDGET`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;

/// Time that the closers get, and then again open connections and commands.
pub const CLOSE_BUDGET: Duration = Duration::from_secs(2);
/// Whole shutdown outside a cluster.
const STANDALONE_BUDGET: Duration = Duration::from_secs(5);
/// The operator's grace period minus this is the whole shutdown in a pod.
const GRACE_RESERVE: Duration = Duration::from_secs(5);
/// The whole shutdown in a pod whose grace period is no longer than the reserve.
const LEAST_BUDGET: Duration = Duration::from_secs(1);

/// The whole shutdown: after this the process ends whatever still runs.
pub fn whole_budget(stop_grace: Option<Duration>) -> Duration {
    stop_grace.map_or(STANDALONE_BUDGET, |grace| grace.saturating_sub(GRACE_RESERVE).max(LEAST_BUDGET))
}

/// How long running turns may go on after SIGTERM before they are closed. In a pod: the whole shutdown minus what
/// closers, and then connections and commands, get. Alone: at once, since the user at the keyboard waits.
pub fn turn_grace(stop_grace: Option<Duration>) -> Duration {
    if stop_grace.is_none() {
        return Duration::ZERO;
    }
    whole_budget(stop_grace).saturating_sub(2 * CLOSE_BUDGET)
}

/// Why running turns are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// The operator drains the workspace.
    Drain,
    /// The server ends.
    Shutdown,
}

type Closer = Box<dyn Fn(Closing) -> BoxFuture<'static, ()> + Send + Sync>;

/// What is called, in order of registration, to close running turns.
#[derive(Default)]
pub struct Shutdown {
    closers: Mutex<Vec<(&'static str, Closer)>>,
}

impl Shutdown {
    /// Registers a closer; `name` is for the log. It may be called more than once: by a drain and again at the end.
    pub fn on_close(
        &self,
        name: &'static str,
        closer: impl Fn(Closing) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        self.closers.lock().unwrap_or_else(PoisonError::into_inner).push((name, Box::new(closer)));
    }

    /// Calls every closer at once, all of them within `budget`; one that takes longer is named in the log.
    pub async fn close(&self, why: Closing, budget: Duration) {
        let running: Vec<_> = {
            let closers = self.closers.lock().unwrap_or_else(PoisonError::into_inner);
            closers.iter().map(|(name, closer)| (*name, closer(why))).collect()
        };
        let running = running.into_iter().map(|(name, future)| async move {
            if tokio::time::timeout(budget, future).await.is_err() {
                tracing::error!(part = name, ?budget, "did not close in time and was cut off");
            }
        });
        futures::future::join_all(running).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{Closing, Shutdown, turn_grace, whole_budget};

    #[test]
    fn turns_get_the_grace_period_minus_reserve_and_closing_time() {
        let budgets = |grace| (whole_budget(grace), turn_grace(grace));
        let seconds = Duration::from_secs;
        assert_eq!(budgets(Some(seconds(60))), (seconds(55), seconds(51)));
        assert_eq!(budgets(Some(seconds(3))), (seconds(1), seconds(0)));
        assert_eq!(budgets(None), (seconds(5), seconds(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closer_that_hangs_does_not_keep_the_others_from_closing() {
        let closed = Arc::new(AtomicUsize::new(0));
        let shutdown = Shutdown::default();
        shutdown.on_close("hangs", |_| Box::pin(std::future::pending()));
        shutdown.on_close("closes", {
            let closed = closed.clone();
            move |_| {
                let closed = closed.clone();
                Box::pin(async move {
                    closed.fetch_add(1, Ordering::SeqCst);
                })
            }
        });
        shutdown.close(Closing::Drain, Duration::from_secs(2)).await;
        assert_eq!(closed.load(Ordering::SeqCst), 1);
    }
}
