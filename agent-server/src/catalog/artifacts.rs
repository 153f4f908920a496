//! Outputs that were too long to show, kept for a while so that `read` can get at the rest.
//!
//! Owns their names, their folder and their bounds. Must not know which tool made them.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use cap_std::{
    ambient_authority,
    fs::{Dir, DirBuilder, DirBuilderExt, File, OpenOptions, OpenOptionsExt},
};
use uuid::Uuid;

/// What an artifact's name begins with.
pub const SCHEME: &str = "artifact://";
/// Bytes collected before a write to disk.
const BUFFER_BYTES: usize = 256 * 1024;

/// Bounds of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactLimits {
    /// Age after which an artifact goes.
    pub keep_for: Duration,
    /// Largest artifact; its rest is dropped and the result says so.
    pub bytes_each: u64,
    /// All together; the oldest go first.
    pub bytes_total: u64,
}

impl Default for ArtifactLimits {
    /// A day, 16 MiB each, 256 MiB together: a long session with sixteen full outputs.
    fn default() -> Self {
        Self { keep_for: Duration::from_secs(24 * 3600), bytes_each: 16 << 20, bytes_total: 256 << 20 }
    }
}

/// Why an artifact cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// The name is none, or the artifact is gone.
    #[error("this artifact does not exist or is no longer kept")]
    NotFound,
    /// The disk refused.
    #[error("artifacts cannot be stored: {0}")]
    Io(std::io::ErrorKind),
}

impl From<std::io::Error> for ArtifactError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound { Self::NotFound } else { Self::Io(error.kind()) }
    }
}

/// The store; clones share it.
#[derive(Clone)]
pub struct Artifacts {
    folder: Arc<Dir>,
    limits: ArtifactLimits,
}

/// A finished artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its name, for `read`.
    pub uri: String,
    /// Bytes kept.
    pub bytes: u64,
    /// Whether these are all there were.
    pub is_complete: bool,
}

impl Artifacts {
    /// Opens the folder, readable for the server's user alone, and creates it if need be.
    pub fn open(folder: &Path, limits: ArtifactLimits) -> Result<Self, ArtifactError> {
        let mut private = DirBuilder::new();
        private.mode(0o700).recursive(true);
        let name = folder.file_name().ok_or(ArtifactError::NotFound)?;
        let parent = folder.parent().ok_or(ArtifactError::NotFound)?;
        Dir::create_ambient_dir_all(parent, ambient_authority())?;
        let parent = Dir::open_ambient_dir(parent, ambient_authority())?;
        parent
            .create_dir_with(name, &private)
            .or_else(|error| if error.kind() == std::io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
        Ok(Self { folder: Arc::new(parent.open_dir(name)?), limits })
    }

    /// Begins an artifact; makes room for a full one first.
    pub async fn create(&self) -> Result<ArtifactWriter, ArtifactError> {
        let store = self.clone();
        blocking(move || {
            store.make_room()?;
            let id = Uuid::now_v7();
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let file = store.folder.open_with(id.to_string(), &options)?;
            Ok(ArtifactWriter {
                uri: format!("{SCHEME}{id}"),
                file: Some(file),
                buffer: BytesMut::new(),
                bytes: 0,
                is_complete: true,
                max_bytes: store.limits.bytes_each,
            })
        })
        .await
    }

    /// The whole content.
    pub async fn read(&self, uri: &str) -> Result<Bytes, ArtifactError> {
        let id: Uuid = uri.strip_prefix(SCHEME).and_then(|id| id.parse().ok()).ok_or(ArtifactError::NotFound)?;
        let store = self.clone();
        blocking(move || {
            let mut file = store.folder.open(id.to_string())?;
            if store.is_expired(&file)? {
                return Err(ArtifactError::NotFound);
            }
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            Ok(content.into())
        })
        .await
    }

    fn is_expired(&self, file: &File) -> Result<bool, ArtifactError> {
        let changed = file.metadata()?.modified()?.into_std();
        Ok(SystemTime::now().duration_since(changed).is_ok_and(|age| age > self.limits.keep_for))
    }

    /// Removes what is too old, then the oldest until one more full artifact fits. Names order by time of creation.
    fn make_room(&self) -> Result<(), ArtifactError> {
        let mut kept = Vec::new();
        for entry in self.folder.entries()? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let age = SystemTime::now().duration_since(metadata.modified()?.into_std()).unwrap_or_default();
            if age > self.limits.keep_for {
                self.folder.remove_file(entry.file_name())?;
            } else {
                kept.push((entry.file_name(), metadata.len()));
            }
        }
        kept.sort();
        let mut total: u64 = kept.iter().map(|(_, bytes)| bytes).sum();
        for (name, bytes) in kept {
            if total + self.limits.bytes_each <= self.limits.bytes_total {
                break;
            }
            self.folder.remove_file(name)?;
            total -= bytes;
        }
        Ok(())
    }
}

