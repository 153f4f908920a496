//! The server before this one: a pod that was deleted by force is replaced while its container still ends.
//!
//! Owns the lock that tells whether another server uses the state, and how long a start waits for it. Must not know what
//! the state holds. Each session has a lock of its own, so nothing is written by two servers even when the wait is over.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::storage;

/// Name of the lock file in the state directory.
const LOCK_FILE: &str = "server.lock";
/// Pause between looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a start in a pod waits. The kubelet lets a container of a pod that is gone live for at least 2 s
/// (`minimumGracePeriodInSeconds`) and a server ends within 5 s; twice that covers a busy node. A server that lives longer
/// keeps its own sessions (423), the others can be used.
pub const LIMIT: Duration = Duration::from_secs(15);

/// Held for as long as the server runs; the system lets go of it however the process ends.
#[derive(Debug)]
pub struct StateLock {
    held: Option<File>,
}

impl StateLock {
    /// Whether no other server uses the state.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

/// Takes the lock of the state directory, which exists; waits up to `limit` for a server that holds it.
pub async fn take_over(state_dir: &Path, limit: Duration) -> io::Result<StateLock> {
    let file =
        storage::private_file().read(true).write(true).create(true).truncate(false).open(state_dir.join(LOCK_FILE))?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if since.elapsed() >= limit => {
                tracing::warn!("another server uses the same state directory; sessions it writes are locked here");
                return Ok(StateLock { held: None });
            }
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
    let waited = since.elapsed();
    if waited >= LOOK_AGAIN {
        tracing::info!(milliseconds = waited.as_millis(), "waited for the server before this one to end");
    }
    Ok(StateLock { held: Some(file) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LIMIT, take_over};

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_until_the_server_before_it_has_ended() {
        let state = tempfile::tempdir().expect("folder");
        let former = take_over(state.path(), Duration::ZERO).await.expect("lock");
        let folder = state.path().to_owned();
        let next = tokio::spawn(async move { take_over(&folder, LIMIT).await });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!next.is_finished(), "the former server still runs");
        drop(former);
        assert!(next.await.expect("no panic").expect("lock").is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_does_not_keep_the_next_one_from_starting() {
        let state = tempfile::tempdir().expect("folder");
        let _former = take_over(state.path(), Duration::ZERO).await.expect("lock");
        assert!(!take_over(state.path(), LIMIT).await.expect("goes on").is_held());
    }
}
