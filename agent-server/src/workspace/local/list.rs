//! One directory: its names, sorted, with metadata and ignore marks.
//!
//! Owns reading a directory. Names that are not UTF-8 are shown with replacement characters: they cannot be addressed.

use std::cmp::Ordering;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, RawDir, Stat as RawStat, statat};
use rustix::io::Errno;

use super::confine::{Root, from_errno, kind_of, kind_of_type};
use super::ignore_rules::{IgnoreCache, Rules};
use super::read::{mtime_ms, size_of};
use super::write::is_temporary;
use crate::workspace::{Entry, Kind, WorkspaceError, WorkspacePath};

/// Buffer of one directory read: about 100 names per system call, on the stack.
const BUFFER: usize = 8 * 1024;
/// Names of one directory held in memory at most: 100 MiB at 100 bytes each.
const MAX_NAMES: usize = 1_000_000;

/// Every name of a directory with its kind, in no order; `.` and `..` left out.
pub fn each_name(directory: impl AsFd, mut each: impl FnMut(&CStr, Kind)) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        count += 1;
        if count > MAX_NAMES {
            return Err(Errno::NOMEM);
        }
        // Some file systems do not tell the kind with the name.
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => kind_of(&stat),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            },
            kind => kind_of_type(kind),
        };
        each(name, kind);
    }
    Ok(())
}

/// The raw names of a directory with their kinds.
pub fn read_names(directory: impl AsFd) -> Result<Vec<(CString, Kind)>, Errno> {
    let mut names = Vec::new();
    each_name(directory, |name, kind| names.push((name.to_owned(), kind)))?;
    Ok(names)
}

/// A name of a directory listing.
pub struct Name {
    /// For people and paths; also for the system when there is no raw name.
    pub text: String,
    /// Kind by the directory's own account.
    pub kind: Kind,
    /// The bytes of a name that is not UTF-8: it is shown with replacement characters and cannot be addressed.
    raw: Option<CString>,
}

impl Name {
    /// Whether the text is the name, so that it can be addressed.
    pub fn is_exact(&self) -> bool {
        self.raw.is_none()
    }

    /// Metadata, links not followed.
    pub fn stat(&self, directory: impl AsFd) -> Result<RawStat, Errno> {
        match &self.raw {
            Some(raw) => statat(directory, &**raw, AtFlags::SYMLINK_NOFOLLOW),
            None => statat(directory, &*self.text, AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}

/// Directories first, then by name, byte by byte: the one order of listings and walks.
pub fn order(left: (bool, &str), right: (bool, &str)) -> Ordering {
    right.0.cmp(&left.0).then_with(|| left.1.cmp(right.1))
}

/// Sorted names without temporary files.
pub fn sorted_names(directory: impl AsFd) -> Result<Vec<Name>, Errno> {
    let mut names = Vec::new();
    each_name(directory, |raw, kind| {
        let name = match raw.to_str() {
            Ok(text) => Name { text: text.to_string(), kind, raw: None },
            Err(_) => Name { text: raw.to_string_lossy().into_owned(), kind, raw: Some(raw.to_owned()) },
        };
        if !is_temporary(&name.text, kind) {
            names.push(name);
        }
    })?;
    names.sort_unstable_by(|left, right| {
        // Names that differ only in bytes that are not UTF-8 look the same and need an order all the same.
        order((left.kind == Kind::Dir, &left.text), (right.kind == Kind::Dir, &right.text))
            .then_with(|| left.raw.cmp(&right.raw))
    });
    Ok(names)
}

/// A directory that was opened and whose names were read; the metadata of its entries is still to be had.
pub struct Listing {
    directory: OwnedFd,
    path: WorkspacePath,
    names: Vec<Name>,
    rules: Rules,
    inherited: bool,
}

/// First half of a listing: quick for any directory of ordinary size.
pub fn begin(root: &Root, cache: &IgnoreCache, path: &WorkspacePath) -> Result<Listing, WorkspaceError> {
    let directory = root.directory(path)?;
    let names = sorted_names(&directory).map_err(|errno| from_errno(errno, path))?;
    let (mut rules, inherited) = Rules::above(root, cache, path)?;
    rules.enter(cache, &directory, path, &names);
    Ok(Listing { directory, path: path.clone(), names, rules, inherited })
}

impl Listing {
    /// Entries to look at.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Second half: one system call per entry. What vanished meanwhile is left out.
    pub fn finish(self) -> Result<Vec<Entry>, WorkspaceError> {
        let mut entries = Vec::with_capacity(self.names.len());
        for name in &self.names {
            // A path that would be too long to address is shown by its name alone as far as the limit allows.
            let Ok(path) = self.path.join(&name.text) else { continue };
            let ignored = self.inherited || self.rules.ignored(&path, name.kind == Kind::Dir);
            match name.stat(&self.directory) {
                Ok(stat) => entries.push(Entry {
                    path,
                    kind: kind_of(&stat),
                    size: size_of(&stat),
                    mtime_ms: mtime_ms(&stat),
                    ignored,
                }),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(from_errno(errno, &path)),
            }
        }
        Ok(entries)
    }
}
