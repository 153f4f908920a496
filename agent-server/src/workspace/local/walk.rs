//! Walking a tree by descriptors: depth first, sorted, with ignore rules, never through a link.
//!
//! Owns the walk. Each directory is opened by its single name from the one above, so that a directory swapped for a
//! link in between ends that branch instead of leading elsewhere.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::confine::{Root, from_errno, kind_of, open_child_directory};
use super::ignore_rules::{IgnoreCache, Rules};
use super::list::{Name, order, sorted_names};
use super::read::{mtime_ms, size_of};
use crate::workspace::{Entry, Found, Kind, WalkPosition, WalkRequest, WorkspaceError, WorkspacePath};

/// Entries looked at by one walk: about two seconds on local storage.
const MAX_VISITED: usize = 1_000_000;
/// Time of one walk; storage that needs longer gives a result marked as cut.
const MAX_DURATION: Duration = Duration::from_secs(20);
/// Levels below the start: one descriptor each.
const MAX_DEPTH: usize = 256;
/// Longest glob: keeps its automaton small.
const MAX_GLOB: usize = 1024;
/// How often the clock and the cancellation are looked at.
const CHECK_EVERY: usize = 256;

/// An entry as a visitor sees it: not yet looked at.
pub struct Visited<'a> {
    /// Directory that holds it.
    pub directory: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a Name,
    /// Its path.
    pub path: WorkspacePath,
    /// Hidden by an ignore rule.
    pub ignored: bool,
}

/// What a visitor says about an entry.
pub type Next = Result<ControlFlow<()>, WorkspaceError>;

struct Level {
    directory: OwnedFd,
    path: WorkspacePath,
    names: std::vec::IntoIter<Name>,
    rules: Rules,
    ignored: bool,
}

/// The state of one walk.
pub struct Walk<'a> {
    root: &'a Root,
    cache: &'a IgnoreCache,
    request: &'a WalkRequest,
    glob: Option<GlobMatcher>,
    words: Vec<String>,
    cancel: &'a CancellationToken,
    deadline: Instant,
    visited: usize,
    /// Something was left out by a bound of the walk itself.
    pub cut: bool,
}

impl<'a> Walk<'a> {
    /// Prepares a walk; a glob that does not parse is told here.
    pub fn new(
        root: &'a Root,
        cache: &'a IgnoreCache,
        request: &'a WalkRequest,
        cancel: &'a CancellationToken,
    ) -> Result<Self, WorkspaceError> {
        Ok(Self {
            root,
            cache,
            request,
            glob: request.glob.as_deref().map(compile_glob).transpose()?,
            words: request.words.iter().map(|word| word.to_lowercase()).collect(),
            cancel,
            deadline: Instant::now() + MAX_DURATION,
            visited: 0,
            cut: false,
        })
    }

