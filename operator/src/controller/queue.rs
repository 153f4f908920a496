//! Which workspace is next: each key at most once, never two passes over one key at a time, each at its time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::cluster::WorkspaceKey;

#[derive(Debug, Default)]
struct State {
    /// Due times of keys that are not running, by key and in order.
    due: HashMap<WorkspaceKey, Instant>,
    order: BTreeSet<(Instant, WorkspaceKey)>,
    running: HashSet<WorkspaceKey>,
    /// Keys that changed while running.
    again: HashSet<WorkspaceKey>,
}

impl State {
    fn schedule(&mut self, key: WorkspaceKey, at: Instant) {
        match self.due.get(&key) {
            Some(due) if *due <= at => return,
            Some(due) => {
                let old = (*due, key.clone());
                self.order.remove(&old);
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    /// The first key if it is due, else when it will be.
    fn pop(&mut self, now: Instant) -> Result<WorkspaceKey, Option<Instant>> {
        match self.order.first() {
            Some((at, _)) if *at <= now => {}
            other => return Err(other.map(|(at, _)| *at)),
        }
        let (_, key) = self.order.pop_first().expect("there is a first element");
        self.due.remove(&key);
        self.running.insert(key.clone());
        Ok(key)
    }
}

/// The work that is due.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something about this workspace changed.
    pub fn add(&self, key: WorkspaceKey) {
        let mut state = self.lock();
        if state.running.contains(&key) {
            state.again.insert(key);
        } else {
            state.schedule(key, Instant::now());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits for the next key that is due and marks it as running. Nothing is lost when the future is dropped before it is ready.
    pub async fn next(&self) -> WorkspaceKey {
        loop {
            let wait = match self.lock().pop(Instant::now()) {
                Ok(key) => return key,
                Err(wait) => wait,
            };
            match wait {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// The pass over this key looks at the caches now: what changed before needs no pass of its own.
    pub fn observing(&self, key: &WorkspaceKey) {
        self.lock().again.remove(key);
    }

    /// The pass over this key is over; the next one is due after `pause`, or at once if something changed meanwhile.
    pub fn done(&self, key: WorkspaceKey, pause: Option<Duration>) {
        let mut state = self.lock();
        state.running.remove(&key);
        let now = Instant::now();
        let at = if state.again.remove(&key) { Some(now) } else { pause.map(|pause| now + pause) };
        if let Some(at) = at {
            state.schedule(key, at);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Keys that are due and have not begun.
    pub fn depth(&self) -> usize {
        let now = Instant::now();
        let state = self.lock();
        state.order.iter().take_while(|(at, _)| *at <= now).count() + state.again.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn key(name: &str) -> WorkspaceKey {
        WorkspaceKey { namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    async fn nothing_within(queue: &Queue, seconds: u64) -> bool {
        timeout(Duration::from_secs(seconds), queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_added_often_is_handed_out_once() {
        let queue = Queue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!((queue.depth(), queue.next().await, queue.depth()), (1, key("a"), 0));
        queue.done(key("a"), None);
        assert!(nothing_within(&queue, 3600).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_changes_while_it_runs_runs_again_after_it_is_done_and_not_beside() {
        let queue = Queue::default();
        queue.add(key("a"));
        let running = queue.next().await;
        queue.add(key("a"));
        assert!(nothing_within(&queue, 60).await);
        queue.done(running, Some(Duration::from_secs(3600)));
        assert_eq!(timeout(Duration::from_secs(1), queue.next()).await.unwrap(), key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_the_running_pass_has_seen_needs_no_pass_of_its_own() {
        let queue = Queue::default();
        queue.add(key("a"));
        let running = queue.next().await;
        queue.add(key("a"));
        queue.observing(&running);
        queue.done(running, None);
        assert!(nothing_within(&queue, 3600).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_kept_and_a_change_ends_it() {
        let queue = Queue::default();
        queue.add(key("a"));
        let running = queue.next().await;
        queue.done(running, Some(Duration::from_secs(30)));
        assert!(nothing_within(&queue, 29).await);
        assert_eq!(queue.next().await, key("a"));
        queue.done(key("a"), Some(Duration::from_secs(30)));
        queue.add(key("a"));
        assert_eq!(timeout(Duration::from_secs(1), queue.next()).await.unwrap(), key("a"));
        queue.done(key("a"), None);
        assert!(nothing_within(&queue, 3600).await, "the pause of the earlier pass is forgotten");
    }
}
