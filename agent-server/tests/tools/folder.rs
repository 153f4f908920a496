//! A workspace over a plain folder, enough for tools that read and write single files. It confines nothing.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use agent_server::workspace::{
    Entry, Found, GrepLine, GrepRequest, Kind, OpenFile, Stat, WalkRequest, Workspace, WorkspaceError, WorkspacePath,
    WriteOptions, Written,
};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

pub struct FolderWorkspace {
    pub root: PathBuf,
    pub shown: String,
    pub updates: tokio::sync::Mutex<()>,
}

impl FolderWorkspace {
    pub fn new(root: PathBuf) -> Self {
        Self { shown: root.to_str().unwrap().into(), root, updates: tokio::sync::Mutex::default() }
    }

    fn at(&self, path: &WorkspacePath) -> PathBuf {
        self.root.join(path.as_str())
    }
}

fn failed(path: &WorkspacePath, error: &std::io::Error) -> WorkspaceError {
    match error.kind() {
        std::io::ErrorKind::NotFound => WorkspaceError::NotFound(path.clone()),
        std::io::ErrorKind::IsADirectory => WorkspaceError::IsDirectory(path.clone()),
        _ => WorkspaceError::Io(path.clone()),
    }
}

fn stat_of(metadata: &std::fs::Metadata) -> Stat {
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => Kind::Dir,
        kind if kind.is_file() => Kind::File,
        kind if kind.is_symlink() => Kind::Symlink,
        _ => Kind::Other,
    };
    let age = metadata.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    Stat { kind, size: metadata.len(), mtime_ms: i64::try_from(age.as_millis()).unwrap(), etag: None, target: None }
}

#[async_trait::async_trait]
impl Workspace for FolderWorkspace {
    fn shown_root(&self) -> &str {
        &self.shown
    }

    async fn stat(&self, path: &WorkspacePath) -> Result<Stat, WorkspaceError> {
        let metadata = std::fs::symlink_metadata(self.at(path)).map_err(|error| failed(path, &error))?;
        Ok(stat_of(&metadata))
    }

    async fn read(&self, path: &WorkspacePath, max_bytes: u64) -> Result<(Stat, Bytes), WorkspaceError> {
        let stat = self.stat(path).await?;
        match stat.kind {
            Kind::Dir => return Err(WorkspaceError::IsDirectory(path.clone())),
            Kind::File => {}
            Kind::Symlink | Kind::Other => return Err(WorkspaceError::NotRegular(path.clone())),
        }
        if stat.size > max_bytes {
            return Err(WorkspaceError::TooLarge { path: path.clone(), size: stat.size, limit: max_bytes });
        }
        let bytes = std::fs::read(self.at(path)).map_err(|error| failed(path, &error))?;
        Ok((stat, bytes.into()))
    }

    async fn open(&self, path: &WorkspacePath, range: Option<(u64, u64)>) -> Result<OpenFile, WorkspaceError> {
        assert_eq!(range, None);
        let (stat, bytes) = self.read(path, u64::MAX).await?;
        let pieces: Vec<_> = bytes.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        Ok(OpenFile { stat, content: stream::iter(pieces).boxed() })
    }

    async fn write(
        &self,
        path: &WorkspacePath,
        content: Bytes,
        options: WriteOptions,
    ) -> Result<Written, WorkspaceError> {
        let target = self.at(path);
        let created = !target.exists();
        if options.create_dirs {
            std::fs::create_dir_all(target.parent().unwrap()).map_err(|error| failed(path, &error))?;
        }
        std::fs::write(&target, &content).map_err(|error| failed(path, &error))?;
        Ok(Written { mtime_ms: 0, etag: "\"test\"".into(), size: content.len() as u64, created })
    }

    async fn write_stream(
        &self,
        _: &WorkspacePath,
        _: BoxStream<'static, std::io::Result<Bytes>>,
        _: u64,
        _: WriteOptions,
    ) -> Result<Written, WorkspaceError> {
        panic!("no tool streams a write")
    }

    async fn update(
        &self,
        path: &WorkspacePath,
        max_bytes: u64,
        transform: Box<dyn for<'a> FnOnce(&'a [u8]) -> Result<Bytes, String> + Send>,
    ) -> Result<Written, WorkspaceError> {
        let _alone = self.updates.lock().await;
        let (_, content) = self.read(path, max_bytes).await?;
        let changed = transform(&content).map_err(WorkspaceError::Rejected)?;
        self.write(path, changed, WriteOptions::default()).await
    }

    async fn remove(&self, _: &WorkspacePath, _: bool) -> Result<(), WorkspaceError> {
        panic!("no tool removes")
    }

    async fn rename(&self, _: &WorkspacePath, _: &WorkspacePath, _: bool) -> Result<(), WorkspaceError> {
        panic!("no tool renames")
    }

    async fn make_dir(&self, _: &WorkspacePath, _: bool) -> Result<(), WorkspaceError> {
        panic!("no tool makes folders by themselves")
    }

    async fn list(&self, path: &WorkspacePath) -> Result<Vec<Entry>, WorkspaceError> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.at(path)).map_err(|error| failed(path, &error))? {
            let entry = entry.unwrap();
            let stat = stat_of(&entry.metadata().unwrap());
            let path = path.join(entry.file_name().to_str().unwrap())?;
            entries.push(Entry { path, kind: stat.kind, size: stat.size, mtime_ms: stat.mtime_ms, ignored: false });
        }
        entries.sort_by(|one, other| (one.kind != Kind::Dir, &one.path).cmp(&(other.kind != Kind::Dir, &other.path)));
        Ok(entries)
    }

    async fn walk(&self, _: WalkRequest, _: CancellationToken) -> Result<Found<Entry>, WorkspaceError> {
        panic!("walking is tested over the local workspace")
    }

    async fn grep(&self, _: GrepRequest, _: CancellationToken) -> Result<Found<GrepLine>, WorkspaceError> {
        panic!("searching is tested over the local workspace")
    }
}
