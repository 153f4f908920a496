//! The workspace on this machine's file system.
//!
//! Owns the choice of thread for each operation. The work itself is plain blocking code in the modules below, which
//! know nothing of the asynchronous runtime. Small operations run on the calling thread, since handing them to
//! another one costs more than they do; as soon as one was slow (a network file system, a busy disk), all of them go
//! to the blocking pool for a while, so that probes and streams of the same threads do not wait for storage.

mod change;
mod confine;
mod grep;
mod ignore_rules;
mod list;
mod read;
mod walk;
mod watch;
mod write;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{RwLock, Semaphore};
use tokio_util::sync::CancellationToken;

use self::confine::{Root, from_io};
use self::ignore_rules::IgnoreCache;
use self::watch::Watch;
use self::write::{PathLocks, Target, Temporary};
use super::changes::Changes;
use super::{
    Entry, Found, GrepLine, GrepRequest, OpenFile, Stat, WalkRequest, Workspace, WorkspaceError, WorkspacePath,
    WriteHold, WriteOptions, Written,
};

/// An operation on the calling thread that took longer than this may show that storage is slow, or only that the
/// thread had to wait for its turn on a busy processor.
const SLOW: Duration = Duration::from_millis(5);
/// So many slow ones in a row are no accident: a waiting thread loses its turn in about one operation of a hundred.
const SLOW_IN_A_ROW: u32 = 3;
/// One that took longer than this is no accident either.
const STUCK: Duration = Duration::from_millis(200);
/// How long operations then go to the blocking pool.
const SLOW_FOR: Duration = Duration::from_secs(2);
/// Entries whose metadata is read on the calling thread: 64 calls take about 50 µs.
const INLINE_ENTRIES: usize = 64;
/// Walks and searches at once: each may keep one core busy.
const MAX_WALKS: usize = 4;

/// A workspace folder on this machine.
pub struct LocalWorkspace {
    shared: Arc<Shared>,
    shown_root: String,
    walks: Arc<Semaphore>,
    born: Instant,
    slow_in_a_row: AtomicU32,
    slow_until_ms: AtomicU64,
    watch: Watch,
    /// Writers share it; a hold has it alone.
    writers: Arc<RwLock<()>>,
}

struct Shared {
    root: Root,
    locks: PathLocks,
    cache: IgnoreCache,
}

/// Runs blocking work on the pool. The pool ends only with the process.
async fn run_blocking<T: Send + 'static>(
    path: &WorkspacePath,
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, WorkspaceError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(?path, %error, "a file operation ended early");
        Err(WorkspaceError::Io(path.clone()))
    })
}

