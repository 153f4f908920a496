//! Writing: whole files, streams and read-transform-replace, each atomic.
//!
//! Owns temporary files and the locks of paths. A write makes a temporary file in the target's directory, syncs it and
//! renames it over the target, so that a reader sees the old or the new content and nothing between. The rename's
//! own directory entry is left to the file system's journal: after a power cut the old content may be back, whole.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher as _;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, Stat as RawStat, fchmod, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::change::{MadeDirectories, make_dirs};
use super::confine::{Root, from_errno, from_io, kind_of, open_child_file, require_regular, stat_of};
use super::read::{etag_of, mtime_ms, plain, size_of};
use crate::workspace::{Kind, Precondition, TEMPORARY_PREFIX, WorkspaceError, WorkspacePath, WriteOptions, Written};

/// Locks for all paths. Two paths share one with a chance of 1 in 64 and then only wait for each other.
const LOCKS: usize = 64;

/// Locks by directory and name, so that two spellings of one file meet.
pub struct PathLocks {
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl PathLocks {
    /// All free.
    pub fn new() -> Self {
        Self { locks: std::iter::repeat_with(Mutex::default).take(LOCKS).collect(), hasher: RandomState::new() }
    }

    fn lock(&self, directory: &RawStat, name: &str) -> MutexGuard<'_, ()> {
        let key = self.hasher.hash_one((directory.st_dev, directory.st_ino, name));
        let index = usize::try_from(key % LOCKS as u64).expect("smaller than the number of locks");
        self.locks[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a write goes.
pub struct Target {
    directory: OwnedFd,
    name: String,
    path: WorkspacePath,
    /// Gone again when the write fails: a full disk leaves nothing behind.
    made: MadeDirectories,
}

impl Target {
    /// Resolves links at the end of the path and, if asked, makes missing directories.
    pub fn resolve(root: &Root, path: &WorkspacePath, create_dirs: bool) -> Result<Self, WorkspaceError> {
        let mut made = MadeDirectories::default();
        let resolved = match (root.target(path), path.parent()) {
            (Err(WorkspaceError::NotFound(_)), Some(parent)) if create_dirs => {
                make_dirs(root, &parent, &mut made)?;
                root.target(path)
            }
            (resolved, _) => resolved,
        };
        let (directory, name, path) = resolved?;
        Ok(Self { directory, name, path, made })
    }

    fn existing(&self) -> Result<Option<RawStat>, WorkspaceError> {
        match statat(&self.directory, &*self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(from_errno(errno, &self.path)),
        }
    }

    /// Refuses what cannot be replaced: directories, special files, files without any write permission.
    fn check_kind(&self, existing: Option<&RawStat>) -> Result<(), WorkspaceError> {
        let Some(stat) = existing else { return Ok(()) };
        require_regular(stat, &self.path)?;
        if stat.st_mode & 0o222 == 0 {
            return Err(WorkspaceError::Denied(self.path.clone()));
        }
        Ok(())
    }

    fn check(&self, existing: Option<&RawStat>, wanted: &Precondition) -> Result<(), WorkspaceError> {
        if *wanted == Precondition::default() {
            return Ok(());
        }
        let mut current = existing.map(plain);
        if let Some(stat) = &mut current {
            stat.etag = match open_child_file(&self.directory, &self.name) {
                Ok(Some((file, raw))) => Some(etag_of(&file, &raw, &self.path)?),
                Ok(None) | Err(_) => None,
            };
        }
        let mtime_fits = wanted.mtime_ms.is_none_or(|wanted| current.as_ref().is_some_and(|s| s.mtime_ms == wanted));
        let etag_fits = wanted.etag.as_ref().is_none_or(|wanted| {
            current.as_ref().is_some_and(|stat| wanted == "*" || stat.etag.as_ref() == Some(wanted))
        });
        if mtime_fits && etag_fits && !(wanted.absent && existing.is_some()) {
            return Ok(());
        }
        Err(WorkspaceError::Conflict { path: self.path.clone(), current: current.map(Box::new) })
    }

    /// The error of a directory that vanished between resolving and use names the path all the same.
    fn lock<'a>(&self, locks: &'a PathLocks) -> Result<MutexGuard<'a, ()>, WorkspaceError> {
        Ok(locks.lock(&stat_of(&self.directory, &self.path)?, &self.name))
    }
}

/// A temporary file beside the target; removed unless it became the target.
pub struct Temporary {
    target: Target,
    name: String,
    file: File,
    renamed: bool,
}

impl Temporary {
    /// Makes the file. A precondition that already fails is told before any content is taken.
    pub fn create(target: Target, precondition: &Precondition) -> Result<Self, WorkspaceError> {
        let existing = target.existing()?;
        target.check_kind(existing.as_ref())?;
        target.check(existing.as_ref(), precondition)?;
        let name = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&target.directory, &*name, flags, Mode::from_raw_mode(0o666))
            .map_err(|errno| from_errno(errno, &target.path))?;
        Ok(Self { target, name, file: file.into(), renamed: false })
    }

