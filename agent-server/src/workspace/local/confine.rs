//! Opening things beneath the root: the only place where a workspace path meets the file system.
//!
//! Owns confinement and the mapping of operating-system errors. Every path is resolved by the kernel in one call
//! (`openat2` with `RESOLVE_BENEATH`, by way of cap-std, which walks by hand where the call is missing), relative to
//! the root's descriptor. What follows works on single names relative to a directory that was opened so: a name
//! without `/` that is not `..` cannot lead anywhere else.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::{AtFlags, FileType, OFlags, Stat as RawStat, fstat, statat};
use rustix::io::Errno;

use crate::workspace::{Kind, PathError, WorkspaceError, WorkspacePath};

/// Links followed at the end of a path before it is taken for a loop; the kernel's own limit is 40.
const MAX_LINKS: usize = 8;
/// Never wait for the other end of a FIFO, never become a terminal's owner.
const HARMLESS: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// The root's descriptor.
pub struct Root {
    dir: Dir,
}

impl Root {
    /// Opens the root; the only use of an ambient path.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { dir: Dir::open_ambient_dir(path, ambient_authority())? })
    }

    fn open_with(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, WorkspaceError> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags_of(flags));
        let file = self.dir.open_with(path.as_str(), &options).map_err(|error| from_io(&error, path))?;
        Ok(file.into_std().into())
    }

    /// A directory to read, following links that stay inside.
    pub fn directory(&self, path: &WorkspacePath) -> Result<OwnedFd, WorkspaceError> {
        self.open_with(path, OFlags::DIRECTORY)
    }

    /// A regular file to read, following links that stay inside. Anything else is not opened: its kind is looked at
    /// first, and should it change in between, the flags keep the opening from blocking and the second look refuses.
    pub fn file(&self, path: &WorkspacePath) -> Result<(File, RawStat), WorkspaceError> {
        let handle = self.open_with(path, OFlags::PATH)?;
        require_regular(&stat_of(&handle, path)?, path)?;
        let file = self.open_with(path, HARMLESS)?;
        let stat = stat_of(&file, path)?;
        require_regular(&stat, path)?;
        Ok((file.into(), stat))
    }

    /// The directory that holds `path`, following links that stay inside, and the last name. The root has none.
    pub fn parent<'a>(&self, path: &'a WorkspacePath) -> Result<(OwnedFd, &'a str), WorkspaceError> {
        let parent = path.parent().ok_or_else(|| root_refused(path))?;
        Ok((self.open_with(&parent, OFlags::DIRECTORY | OFlags::PATH)?, path.name()))
    }

    /// As `parent`, but no link is followed on the way: for removal and renaming.
    pub fn parent_without_links<'a>(&self, path: &'a WorkspacePath) -> Result<(OwnedFd, &'a str), WorkspaceError> {
        let parent = path.parent().ok_or_else(|| root_refused(path))?;
        let mut directory = self.open_with(&WorkspacePath::root(), OFlags::DIRECTORY | OFlags::PATH)?;
        if parent.is_root() {
            return Ok((directory, path.name()));
        }
        let mut walked = WorkspacePath::root();
        for name in parent.as_str().split('/') {
            walked = walked.join(name)?;
            directory = open_child_directory(&directory, name, OFlags::PATH).map_err(|errno| match errno {
                // With O_NOFOLLOW and O_DIRECTORY a link is "not a directory".
                Errno::NOTDIR | Errno::LOOP => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) if kind_of(&stat) == Kind::Symlink => WorkspaceError::ThroughLink(walked.clone()),
                    _ => WorkspaceError::NotADirectory(walked.clone()),
                },
                errno => from_errno(errno, &walked),
            })?;
        }
        Ok((directory, path.name()))
    }

    /// The directory and name that a write to `path` replaces: a link at the end leads to its target, if inside.
    pub fn target(&self, path: &WorkspacePath) -> Result<(OwnedFd, String, WorkspacePath), WorkspaceError> {
        let mut path = path.clone();
        for _ in 0..MAX_LINKS {
            let (parent, name) = self.parent(&path)?;
            match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if kind_of(&stat) == Kind::Symlink => {}
                Ok(_) | Err(Errno::NOENT) => {
                    let name = name.to_string();
                    return Ok((parent, name, path));
                }
                Err(errno) => return Err(from_errno(errno, &path)),
            }
            // Says whether the target is there and inside; only then is its real path asked for.
            self.open_with(&path, OFlags::PATH)?;
            let real = self.dir.canonicalize(path.as_str()).map_err(|error| from_io(&error, &path))?;
            let real = real.to_str().ok_or_else(|| WorkspaceError::NotFound(path.clone()))?;
            path = WorkspacePath::parse(if real.is_empty() { "." } else { real })?;
        }
        Err(WorkspaceError::ThroughLink(path))
    }
}