impl LocalWorkspace {
    /// Opens the folder `root`; `shown_root` is its absolute path as commands see it.
    pub fn open(root: &Path, shown_root: impl Into<String>) -> std::io::Result<Self> {
        let shared = Shared { root: Root::open(root)?, locks: PathLocks::new(), cache: IgnoreCache::default() };
        Ok(Self {
            shared: Arc::new(shared),
            shown_root: shown_root.into(),
            walks: Arc::new(Semaphore::new(MAX_WALKS)),
            born: Instant::now(),
            slow_in_a_row: AtomicU32::new(0),
            slow_until_ms: AtomicU64::new(0),
            watch: Watch::new(),
            writers: Arc::new(RwLock::new(())),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs a small operation here, or on the pool while storage is slow.
    async fn quick<T: Send + 'static>(
        &self,
        path: &WorkspacePath,
        work: impl FnOnce(&Shared, &WorkspacePath) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, WorkspaceError> {
        if self.now_ms() < self.slow_until_ms.load(Ordering::Relaxed) {
            return self.blocking(path, work).await;
        }
        let started = Instant::now();
        let outcome = work(&self.shared, path);
        self.judge(started.elapsed());
        outcome
    }

    /// Takes note of how long an operation took here.
    fn judge(&self, took: Duration) {
        if took <= SLOW {
            if self.slow_in_a_row.load(Ordering::Relaxed) > 0 {
                self.slow_in_a_row.store(0, Ordering::Relaxed);
            }
            return;
        }
        let slow = self.slow_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if slow >= SLOW_IN_A_ROW || took > STUCK {
            self.slow_in_a_row.store(0, Ordering::Relaxed);
            let slow_for = u64::try_from(SLOW_FOR.as_millis()).unwrap_or(u64::MAX);
            self.slow_until_ms.store(self.now_ms().saturating_add(slow_for), Ordering::Relaxed);
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        path: &WorkspacePath,
        work: impl FnOnce(&Shared, &WorkspacePath) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, WorkspaceError> {
        let (shared, owned) = (self.shared.clone(), path.clone());
        run_blocking(path, move || work(&shared, &owned)).await
    }

    /// As `blocking`, for what changes files: waits while writes are held.
    async fn writing<T: Send + 'static>(
        &self,
        path: &WorkspacePath,
        work: impl FnOnce(&Shared, &WorkspacePath) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, WorkspaceError> {
        // It goes with the work, which ends by itself even when the caller does not wait for it.
        let writer = self.writers.clone().read_owned().await;
        self.blocking(path, move |shared, path| {
            let outcome = work(shared, path);
            drop(writer);
            outcome
        })
        .await
    }

    /// Runs a walk or search on the pool, a few at a time; the caller's end cancels it.
    async fn search<T: Send + 'static>(
        &self,
        path: &WorkspacePath,
        cancel: CancellationToken,
        work: impl FnOnce(&Shared, &CancellationToken) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, WorkspaceError> {
        let permit = tokio::select! {
            () = cancel.cancelled() => return Err(WorkspaceError::Cancelled),
            permit = self.walks.clone().acquire_owned() => permit.map_err(|_| WorkspaceError::Cancelled)?,
        };
        // The blocking thread cannot be dropped; a caller that goes away must still end it.
        let cancel = cancel.child_token();
        let _ends_with_the_caller = cancel.clone().drop_guard();
        let shared = self.shared.clone();
        run_blocking(path, move || {
            let outcome = work(&shared, &cancel);
            drop(permit);
            outcome
        })
        .await
    }
}

#[async_trait::async_trait]
impl Workspace for LocalWorkspace {
    fn shown_root(&self) -> &str {
        &self.shown_root
    }

    async fn stat(&self, path: &WorkspacePath) -> Result<Stat, WorkspaceError> {
        self.quick(path, |shared, path| read::stat(&shared.root, path)).await
    }

    async fn read(&self, path: &WorkspacePath, max_bytes: u64) -> Result<(Stat, Bytes), WorkspaceError> {
        let opened = self.quick(path, |shared, path| read::open(&shared.root, path)).await?;
        opened.whole(path, max_bytes).await
    }

    async fn open(&self, path: &WorkspacePath, range: Option<(u64, u64)>) -> Result<OpenFile, WorkspaceError> {
        let opened = self.quick(path, |shared, path| read::open(&shared.root, path)).await?;
        Ok(opened.stream(path, range))
    }

    async fn write(
        &self,
        path: &WorkspacePath,
        content: Bytes,
        options: WriteOptions,
    ) -> Result<Written, WorkspaceError> {
        let work = move |shared: &Shared, path: &WorkspacePath| {
            write::write(&shared.root, &shared.locks, path, &content, &options)
        };
        let written = self.writing(path, work).await?;
        self.watch.note(|own| own.touch(path.clone(), written.created));
        Ok(written)
    }

    async fn write_stream(
        &self,
        path: &WorkspacePath,
        content: BoxStream<'static, std::io::Result<Bytes>>,
        max_bytes: u64,
        options: WriteOptions,
    ) -> Result<Written, WorkspaceError> {
        let precondition = options.precondition.clone();
        let temporary = self
            .writing(path, move |shared, path| {
                let target = Target::resolve(&shared.root, path, options.create_dirs)?;
                Temporary::create(target, &options.precondition)
            })
            .await?;
        spool(content, temporary.writer()?, path, max_bytes).await?;
        let written = self.writing(path, move |shared, _| temporary.commit(&shared.locks, &precondition)).await?;
        self.watch.note(|own| own.touch(path.clone(), written.created));
        Ok(written)
    }

    async fn update(
        &self,
        path: &WorkspacePath,
        max_bytes: u64,
        transform: Box<dyn for<'a> FnOnce(&'a [u8]) -> Result<Bytes, String> + Send>,
    ) -> Result<Written, WorkspaceError> {
        let work = move |shared: &Shared, path: &WorkspacePath| {
            write::update(&shared.root, &shared.locks, path, max_bytes, transform)
        };
        let written = self.writing(path, work).await?;
        self.watch.note(|own| own.touch(path.clone(), false));
        Ok(written)
    }

    async fn remove(&self, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError> {
        self.writing(path, move |shared, path| change::remove(&shared.root, path, recursive)).await?;
        self.watch.note(|own| own.touch(path.clone(), false));
        Ok(())
    }

    async fn rename(&self, from: &WorkspacePath, to: &WorkspacePath, overwrite: bool) -> Result<(), WorkspaceError> {
        let target = to.clone();
        self.writing(from, move |shared, from| change::rename(&shared.root, from, &target, overwrite)).await?;
        self.watch.note(|own| own.rename(from, to));
        Ok(())
    }

    async fn make_dir(&self, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError> {
        self.writing(path, move |shared, path| change::make_dir(&shared.root, path, recursive)).await?;
        self.watch.note(|own| own.touch(path.clone(), false));
        Ok(())
    }

    async fn list(&self, path: &WorkspacePath) -> Result<Vec<Entry>, WorkspaceError> {
        let listing = self.quick(path, |shared, path| list::begin(&shared.root, &shared.cache, path)).await?;
        if listing.len() > INLINE_ENTRIES {
            return run_blocking(path, move || listing.finish()).await;
        }
        self.quick(path, move |_, _| listing.finish()).await
    }

    async fn walk(&self, request: WalkRequest, cancel: CancellationToken) -> Result<Found<Entry>, WorkspaceError> {
        let path = request.path.clone();
        let work = move |shared: &Shared, cancel: &CancellationToken| {
            walk::walk(&shared.root, &shared.cache, &request, cancel)
        };
        self.search(&path, cancel, work).await
    }

    async fn grep(&self, request: GrepRequest, cancel: CancellationToken) -> Result<Found<GrepLine>, WorkspaceError> {
        let path = request.path.clone();
        let work = move |shared: &Shared, cancel: &CancellationToken| {
            grep::grep(&shared.root, &shared.cache, &request, cancel)
        };
        self.search(&path, cancel, work).await
    }

    async fn hold_writes(&self) -> WriteHold {
        WriteHold::new(self.writers.clone().write_owned().await)
    }

    async fn sync(&self) -> Result<(), WorkspaceError> {
        let root = WorkspacePath::root();
        self.blocking(&root, |shared, root| {
            let directory = shared.root.directory(root)?;
            rustix::fs::syncfs(directory).map_err(|errno| confine::from_errno(errno, root))
        })
        .await
    }

    fn changes(&self) -> Arc<Changes> {
        self.watch.begin(&self.shared)
    }
}

/// Writes a stream to a file. A source that stalls or breaks off is told apart from storage that fails.
async fn spool(
    mut content: BoxStream<'static, std::io::Result<Bytes>>,
    file: std::fs::File,
    path: &WorkspacePath,
    max_bytes: u64,
) -> Result<(), WorkspaceError> {
    let mut file = tokio::fs::File::from_std(file);
    let mut size = 0_u64;
    while let Some(bytes) = content.next().await {
        let bytes = bytes.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => WorkspaceError::Cancelled,
            _ => WorkspaceError::Rejected("the upload broke off; nothing was changed".into()),
        })?;
        size = size.saturating_add(bytes.len() as u64);
        if size > max_bytes {
            return Err(WorkspaceError::TooLarge { path: path.clone(), size, limit: max_bytes });
        }
        file.write_all(&bytes).await.map_err(|error| from_io(&error, path))?;
    }
    file.flush().await.map_err(|error| from_io(&error, path))
}
