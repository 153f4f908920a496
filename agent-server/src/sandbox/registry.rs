//! The commands whose processes still run.
//!
//! Owns the count, the order to stop and the limits of all commands together. Must not know how a command is ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::limits::WorkspaceLimits;
use super::process_tree::Usage;

/// All trees of one sandbox.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    limits: WorkspaceLimits,
    running: Mutex<Running>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Running {
    next: u64,
    trees: BTreeMap<u64, Tree>,
}

struct Tree {
    stop: CancellationToken,
    exceeded: watch::Sender<Option<String>>,
    usage: Usage,
}

/// Membership of one tree; it ends with this value.
pub struct Registration {
    registry: Registry,
    id: u64,
    stop: CancellationToken,
    exceeded: watch::Receiver<Option<String>>,
}

impl Registry {
    /// An empty one.
    pub fn new(limits: WorkspaceLimits) -> Self {
        Self(Arc::new(Inner { limits, running: Mutex::default(), count: watch::Sender::new(0) }))
    }

    /// Adds a tree.
    pub fn register(&self) -> Registration {
        let (stop, exceeded) = (CancellationToken::new(), watch::Sender::new(None));
        let mut running = self.running();
        let id = running.next;
        running.next += 1;
        let registration =
            Registration { registry: self.clone(), id, stop: stop.clone(), exceeded: exceeded.subscribe() };
        running.trees.insert(id, Tree { stop, exceeded, usage: Usage::default() });
        self.0.count.send_replace(running.trees.len());
        registration
    }

    /// How many trees there are.
    pub fn len(&self) -> usize {
        self.running().trees.len()
    }

    /// Asks every tree to end.
    pub fn stop_all(&self) {
        self.running().trees.values().for_each(|tree| tree.stop.cancel());
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

    /// Tells what the tree uses now. If all together use more than they may, the largest tree is to end: it frees most,
    /// and it is most likely the one that grows.
    pub fn report(&self, usage: Usage) {
        let limits = self.registry.0.limits;
        let mut running = self.registry.running();
        if let Some(tree) = running.trees.get_mut(&self.id) {
            tree.usage = usage;
        }
        let trees = || running.trees.values().filter(|tree| tree.exceeded.borrow().is_none());
        let memory: u64 = trees().map(|tree| tree.usage.memory_bytes).sum();
        let processes: usize = trees().map(|tree| tree.usage.processes).sum();
        let (largest, message) = if limits.memory_bytes.is_some_and(|allowed| memory > allowed) {
            let allowed = limits.memory_bytes.unwrap_or_default() >> 20;
            let message = format!("all commands of the workspace together used more than {allowed} MiB of memory");
            (trees().max_by_key(|tree| tree.usage.memory_bytes), message)
        } else if processes > limits.processes {
            let message =
                format!("all commands of the workspace together had more than {} processes", limits.processes);
            (trees().max_by_key(|tree| tree.usage.processes), message)
        } else {
            return;
        };
        if let Some(tree) = largest {
            tree.exceeded.send_replace(Some(message));
        }
    }

    /// Waits until the tree is to end because of the limits of all, and tells the limit.
    pub async fn exceeded(&self) -> String {
        let mut exceeded = self.exceeded.clone();
        loop {
            if let Some(limit) = exceeded.borrow_and_update().clone() {
                return limit;
            }
            if exceeded.changed().await.is_err() {
                // The sender lives in the registry as long as this registration does.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut running = self.registry.running();
        running.trees.remove(&self.id);
        self.registry.0.count.send_replace(running.trees.len());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_largest_tree_ends_when_all_together_use_too_much() {
        let registry = Registry::new(WorkspaceLimits { processes: 10, memory_bytes: Some(100 << 20) });
        let (small, large) = (registry.register(), registry.register());
        let usage = |processes, mebibytes: u64| Usage { processes, memory_bytes: mebibytes << 20 };
        large.report(usage(1, 70));
        small.report(usage(4, 30));
        assert!(small.exceeded().now_or_never().is_none() && large.exceeded().now_or_never().is_none());
        small.report(usage(4, 31));
        let message = "all commands of the workspace together used more than 100 MiB of memory";
        assert_eq!(large.exceeded().await, message);
        // The one that ends already no longer counts.
        small.report(usage(10, 31));
        assert!(small.exceeded().now_or_never().is_none());
        drop(large);
        small.report(usage(11, 31));
        assert_eq!(small.exceeded().await, "all commands of the workspace together had more than 10 processes");
        assert_eq!(registry.len(), 1);
    }
}