fn flags_of(flags: OFlags) -> i32 {
    // Flag bits are the kernel's; the top bit is not among them, so the value is kept.
    i32::from_ne_bytes(flags.bits().to_ne_bytes())
}

/// A child directory, never through a link.
pub fn open_child_directory(parent: impl AsFd, name: &str, extra: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
    rustix::fs::openat(parent, name, flags, rustix::fs::Mode::empty())
}

/// A regular child file to read, never through a link; `None` for anything else.
pub fn open_child_file(parent: impl AsFd, name: &str) -> Result<Option<(File, RawStat)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | HARMLESS;
    let before = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kind_of(&before) != Kind::File {
        return Ok(None);
    }
    let file: File = rustix::fs::openat(parent, name, flags, rustix::fs::Mode::empty())?.into();
    let stat = fstat(&file)?;
    Ok((kind_of(&stat) == Kind::File).then_some((file, stat)))
}

/// Metadata of an open descriptor.
pub fn stat_of(handle: impl AsFd, path: &WorkspacePath) -> Result<RawStat, WorkspaceError> {
    fstat(handle).map_err(|errno| from_errno(errno, path))
}

/// Kind of a file.
pub fn kind_of(stat: &RawStat) -> Kind {
    kind_of_type(FileType::from_raw_mode(stat.st_mode))
}

/// Kind by type.
pub fn kind_of_type(kind: FileType) -> Kind {
    match kind {
        FileType::Directory => Kind::Dir,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    }
}

/// Refuses directories and everything that is not a regular file.
pub fn require_regular(stat: &RawStat, path: &WorkspacePath) -> Result<(), WorkspaceError> {
    match kind_of(stat) {
        Kind::File => Ok(()),
        Kind::Dir => Err(WorkspaceError::IsDirectory(path.clone())),
        Kind::Symlink | Kind::Other => Err(WorkspaceError::NotRegular(path.clone())),
    }
}

fn root_refused(path: &WorkspacePath) -> WorkspaceError {
    debug_assert!(path.is_root());
    WorkspaceError::IsDirectory(path.clone())
}

/// Maps an error of cap-std. It reports an escape as a refused permission without an error number.
pub fn from_io(error: &io::Error, path: &WorkspacePath) -> WorkspaceError {
    match Errno::from_io_error(error) {
        Some(errno) => from_errno(errno, path),
        None if error.kind() == io::ErrorKind::PermissionDenied => WorkspaceError::Escapes(path.clone()),
        None => {
            tracing::warn!(?path, %error, "file operation failed");
            WorkspaceError::Io(path.clone())
        }
    }
}

/// Maps an error number.
pub fn from_errno(errno: Errno, path: &WorkspacePath) -> WorkspaceError {
    let path = path.clone();
    match errno {
        Errno::NOENT => WorkspaceError::NotFound(path),
        Errno::EXIST => WorkspaceError::AlreadyExists(path),
        Errno::ISDIR => WorkspaceError::IsDirectory(path),
        Errno::NOTDIR => WorkspaceError::NotADirectory(path),
        Errno::NOTEMPTY => WorkspaceError::NotEmpty(path),
        Errno::LOOP => WorkspaceError::ThroughLink(path),
        Errno::NXIO => WorkspaceError::NotRegular(path),
        Errno::NAMETOOLONG => WorkspaceError::Path(PathError::TooLong),
        Errno::ROFS => WorkspaceError::ReadOnly,
        Errno::ACCESS | Errno::PERM | Errno::TXTBSY | Errno::BUSY => WorkspaceError::Denied(path),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => WorkspaceError::StorageFull,
        Errno::XDEV => WorkspaceError::Rejected(format!("{path}: source and target are on different file systems")),
        errno => {
            tracing::warn!(?path, error = %errno, "file operation failed");
            WorkspaceError::Io(path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_takes_no_writes_is_told_from_a_permission() {
        let path = WorkspacePath::root();
        assert_eq!(from_errno(Errno::ROFS, &path), WorkspaceError::ReadOnly);
        assert_eq!(from_errno(Errno::ACCESS, &path), WorkspaceError::Denied(path.clone()));
    }
}
