//! Answers that stay open: event streams and connections that changed their protocol.
//!
//! Owns their list and their end. Whoever opened one may lose the right to it while it is open, so `serve` asks again for each
//! that is older than a minute. Must not know how rights are decided.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::identity::Credential;
use crate::cluster::WorkspaceKey;

/// One open stream.
pub struct OpenStream {
    list: Arc<Streams>,
    id: u64,
    end: CancellationToken,
}

impl OpenStream {
    /// Resolves when the stream must end.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.end.clone().cancelled_owned()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.list.lock().remove(&self.id);
    }
}

/// Who opened a stream to what.
#[derive(Clone)]
pub struct Opened {
    /// What the caller proved itself with.
    pub credential: Credential,
    /// The workspace.
    pub key: WorkspaceKey,
    /// Its UID: a workspace made anew under the name is another one.
    pub workspace_uid: String,
}

struct Entry {
    opened: Opened,
    asked: Instant,
    end: CancellationToken,
}

/// All open streams of a gateway.
pub struct Streams {
    open: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
    all: CancellationToken,
    ask_again: Duration,
}

impl Streams {
    /// None yet. Rights to a stream are asked for again after `ask_again`.
    pub fn new(ask_again: Duration) -> Arc<Self> {
        let (open, next, all) = (Mutex::default(), AtomicU64::new(0), CancellationToken::new());
        Arc::new(Self { open, next, all, ask_again })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one; it leaves the list when it is dropped.
    pub fn open(self: &Arc<Self>, opened: Opened) -> Arc<OpenStream> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let end = self.all.child_token();
        self.lock().insert(id, Entry { opened, asked: Instant::now(), end: end.clone() });
        Arc::new(OpenStream { list: Arc::clone(self), id, end })
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Those whose rights were last asked for that long ago; they count as asked now.
    pub fn due(&self, now: Instant) -> Vec<(u64, Opened)> {
        let mut open = self.lock();
        let due = open.iter_mut().filter(|(_, entry)| now.saturating_duration_since(entry.asked) >= self.ask_again);
        due.map(|(id, entry)| {
            entry.asked = now;
            (*id, entry.opened.clone())
        })
        .collect()
    }

    /// Ends one.
    pub fn end(&self, id: u64) {
        if let Some(entry) = self.lock().get(&id) {
            entry.end.cancel();
        }
    }

    /// Ends all, and those that are opened later.
    pub fn end_all(&self) {
        self.all.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK_AGAIN: Duration = Duration::from_secs(60);

    fn opened() -> Opened {
        Opened {
            credential: Credential::bearer("token").unwrap(),
            key: WorkspaceKey { namespace: "a".to_owned(), name: "alice".to_owned() },
            workspace_uid: "1".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_stream_is_asked_about_once_a_minute_and_leaves_the_list_when_it_ends() {
        let streams = Streams::new(ASK_AGAIN);
        let stream = streams.open(opened());
        let start = Instant::now();
        assert!(streams.due(start).is_empty());
        let due = streams.due(start + ASK_AGAIN);
        assert_eq!(due.len(), 1);
        assert!(streams.due(start + ASK_AGAIN).is_empty());
        streams.end(due[0].0);
        stream.ended().await;
        drop(stream);
        assert_eq!(streams.count(), 0);
    }

    #[tokio::test]
    async fn the_end_of_all_ends_later_ones_too() {
        let streams = Streams::new(ASK_AGAIN);
        streams.end_all();
        streams.open(opened()).ended().await;
    }
}
