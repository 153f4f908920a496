//! The server's own storage: private folders and files, and the probe that writes, syncs and removes a file in each folder
//! that the server depends on.
//!
//! Owns the modes of what the server keeps, the probe and its repetition. Must not know what is kept. Many volumes mount read-only or with foreign owners without any error until the
//! first write, so nothing less tells whether they work.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::readiness::Readiness;

/// Pause between probes while one fails.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between probes while all is well: one small write per volume.
const WATCH: Duration = Duration::from_secs(30);
/// A probe that takes longer counts as failed: a mount that hangs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The name begins like the workspace's own temporary files, which are never listed.
const PROBE_PREFIX: &str = ".boring-agent-tmp-probe-";

/// Makes the folders that are missing; only the server's user gets in.
pub fn make_private_dir(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Options of a new file that only the server's user can read. Conversations hold whatever users and files say, and
/// the folder of the state may be one that others can enter.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Writes, syncs and removes a file.
pub fn probe(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!("{PROBE_PREFIX}{}", std::process::id()));
    let mut file = private_file().write(true).create(true).truncate(true).open(&path)?;
    let written = file.write_all(b"probe").and_then(|()| file.sync_all());
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// A folder that the server depends on, with its name for people.
pub type NamedFolder = (&'static str, PathBuf);

/// Makes the folders that are missing, readable by this user only, and probes until all of them work. Each round tells
/// the readiness what it found.
pub async fn until_writable(folders: &[NamedFolder], readiness: &Readiness) {
    loop {
        let failures = probe_all(folders, true).await;
        let failure = failures.into_iter().next().map(|(_, failure)| failure);
        if let Some(failure) = &failure {
            tracing::error!(%failure, "storage");
        }
        let over = failure.is_none();
        readiness.set_storage(failure);
        if over {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Probes again and again for as long as the server runs: a volume that was remounted read-only or hangs is told by the
/// readiness, and its return too. A full one is not: files can be read and removed, and removing them is the remedy.
pub async fn watch(folders: Vec<NamedFolder>, readiness: Arc<Readiness>) {
    loop {
        let failing = readiness.facts().storage_failure.is_some();
        tokio::time::sleep(if failing { RETRY } else { WATCH }).await;
        let failures = probe_all(&folders, false).await;
        let failure = failures.into_iter().find(|(kind, _)| !is_full(*kind)).map(|(_, failure)| failure);
        if let Some(failure) = &failure {
            tracing::error!(%failure, "storage");
        }
        readiness.set_storage(failure);
    }
}

fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What does not work: the kind of error, and a sentence for people.
async fn probe_all(folders: &[NamedFolder], make: bool) -> Vec<(io::ErrorKind, String)> {
    let mut failures = Vec::new();
    for (name, folder) in folders {
        let folder = folder.clone();
        let work = move || {
            if make {
                make_private_dir(&folder)?;
            }
            probe(&folder)
        };
        let probed = tokio::time::timeout(PROBE_TIMEOUT, tokio::task::spawn_blocking(work)).await;
        let (kind, fault) = match probed {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(error))) => (error.kind(), describe(&error)),
            Ok(Err(_)) => (io::ErrorKind::Other, "the probe ended early".into()),
            Err(_) => (io::ErrorKind::TimedOut, format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        };
        failures.push((kind, format!("the {name} volume cannot be written: {fault}")));
    }
    failures
}

/// The kind of error and what usually helps; never a path of the host.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "permission denied; the volume must be writable for the server's user or group (fsGroup)".into()
        }
        io::ErrorKind::ReadOnlyFilesystem => "it is mounted read-only".into(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "no space is left".into(),
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::time::Duration;

    use super::{is_full, probe, until_writable, watch};
    use crate::readiness::Readiness;

    #[test]
    fn a_probe_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("folder");
        probe(dir.path()).expect("writable");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_comes_back_is_seen() {
        let dir = tempfile::tempdir().expect("folder");
        // A file where the folder should be: not even root can make it.
        let state = dir.path().join("state");
        std::fs::write(&state, "").expect("written");
        let readiness = Arc::new(Readiness::new());
        let mut follower = readiness.subscribe();
        let watching = tokio::spawn({
            let (state, readiness) = (state.clone(), readiness.clone());
            async move { until_writable(&[("state", state)], &readiness).await }
        });
        follower.changed().await.expect("open");
        let failure = readiness.facts().storage_failure.expect("a failure");
        assert!(failure.starts_with("the state volume cannot be written: "), "{failure}");
        assert!(!failure.contains(dir.path().to_str().expect("text")), "{failure}");
        std::fs::remove_file(&state).expect("removed");
        tokio::time::timeout(Duration::from_mins(1), watching).await.expect("in time").expect("no panic");
        assert_eq!(readiness.facts().storage_failure, None);
        let mode = std::fs::metadata(&state).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_fails_later_is_told_and_its_return_too() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = dir.path().join("work");
        std::fs::create_dir(&folder).expect("folder");
        let readiness = Arc::new(Readiness::new());
        let mut follower = readiness.subscribe();
        let watching = tokio::spawn(watch(vec![("workspace", folder.clone())], readiness.clone()));
        std::fs::rename(&folder, dir.path().join("away")).expect("renamed");
        follower.wait_for(|facts| facts.storage_failure.is_some()).await.expect("told");
        std::fs::rename(dir.path().join("away"), &folder).expect("renamed");
        follower.wait_for(|facts| facts.storage_failure.is_none()).await.expect("told");
        watching.abort();
        assert!(is_full(std::io::ErrorKind::StorageFull) && !is_full(std::io::ErrorKind::ReadOnlyFilesystem));
    }
}
