//! Path-bound files of one workspace: the trait, its values and its errors.
//!
//! Owns what a workspace file operation means. Must not know HTTP, tools, sandboxes or the model.

pub mod changes;
#[cfg(test)]
mod conformance;
mod local;
mod path;

pub use local::LocalWorkspace;
pub use path::{PathError, WorkspacePath};

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::changes::Changes;

/// Files whose names begin so are this server's temporary ones: never listed, never told as changes. A crash may leave one
/// behind.
pub const TEMPORARY_PREFIX: &str = ".boring-agent-tmp-";

/// What a directory entry is. Anything that is neither a regular file, a directory nor a symbolic link
/// (FIFO, socket, device) is `Other` and is never opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Directory.
    Dir,
    /// Regular file.
    File,
    /// Symbolic link, reported as such and not followed.
    Symlink,
    /// FIFO, socket or device.
    Other,
}

/// Metadata of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// What the path is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, milliseconds since the Unix epoch.
    pub mtime_ms: i64,
    /// Strong validator of a regular file's content, in quotes as in the `ETag` header.
    pub etag: Option<String>,
    /// Target text of a symbolic link.
    pub target: Option<String>,
}

/// One entry of a directory listing or a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path relative to the root.
    pub path: WorkspacePath,
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, milliseconds since the Unix epoch.
    pub mtime_ms: i64,
    /// Hidden by an ignore rule or by being `.git`.
    pub ignored: bool,
}

/// What must hold for a write to take place; checked under the path's lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Precondition {
    /// Expected modification time in milliseconds.
    pub mtime_ms: Option<i64>,
    /// Expected `ETag`; `*` means "must exist".
    pub etag: Option<String>,
    /// Nothing must be there.
    pub absent: bool,
}

/// Options of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Create missing parent directories.
    pub create_dirs: bool,
    /// What must hold.
    pub precondition: Precondition,
}

/// Outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Modification time after the write, milliseconds.
    pub mtime_ms: i64,
    /// `ETag` after the write.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether the file did not exist before.
    pub created: bool,
}

/// A file opened for reading.
pub struct OpenFile {
    /// Its metadata; `kind` is `File`, `etag` is present.
    pub stat: Stat,
    /// Content of the requested range in order.
    pub content: BoxStream<'static, Result<Bytes, WorkspaceError>>,
}

/// How a walk goes over the tree.
#[derive(Debug, Clone)]
pub struct WalkRequest {
    /// Directory to start at.
    pub path: WorkspacePath,
    /// Include entries hidden by ignore rules (`.git` is never walked into).
    pub include_ignored: bool,
    /// Include names that begin with a dot.
    pub include_hidden: bool,
    /// Largest depth below `path`; 1 = direct children.
    pub max_depth: Option<usize>,
    /// Only paths that match this glob, relative to `path`. A glob without `/` is matched against names at any depth.
    pub glob: Option<String>,
    /// Only paths that hold each of these words, upper and lower case alike.
    pub words: Vec<String>,
    /// Leave directories out of the result; they are still walked into.
    pub without_directories: bool,
    /// Only entries after this position in walk order; continues an earlier walk that was truncated.
    pub after: Option<WalkPosition>,
    /// At most this many entries; more sets `truncated`.
    pub limit: usize,
}

impl WalkRequest {
    /// Everything below `path` but hidden and ignored entries, at most `limit` entries.
    pub fn new(path: WorkspacePath, limit: usize) -> Self {
        Self {
            path,
            include_ignored: false,
            include_hidden: false,
            max_depth: None,
            glob: None,
            words: Vec::new(),
            without_directories: false,
            after: None,
            limit,
        }
    }
}

/// A place in walk order: depth first, each directory's entries sorted with directories first, then by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkPosition {
    /// Path of the entry.
    pub path: WorkspacePath,
    /// Whether it was a directory; the order depends on it.
    pub directory: bool,
}

/// Result of a walk or a search; never cut without `truncated`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// In order.
    pub items: Vec<T>,
    /// More existed than `limit` allowed.
    pub truncated: bool,
}

/// A search in file contents.
#[derive(Debug, Clone)]
pub struct GrepRequest {
    /// File or directory to search.
    pub path: WorkspacePath,
    /// Pattern; a regular expression unless `literal`.
    pub pattern: String,
    /// Take `pattern` literally.
    pub literal: bool,
    /// Ignore case.
    pub ignore_case: bool,
    /// Only files that match this glob.
    pub glob: Option<String>,
    /// Lines of context before and after.
    pub context: usize,
    /// At most this many matching lines.
    pub limit: usize,
}

/// One line of a search result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrepLine {
    /// File.
    pub path: WorkspacePath,
    /// One-based line number.
    pub line: u64,
    /// Text without its line end, invalid UTF-8 replaced, cut at 500 characters with a mark.
    pub text: String,
    /// False for a context line.
    pub is_match: bool,
}

/// Writes wait as long as it lives.
pub struct WriteHold(#[expect(dead_code, reason = "held for its end")] Box<dyn Send + Sync>);

impl WriteHold {
    /// Around whatever keeps writes waiting.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self(Box::new(held))
    }
}

