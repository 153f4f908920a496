//! A file that is read again when it changed, looked at on use and at most once a second.
//!
//! Owns the decision to read again. Must not know what the file means.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A change is seen within this time plus the time of the next request: well below the promised 2 s.
const POLL_MS: u64 = 1000;
/// Token and key files are small; more is a mistake in the path. 16 keys of about 200 bytes fit many times.
const MAX_BYTES: u64 = 64 * 1024;

/// Device, inode, size and times tell a new content: volumes swap links, editors rename, tools write in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The file and when it was last looked at.
pub struct PolledFile {
    path: PathBuf,
    born: Instant,
    next_look_ms: AtomicU64,
    seen: std::sync::Mutex<Option<Result<Fingerprint, String>>>,
}

impl PolledFile {
    /// Looks at the first call of [`PolledFile::changed`].
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            born: Instant::now(),
            next_look_ms: AtomicU64::new(0),
            seen: std::sync::Mutex::new(None),
        }
    }

    /// `None` when nothing changed since the last call; else the new content, or why it cannot be had.
    /// `apply` runs under the lock, so that no caller sees a state older than the one it was told of.
    pub fn changed(&self, apply: impl FnOnce(Result<Vec<u8>, String>)) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now < self.next_look_ms.load(Ordering::Acquire) {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if now < self.next_look_ms.load(Ordering::Acquire) {
            return;
        }
        let present = self.look();
        if seen.as_ref() != Some(&present) {
            let content = present.clone().and_then(|_| self.read());
            *seen = Some(present);
            apply(content);
        }
        self.next_look_ms.store(now.saturating_add(POLL_MS), Ordering::Release);
    }

    fn look(&self) -> Result<Fingerprint, String> {
        let metadata = fs::metadata(&self.path).map_err(|error| error.kind().to_string())?;
        if !metadata.is_file() {
            return Err("not a file".into());
        }
        if metadata.len() > MAX_BYTES {
            return Err(format!("larger than {MAX_BYTES} bytes"));
        }
        Ok(Fingerprint {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        fs::read(&self.path).map_err(|error| error.kind().to_string())
    }
}