    /// Visits every entry that the request asks for, in order.
    pub fn run(&mut self, mut visit: impl FnMut(Visited<'_>) -> Next) -> Result<(), WorkspaceError> {
        let start = &self.request.path;
        let directory = self.root.directory(start)?;
        let (rules, _ignored) = Rules::above(self.root, self.cache, start)?;
        let mut levels = vec![self.level(directory, start.clone(), rules, false)?];
        while let Some(depth) = levels.len().checked_sub(1) {
            let Some(name) = levels[depth].names.next() else {
                levels.pop();
                continue;
            };
            if !self.may_go_on()? {
                return Ok(());
            }
            let level = &levels[depth];
            if name.text.starts_with('.') && !self.request.include_hidden {
                continue;
            }
            let Ok(path) = level.path.join(&name.text) else {
                self.cut = true;
                continue;
            };
            let directory = name.kind == Kind::Dir;
            let ignored = level.ignored || level.rules.ignored(&path, directory);
            if ignored && !self.request.include_ignored {
                continue;
            }
            if self.wanted(&path, directory)
                && visit(Visited { directory: level.directory.as_fd(), name: &name, path: path.clone(), ignored })?
                    .is_break()
            {
                return Ok(());
            }
            if directory
                && name.is_exact()
                && name.text != ".git"
                && let Some(below) = self.descend(&levels, &name, path, ignored)?
            {
                levels.push(below);
            }
        }
        Ok(())
    }

    fn may_go_on(&mut self) -> Result<bool, WorkspaceError> {
        self.visited += 1;
        if self.visited.is_multiple_of(CHECK_EVERY) {
            if self.cancel.is_cancelled() {
                return Err(WorkspaceError::Cancelled);
            }
            if Instant::now() > self.deadline {
                self.cut = true;
            }
        }
        self.cut |= self.visited > MAX_VISITED;
        Ok(!(self.visited > MAX_VISITED || Instant::now() > self.deadline))
    }

    /// Opens a directory below; `None` when it is out of reach: too deep, gone, replaced, or not readable.
    fn descend(
        &mut self,
        levels: &[Level],
        name: &Name,
        path: WorkspacePath,
        ignored: bool,
    ) -> Result<Option<Level>, WorkspaceError> {
        let depth = levels.len();
        if self.request.max_depth.is_some_and(|deepest| depth >= deepest) {
            return Ok(None);
        }
        if depth >= MAX_DEPTH {
            self.cut = true;
            return Ok(None);
        }
        let Some(level) = levels.last() else { return Ok(None) };
        let rules = level.rules.clone();
        match open_child_directory(&level.directory, &name.text, OFlags::empty()) {
            Ok(directory) => self.level(directory, path, rules, ignored).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(Errno::ACCESS) => {
                self.cut = true;
                Ok(None)
            }
            Err(errno) => Err(from_errno(errno, &path)),
        }
    }

    fn level(
        &self,
        directory: OwnedFd,
        path: WorkspacePath,
        mut rules: Rules,
        ignored: bool,
    ) -> Result<Level, WorkspaceError> {
        let mut names = sorted_names(&directory).map_err(|errno| from_errno(errno, &path))?;
        rules.enter(self.cache, &directory, &path, &names);
        if let Some(after) = &self.request.after {
            skip_before(&mut names, &path, after);
        }
        Ok(Level { directory, path, names: names.into_iter(), rules, ignored })
    }

    fn wanted(&self, path: &WorkspacePath, directory: bool) -> bool {
        if directory && self.request.without_directories {
            return false;
        }
        if let Some(after) = &self.request.after
            && is_or_holds(path, directory, after)
        {
            return false;
        }
        let start = &self.request.path;
        let relative = if start.is_root() { path.as_str() } else { &path.as_str()[start.as_str().len() + 1..] };
        if self.glob.as_ref().is_some_and(|glob| !glob.is_match(relative)) {
            return false;
        }
        if self.words.is_empty() {
            return true;
        }
        let lower = relative.to_lowercase();
        self.words.iter().all(|word| lower.contains(word))
    }
}

/// The position itself and the directories above it came earlier in the order.
fn is_or_holds(path: &WorkspacePath, directory: bool, after: &WalkPosition) -> bool {
    *path == after.path
        || (directory && after.path.as_str().strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/')))
}

/// Drops the names of one directory that come before the position; the one that leads to it stays.
fn skip_before(names: &mut Vec<Name>, directory: &WorkspacePath, after: &WalkPosition) {
    let below = if directory.is_root() {
        Some(after.path.as_str())
    } else {
        after.path.as_str().strip_prefix(directory.as_str()).and_then(|rest| rest.strip_prefix('/'))
    };
    let Some(below) = below else { return };
    let (name, inner) = below.split_once('/').map_or((below, false), |(name, _)| (name, true));
    let position = (inner || after.directory, name);
    names.retain(|entry| order((entry.kind == Kind::Dir, &entry.text), position).is_ge());
}

/// Compiles a glob: `*` stops at `/`, `**` does not, and one without `/` is matched against names at any depth.
pub fn compile_glob(text: &str) -> Result<GlobMatcher, WorkspaceError> {
    if text.len() > MAX_GLOB {
        return Err(WorkspaceError::Pattern(format!("the glob is longer than {MAX_GLOB} bytes")));
    }
    let text = text.strip_prefix("./").unwrap_or(text);
    let anywhere = if text.contains('/') { text.trim_start_matches('/').to_string() } else { format!("**/{text}") };
    GlobBuilder::new(&anywhere)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| WorkspaceError::Pattern(error.kind().to_string()))
}

/// Walks and collects.
pub fn walk(
    root: &Root,
    cache: &IgnoreCache,
    request: &WalkRequest,
    cancel: &CancellationToken,
) -> Result<Found<Entry>, WorkspaceError> {
    let mut walk = Walk::new(root, cache, request, cancel)?;
    let mut items = Vec::new();
    let mut more = false;
    walk.run(|visited| {
        if items.len() >= request.limit {
            more = true;
            return Ok(ControlFlow::Break(()));
        }
        match visited.name.stat(visited.directory) {
            Ok(stat) => items.push(Entry {
                path: visited.path,
                kind: kind_of(&stat),
                size: size_of(&stat),
                mtime_ms: mtime_ms(&stat),
                ignored: visited.ignored,
            }),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(from_errno(errno, &visited.path)),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Found { items, truncated: more || walk.cut })
}