/// Files of one workspace. Every method resolves its path beneath the root on each call; no check-then-use.
/// Symbolic links are followed only while they stay inside; never for `remove` and `rename`.
#[async_trait::async_trait]
pub trait Workspace: Send + Sync {
    /// The root as commands see it, absolute (`/workspace` in a pod).
    fn shown_root(&self) -> &str;
    /// Metadata of a path; a link at its end is reported, not followed.
    async fn stat(&self, path: &WorkspacePath) -> Result<Stat, WorkspaceError>;
    /// Whole content of a regular file up to `max_bytes`, else `TooLarge`.
    async fn read(&self, path: &WorkspacePath, max_bytes: u64) -> Result<(Stat, Bytes), WorkspaceError>;
    /// Opens a regular file for streaming; `range` is a byte offset and a length.
    async fn open(&self, path: &WorkspacePath, range: Option<(u64, u64)>) -> Result<OpenFile, WorkspaceError>;
    /// Replaces a file atomically: temporary file in the same directory, sync, rename; mode kept.
    async fn write(
        &self,
        path: &WorkspacePath,
        content: Bytes,
        options: WriteOptions,
    ) -> Result<Written, WorkspaceError>;
    /// As `write`, from a stream of unknown length, at most `max_bytes`.
    async fn write_stream(
        &self,
        path: &WorkspacePath,
        content: BoxStream<'static, std::io::Result<Bytes>>,
        max_bytes: u64,
        options: WriteOptions,
    ) -> Result<Written, WorkspaceError>;
    /// Reads, transforms and replaces one text file under the path's lock, so that concurrent edits of one file
    /// are serialised. `transform` returns the new content or a message for the caller.
    async fn update(
        &self,
        path: &WorkspacePath,
        max_bytes: u64,
        transform: Box<dyn for<'a> FnOnce(&'a [u8]) -> Result<Bytes, String> + Send>,
    ) -> Result<Written, WorkspaceError>;
    /// Removes a file, link or directory. The root is refused; a directory that is not empty needs `recursive`.
    async fn remove(&self, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError>;
    /// Renames; an existing target without `overwrite` is `AlreadyExists` (atomic no-replace).
    async fn rename(&self, from: &WorkspacePath, to: &WorkspacePath, overwrite: bool) -> Result<(), WorkspaceError>;
    /// Creates a directory; with `recursive` its parents too, and an existing one is fine.
    async fn make_dir(&self, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError>;
    /// Direct children of a directory, directories first, then by name.
    async fn list(&self, path: &WorkspacePath) -> Result<Vec<Entry>, WorkspaceError>;
    /// Walks the tree with ignore rules, in sorted order.
    async fn walk(&self, request: WalkRequest, cancel: CancellationToken) -> Result<Found<Entry>, WorkspaceError>;
    /// Searches contents with ignore rules; binary files are skipped.
    async fn grep(&self, request: GrepRequest, cancel: CancellationToken) -> Result<Found<GrepLine>, WorkspaceError>;
    /// Waits for the writes in progress and keeps new ones waiting as long as the answer lives. Bytes of an upload that
    /// did not become a file yet may still arrive.
    async fn hold_writes(&self) -> WriteHold;
    /// Brings everything that was written to stable storage, what commands wrote included.
    async fn sync(&self) -> Result<(), WorkspaceError>;
    /// Changes by whatever means they are made, from the first call on; the same log each time.
    fn changes(&self) -> Arc<Changes>;
}

/// Why a file operation did not take place. Messages never hold host paths or raw operating-system text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkspaceError {
    /// Path syntax.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The path, or a link on the way, leads outside the workspace.
    #[error("{0}: leads outside the workspace")]
    Escapes(WorkspacePath),
    /// A removal or renaming would go through a symbolic link.
    #[error("{0}: leads through a symbolic link, which is not followed here")]
    ThroughLink(WorkspacePath),
    /// Nothing there.
    #[error("{0}: does not exist")]
    NotFound(WorkspacePath),
    /// Something is there already.
    #[error("{0}: exists already")]
    AlreadyExists(WorkspacePath),
    /// A precondition did not hold.
    #[error("{path}: changed since it was read")]
    Conflict {
        /// Path of the write.
        path: WorkspacePath,
        /// What is there now; `None` if nothing.
        current: Option<Box<Stat>>,
    },
    /// A directory where a file was needed.
    #[error("{0}: is a directory")]
    IsDirectory(WorkspacePath),
    /// A file where a directory was needed.
    #[error("{0}: is not a directory")]
    NotADirectory(WorkspacePath),
    /// A directory that is not empty.
    #[error("{0}: directory is not empty")]
    NotEmpty(WorkspacePath),
    /// FIFO, socket or device.
    #[error("{0}: is not a regular file")]
    NotRegular(WorkspacePath),
    /// Larger than the caller's bound.
    #[error("{path}: {size} bytes is more than the limit of {limit}")]
    TooLarge {
        /// Path.
        path: WorkspacePath,
        /// Size found, or bytes received so far.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The file system takes no writes at all.
    #[error("the workspace is read-only; its volume takes no writes")]
    ReadOnly,
    /// The file system refuses (permissions).
    #[error("{0}: permission denied")]
    Denied(WorkspacePath),
    /// No space or quota left.
    #[error("no space left in the workspace")]
    StorageFull,
    /// A glob or regular expression that does not parse.
    #[error("pattern: {0}")]
    Pattern(String),
    /// The transform of `update` refused with this message.
    #[error("{0}")]
    Rejected(String),
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Anything else; the detail is logged, not shown.
    #[error("{0}: input or output failed")]
    Io(WorkspacePath),
}