    /// A second handle, for writing from another task.
    pub fn writer(&self) -> Result<File, WorkspaceError> {
        self.file.try_clone().map_err(|error| from_io(&error, &self.target.path))
    }

    /// Syncs and takes the lock, checks the precondition again, and becomes the target.
    pub fn commit(self, locks: &PathLocks, precondition: &Precondition) -> Result<Written, WorkspaceError> {
        self.sync()?;
        let lock = self.target.lock(locks)?;
        let written = self.replace(precondition);
        drop(lock);
        written
    }

    fn sync(&self) -> Result<(), WorkspaceError> {
        self.file.sync_data().map_err(|error| from_io(&error, &self.target.path))
    }

    fn replace(mut self, precondition: &Precondition) -> Result<Written, WorkspaceError> {
        let target = &self.target;
        let existing = target.existing()?;
        target.check_kind(existing.as_ref())?;
        target.check(existing.as_ref(), precondition)?;
        let fail = |errno| from_errno(errno, &target.path);
        if let Some(stat) = &existing {
            fchmod(&self.file, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(fail)?;
        }
        // The system decides once more whether the name is free: commands take no lock.
        let flags = if precondition.absent { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        renameat_with(&target.directory, &*self.name, &target.directory, &*target.name, flags).map_err(fail)?;
        self.renamed = true;
        self.target.made.keep();
        // After the rename, since that changes the inode's change time.
        let stat = stat_of(&self.file, &self.target.path)?;
        Ok(Written {
            mtime_ms: mtime_ms(&stat),
            etag: etag_of(&self.file, &stat, &self.target.path)?,
            size: size_of(&stat),
            created: existing.is_none(),
        })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.renamed {
            return;
        }
        if let Err(error) = unlinkat(&self.target.directory, &*self.name, AtFlags::empty())
            && error != Errno::NOENT
        {
            tracing::warn!(path = ?self.target.path, %error, "a temporary file stays behind");
        }
    }
}

/// Replaces a file by `content`.
pub fn write(
    root: &Root,
    locks: &PathLocks,
    path: &WorkspacePath,
    content: &Bytes,
    options: &WriteOptions,
) -> Result<Written, WorkspaceError> {
    let target = Target::resolve(root, path, options.create_dirs)?;
    let mut temporary = Temporary::create(target, &options.precondition)?;
    temporary.file.write_all(content).map_err(|error| from_io(&error, path))?;
    temporary.commit(locks, &options.precondition)
}

/// Reads, transforms and replaces, all under the path's lock.
pub fn update(
    root: &Root,
    locks: &PathLocks,
    path: &WorkspacePath,
    max_bytes: u64,
    transform: impl FnOnce(&[u8]) -> Result<Bytes, String>,
) -> Result<Written, WorkspaceError> {
    use std::io::Read as _;

    let target = Target::resolve(root, path, false)?;
    let lock = target.lock(locks)?;
    let existing = target.existing()?.ok_or_else(|| WorkspaceError::NotFound(path.clone()))?;
    require_regular(&existing, path)?;
    let opened = open_child_file(target.directory.as_fd(), &target.name).map_err(|errno| from_errno(errno, path))?;
    let (file, stat) = opened.ok_or_else(|| WorkspaceError::NotRegular(path.clone()))?;
    let too_large = |size| WorkspaceError::TooLarge { path: path.clone(), size, limit: max_bytes };
    if size_of(&stat) > max_bytes {
        return Err(too_large(size_of(&stat)));
    }
    let mut content = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut content).map_err(|error| from_io(&error, path))?;
    if content.len() as u64 > max_bytes {
        return Err(too_large(content.len() as u64));
    }
    let content = transform(&content).map_err(WorkspaceError::Rejected)?;
    let mut temporary = Temporary::create(target, &Precondition::default())?;
    temporary.file.write_all(&content).map_err(|error| from_io(&error, path))?;
    temporary.sync()?;
    let written = temporary.replace(&Precondition::default());
    drop(lock);
    written
}

/// Whether a name is one of this server's temporary files.
pub fn is_temporary(name: &str, kind: Kind) -> bool {
    kind == Kind::File && name.starts_with(TEMPORARY_PREFIX)
}

/// Kind of what is at a path, links not followed.
pub fn kind_at(directory: impl AsFd, name: &str) -> Result<Kind, Errno> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| kind_of(&stat))
}
