//! The server's own storage: private folders and files, and the probe that writes, syncs and removes a file in each folder
//! that the server depends on.
//!
//! Owns the modes of what the server keeps, the probe and its repetition. Must not know what is kept. Many volumes mount read-only or with foreign owners without any error until the
//! first write, so nothing less tells whether they work.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::readiness::Readiness;

/// Pause between probes while one fails.
const RETRY: Duration = Duration::from_secs(5);
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

/// Makes the folders that are missing, readable by this user only, and probes until all of them work. Each round tells
/// the readiness what it found.
pub async fn until_writable(folders: &[(&'static str, PathBuf)], readiness: &Readiness) {
    loop {
        let mut failure = None;
        for (name, folder) in folders {
            let folder = folder.clone();
            let work = move || {
                make_private_dir(&folder)?;
                probe(&folder)
            };
            let probed = tokio::time::timeout(PROBE_TIMEOUT, tokio::task::spawn_blocking(work)).await;
            let fault = match probed {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(error))) => describe(&error),
                Ok(Err(_)) => "the probe ended early".into(),
                Err(_) => format!("no answer within {} s", PROBE_TIMEOUT.as_secs()),
            };
            failure.get_or_insert_with(|| format!("the {name} volume cannot be written: {fault}"));
        }
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

    use super::{probe, until_writable};
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
}