/// Writes one artifact piece by piece.
pub struct ArtifactWriter {
    uri: String,
    file: Option<File>,
    buffer: BytesMut,
    bytes: u64,
    is_complete: bool,
    max_bytes: u64,
}

impl ArtifactWriter {
    /// Adds bytes; what is over the bound is dropped and remembered as missing.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        let room = usize::try_from(self.max_bytes - self.bytes).unwrap_or(usize::MAX);
        let taken = bytes.len().min(room);
        self.is_complete &= taken == bytes.len();
        self.bytes += taken as u64;
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends the artifact.
    pub async fn finish(mut self) -> Result<Artifact, ArtifactError> {
        self.flush().await?;
        Ok(Artifact { uri: self.uri, bytes: self.bytes, is_complete: self.is_complete })
    }

    /// Its name, under which what was flushed can be read already.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Brings to disk what was written so far.
    pub async fn flush(&mut self) -> Result<(), ArtifactError> {
        let content = self.buffer.split();
        // The file is absent only after a flush that failed, and a caller stops at the first failure.
        let mut file = self.file.take().ok_or(ArtifactError::NotFound)?;
        self.file = Some(
            blocking(move || {
                file.write_all(&content)?;
                Ok(file)
            })
            .await?,
        );
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(ArtifactError::Io(std::io::ErrorKind::Interrupted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> ArtifactLimits {
        ArtifactLimits { bytes_each: 10, bytes_total: 30, ..ArtifactLimits::default() }
    }

    async fn keep(store: &Artifacts, content: &[u8]) -> Artifact {
        let mut writer = store.create().await.unwrap();
        writer.write(content).await.unwrap();
        writer.finish().await.unwrap()
    }

    #[tokio::test]
    async fn an_artifact_is_read_back_and_its_surplus_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let store = Artifacts::open(&folder.path().join("state/artifacts"), limits()).unwrap();
        let whole = keep(&store, b"0123456789").await;
        let cut = keep(&store, b"0123456789x").await;
        assert_eq!((whole.bytes, whole.is_complete), (10, true));
        assert_eq!((cut.bytes, cut.is_complete), (10, false));
        assert_eq!(store.read(&whole.uri).await, Ok(Bytes::from_static(b"0123456789")));
    }

    #[tokio::test]
    async fn the_oldest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let store = Artifacts::open(&folder.path().join("artifacts"), limits()).unwrap();
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.push(keep(&store, b"0123456789").await);
        }
        assert_eq!(store.read(&kept[0].uri).await, Err(ArtifactError::NotFound));
        assert!(store.read(&kept[1].uri).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_too_old_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let limits = ArtifactLimits { keep_for: Duration::ZERO, ..limits() };
        let store = Artifacts::open(&folder.path().join("artifacts"), limits).unwrap();
        let artifact = keep(&store, b"x").await;
        assert_eq!(store.read(&artifact.uri).await, Err(ArtifactError::NotFound));
    }

    #[tokio::test]
    async fn a_name_that_is_no_id_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let store = Artifacts::open(&folder.path().join("artifacts"), limits()).unwrap();
        for uri in ["artifact://../secret", "artifact:///etc/passwd", "artifact://", "artifact://x"] {
            assert_eq!(store.read(uri).await, Err(ArtifactError::NotFound));
        }
    }
}
