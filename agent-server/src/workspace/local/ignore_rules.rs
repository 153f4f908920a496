//! Ignore rules: `.gitignore` and `.ignore` of each directory, `.git/info/exclude` of the root, and `.git` itself.
//!
//! Owns which paths count as ignored. The files are read through the confined directory, and parsed ones are kept as
//! long as the file is the same.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{OFlags, Stat as RawStat};

use super::confine::{Root, open_child_directory, open_child_file};
use super::list::Name;
use crate::workspace::{WorkspaceError, WorkspacePath};

/// A rule file's first bytes that are read: 10,000 rules of 100 bytes.
const MAX_RULE_BYTES: u64 = 1024 * 1024;
/// Parsed rule files kept: one with many globs takes up to a few hundred KiB.
const MAX_CACHED: usize = 64;
/// Later names win over earlier ones, as in ripgrep.
const RULE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// What tells that a rule file is the same: device, inode, size, and both times.
type Identity = (u64, u64, i64, [i64; 4]);

fn identity(stat: &RawStat) -> Identity {
    let times = [
        stat.st_mtime,
        i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
        stat.st_ctime,
        i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
    ];
    (stat.st_dev, stat.st_ino, stat.st_size, times)
}

/// Parsed rule files by identity.
#[derive(Default)]
pub struct IgnoreCache {
    parsed: Mutex<HashMap<Identity, Arc<Gitignore>>>,
}

impl IgnoreCache {
    fn rules(&self, directory: impl AsFd, name: &str) -> Option<Arc<Gitignore>> {
        // Unreadable rule files hide nothing; a listing is still better than none.
        let (file, stat) = open_child_file(directory, name).ok().flatten()?;
        let identity = identity(&stat);
        if let Some(found) = self.parsed.lock().unwrap_or_else(PoisonError::into_inner).get(&identity) {
            return Some(found.clone());
        }
        let rules = Arc::new(parse(file)?);
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if parsed.len() >= MAX_CACHED {
            parsed.clear();
        }
        parsed.insert(identity, rules.clone());
        Some(rules)
    }
}

fn parse(file: File) -> Option<Gitignore> {
    let mut text = Vec::new();
    file.take(MAX_RULE_BYTES).read_to_end(&mut text).ok()?;
    let mut builder = GitignoreBuilder::new(".");
    for line in String::from_utf8_lossy(&text).lines() {
        // As git does, a line that is no glob is passed over.
        let _malformed = builder.add_line(None, line);
    }
    builder.build().ok()
}

/// The rules that hold in one directory: its own and those of the directories above.
#[derive(Clone, Default)]
pub struct Rules {
    /// Outermost first; each with the length of its directory's path prefix, `0` for the root.
    layers: Vec<(usize, Arc<Gitignore>)>,
}

impl Rules {
    /// The rules above `path`, and whether `path` itself lies in something ignored.
    pub fn above(root: &Root, cache: &IgnoreCache, path: &WorkspacePath) -> Result<(Self, bool), WorkspaceError> {
        let mut rules = Self::default();
        if path.is_root() {
            return Ok((rules, false));
        }
        let mut ignored = false;
        let mut walked = WorkspacePath::root();
        for name in path.as_str().split('/') {
            let directory = root.directory(&walked)?;
            rules.enter_all(cache, &directory, &walked);
            walked = walked.join(name)?;
            ignored = ignored || rules.ignored(&walked, true);
        }
        Ok((rules, ignored))
    }

    /// Adds the rules of a directory whose names are known, so that missing files cost nothing.
    pub fn enter(&mut self, cache: &IgnoreCache, directory: impl AsFd, path: &WorkspacePath, names: &[Name]) {
        for file in RULE_FILES {
            if names.iter().any(|name| name.text == file) {
                self.add(path, cache.rules(&directory, file));
            }
        }
        if path.is_root() && names.iter().any(|name| name.text == ".git") {
            self.add_exclude(cache, &directory);
        }
    }

    fn enter_all(&mut self, cache: &IgnoreCache, directory: impl AsFd, path: &WorkspacePath) {
        for file in RULE_FILES {
            self.add(path, cache.rules(&directory, file));
        }
        if path.is_root() {
            self.add_exclude(cache, &directory);
        }
    }

    /// The repository's own list; it is the weakest, so it goes first.
    fn add_exclude(&mut self, cache: &IgnoreCache, root: impl AsFd) {
        let Ok(git) = open_child_directory(root, ".git", OFlags::PATH) else { return };
        let Ok(info) = open_child_directory(git, "info", OFlags::PATH) else { return };
        if let Some(rules) = cache.rules(info, "exclude") {
            self.layers.insert(0, (0, rules));
        }
    }

    fn add(&mut self, path: &WorkspacePath, rules: Option<Arc<Gitignore>>) {
        let Some(rules) = rules.filter(|rules| !rules.is_empty()) else { return };
        let prefix = if path.is_root() { 0 } else { path.as_str().len() + 1 };
        self.layers.push((prefix, rules));
    }

    /// Whether a path below is ignored by itself; what lies in an ignored directory is for the caller to know.
    pub fn ignored(&self, path: &WorkspacePath, directory: bool) -> bool {
        if path.name() == ".git" {
            return true;
        }
        for (prefix, rules) in self.layers.iter().rev() {
            let Some(relative) = path.as_str().get(*prefix..) else { continue };
            let verdict = rules.matched(relative, directory);
            if !verdict.is_none() {
                return verdict.is_ignore();
            }
        }
        false
    }
}
