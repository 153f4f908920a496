//! Removing, renaming and making directories.
//!
//! Owns these three. No link is followed for the first two, not even one that stays inside.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, linkat, mkdirat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::confine::{Root, from_errno, open_child_directory};
use super::list::read_names;
use super::write::kind_at;
use crate::workspace::{Kind, WorkspaceError, WorkspacePath};

/// Levels that a recursive removal goes down: one descriptor each, and far more than any project has.
const MAX_DEPTH: usize = 512;

fn root_refused() -> WorkspaceError {
    WorkspaceError::Rejected("the root of the workspace cannot be removed or moved".into())
}

/// Removes a file, link or directory.
pub fn remove(root: &Root, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError> {
    if path.is_root() {
        return Err(root_refused());
    }
    let (parent, name) = root.parent_without_links(path)?;
    let kind = kind_at(&parent, name).map_err(|errno| from_errno(errno, path))?;
    if kind != Kind::Dir {
        return unlinkat(&parent, name, AtFlags::empty()).map_err(|errno| from_errno(errno, path));
    }
    if recursive {
        return remove_directory(&parent, name, path, 0);
    }
    unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(|errno| match errno {
        Errno::EXIST => WorkspaceError::NotEmpty(path.clone()),
        errno => from_errno(errno, path),
    })
}

/// Removes a directory and what is in it, by descriptors: a link put in place of a directory meanwhile is removed
/// itself. What vanishes by itself is no error.
fn remove_directory(parent: impl AsFd, name: &str, path: &WorkspacePath, depth: usize) -> Result<(), WorkspaceError> {
    if depth > MAX_DEPTH {
        return Err(WorkspaceError::Rejected(format!("{path}: directories are nested too deeply to be removed")));
    }
    let fail = |errno| from_errno(errno, path);
    let directory = match open_child_directory(&parent, name, OFlags::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return unlinkat(&parent, name, AtFlags::empty()).map_err(fail),
        Err(errno) => return Err(fail(errno)),
    };
    for (child, kind) in read_names(&directory).map_err(fail)? {
        let text = child.to_str();
        if kind == Kind::Dir
            && let Ok(text) = text
        {
            remove_directory(&directory, text, path, depth + 1)?;
            continue;
        }
        let flags = if kind == Kind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(&directory, &*child, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Became a directory meanwhile, or is one whose name is not UTF-8 and not empty.
            Err(errno) => return Err(fail(errno)),
        }
    }
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

/// Renames; without `overwrite` an existing target is refused by the kernel in the same step.
pub fn rename(root: &Root, from: &WorkspacePath, to: &WorkspacePath, overwrite: bool) -> Result<(), WorkspaceError> {
    if from.is_root() || to.is_root() {
        return Err(root_refused());
    }
    if to.as_str().strip_prefix(from.as_str()).is_some_and(|rest| rest.starts_with('/')) {
        return Err(WorkspaceError::Rejected(format!("{from}: cannot be moved into itself")));
    }
    let (from_parent, from_name) = root.parent_without_links(from)?;
    let (to_parent, to_name) = root.parent_without_links(to)?;
    let kind = kind_at(&from_parent, from_name).map_err(|errno| from_errno(errno, from))?;
    let fail = |errno| match errno {
        Errno::NOENT => WorkspaceError::NotFound(from.clone()),
        Errno::INVAL => WorkspaceError::Rejected(format!("{from}: cannot be moved into itself")),
        errno => from_errno(errno, to),
    };
    if overwrite {
        return renameat(&from_parent, from_name, &to_parent, to_name).map_err(fail);
    }
    match renameat_with(&from_parent, from_name, &to_parent, to_name, RenameFlags::NOREPLACE) {
        // Some network file systems lack the flag. Both ways below refuse an existing target in one step too.
        Err(Errno::INVAL | Errno::NOSYS) if kind == Kind::Dir => {
            mkdirat(&to_parent, to_name, Mode::from_raw_mode(0o777)).map_err(fail)?;
            renameat(&from_parent, from_name, &to_parent, to_name).map_err(fail)
        }
        Err(Errno::INVAL | Errno::NOSYS) => {
            linkat(&from_parent, from_name, &to_parent, to_name, AtFlags::empty()).map_err(fail)?;
            unlinkat(&from_parent, from_name, AtFlags::empty()).map_err(fail)
        }
        outcome => outcome.map_err(fail),
    }
}

/// Directories made on the way to something. Those that are still empty are removed again unless it succeeds, the
/// deepest first.
#[derive(Default)]
pub struct MadeDirectories(Vec<(OwnedFd, String)>);

impl MadeDirectories {
    /// What they were made for succeeded.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for (parent, name) in self.0.drain(..).rev() {
            // Somebody else may use it by now, or have removed it.
            if let Err(error) = unlinkat(parent, &*name, AtFlags::REMOVEDIR) {
                tracing::debug!(%error, "a directory made on the way stays");
                return;
            }
        }
    }
}

/// Makes a directory; with `recursive` also its parents, and an existing one is fine.
pub fn make_dir(root: &Root, path: &WorkspacePath, recursive: bool) -> Result<(), WorkspaceError> {
    if recursive {
        let mut made = MadeDirectories::default();
        make_dirs(root, path, &mut made)?;
        made.keep();
        return Ok(());
    }
    if path.is_root() {
        return Err(WorkspaceError::AlreadyExists(path.clone()));
    }
    let (parent, name) = root.parent(path)?;
    mkdirat(&parent, name, Mode::from_raw_mode(0o777)).map_err(|errno| from_errno(errno, path))
}

/// Makes a directory and its parents as far as they are missing, and says which it made.
pub fn make_dirs(root: &Root, path: &WorkspacePath, made: &mut MadeDirectories) -> Result<(), WorkspaceError> {
    let Some(above) = path.parent() else { return Ok(()) };
    match root.directory(&above) {
        Ok(_) => {}
        Err(WorkspaceError::NotFound(_)) => make_dirs(root, &above, made)?,
        Err(error) => return Err(error),
    }
    let (parent, name) = root.parent(path)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) => {
            made.0.push((parent, name.to_string()));
            Ok(())
        }
        Err(Errno::EXIST) => match root.directory(path) {
            Ok(_) => Ok(()),
            Err(WorkspaceError::NotADirectory(_) | WorkspaceError::NotFound(_)) => {
                Err(WorkspaceError::AlreadyExists(path.clone()))
            }
            Err(error) => Err(error),
        },
        Err(errno) => Err(from_errno(errno, path)),
    }
}
