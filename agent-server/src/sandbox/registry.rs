//! The commands whose processes still run.
//!
//! Owns the count and the order to stop. Must not know how a command is ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// All trees of one sandbox.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    running: Mutex<Running>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Running {
    next: u64,
    stops: BTreeMap<u64, CancellationToken>,
}

/// Membership of one tree; it ends with this value.
pub struct Registration {
    registry: Registry,
    id: u64,
    stop: CancellationToken,
}

impl Registry {
    /// An empty one.
    pub fn new() -> Self {
        Self(Arc::new(Inner { running: Mutex::default(), count: watch::Sender::new(0) }))
    }

    /// Adds a tree.
    pub fn register(&self) -> Registration {
        let stop = CancellationToken::new();
        let mut running = self.running();
        let id = running.next;
        running.next += 1;
        running.stops.insert(id, stop.clone());
        self.0.count.send_replace(running.stops.len());
        Registration { registry: self.clone(), id, stop }
    }

    /// How many trees there are.
    pub fn len(&self) -> usize {
        self.running().stops.len()
    }

    /// Asks every tree to end.
    pub fn stop_all(&self) {
        self.running().stops.values().for_each(CancellationToken::cancel);
    }

    /// Waits until there is none.
    pub async fn empty(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.0.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // The map is whole after every statement, so a panic elsewhere left nothing half done.
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Cancelled when the tree is to end.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut running = self.registry.running();
        running.stops.remove(&self.id);
        self.registry.0.count.send_replace(running.stops.len());
    }
}
