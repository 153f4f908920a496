//! Changes by the system's own events (inotify).
//!
//! Owns the watches of directories and the meaning of the system's events. Each directory is watched through its
//! descriptor (`/proc/self/fd`), which was opened by single names without following links: a watch can never land
//! outside of the workspace, whatever is swapped meanwhile.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::super::confine::open_child_directory;
use super::super::ignore_rules::Rules;
use super::super::walk::{Visited, Walk};
use super::super::write::is_temporary;
use crate::workspace::changes::{Coverage, Means, Pending};
use crate::workspace::{Kind, WalkRequest, WorkspaceError, WorkspacePath};

/// Directories watched at most. The kernel keeps about 1 KiB for each: 32 MiB. Its own limit may be lower.
const MAX_WATCHES: usize = 32_768;
/// Buffer of one read: about 400 events.
const BUFFER: usize = 16 * 1024;
/// Reads in one go; the rest waits in the kernel's queue for the next round.
const READS_AT_ONCE: usize = 64;

/// No more directories can be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no more directories can be watched")]
pub struct WatchLimit;

/// The source.
pub struct EventSource {
    queue: OwnedFd,
    paths: HashMap<i32, WorkspacePath>,
    ids: HashMap<WorkspacePath, i32>,
    /// Halves of renames whose other half was not seen yet.
    moved_from: HashMap<u32, (WorkspacePath, bool)>,
    rules_changed: bool,
    buffer: Box<[MaybeUninit<u8>; BUFFER]>,
}

/// One event of the system, taken off its buffer.
struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<String>,
}

impl EventSource {
    /// Without any watch yet. Fails when the user has too many of these already.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            queue: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            paths: HashMap::new(),
            ids: HashMap::new(),
            moved_from: HashMap::new(),
            rules_changed: false,
            buffer: Box::new([MaybeUninit::uninit(); BUFFER]),
        })
    }

    /// For waiting.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// What is watched.
    pub fn coverage(&self) -> Coverage {
        Coverage { by: Means::Events, folders: self.paths.len(), limit: None }
    }

    /// Whether the directory that holds `path` is watched.
    pub fn covers(&self, path: &WorkspacePath) -> bool {
        path.parent().is_some_and(|parent| self.ids.contains_key(&parent))
    }

    /// Whether a file with ignore rules changed since the last [`EventSource::watch_all`].
    pub fn rules_changed(&self) -> bool {
        self.rules_changed
    }

    /// Watches every directory that is not ignored, and no other one.
    pub fn watch_all(&mut self, shared: &Shared) -> Result<(), WatchLimit> {
        self.rules_changed = false;
        let before = std::mem::take(&mut self.paths);
        self.ids.clear();
        let watched = self.watch_below(shared, &WorkspacePath::root(), None);
        for watch in before.into_keys() {
            if !self.paths.contains_key(&watch) {
                self.drop_watch(watch);
            }
        }
        watched
    }

    /// Watches a directory and those below it, unless it is ignored; with `pending`, what is found there is new.
    fn watch_below(
        &mut self,
        shared: &Shared,
        start: &WorkspacePath,
        mut pending: Option<&mut Pending>,
    ) -> Result<(), WatchLimit> {
        match Rules::above(&shared.root, &shared.cache, start) {
            Ok((_, false)) => {}
            // Ignored, or gone meanwhile.
            Ok((_, true)) | Err(_) => return Ok(()),
        }
        let Ok(directory) = shared.root.directory(start) else { return Ok(()) };
        self.watch(directory.as_fd(), start)?;
        let request = WalkRequest { include_hidden: true, ..WalkRequest::new(start.clone(), usize::MAX) };
        let cancel = CancellationToken::new();
        let mut full = false;
        let walked = Walk::new(&shared.root, &shared.cache, &request, &cancel).and_then(|mut walk| {
            walk.run(|visited| {
                // A directory is watched before its names are read, so nothing is missed in between.
                full = visited.name.kind == Kind::Dir && self.watch_visited(&visited).is_err();
                if let Some(pending) = pending.as_deref_mut() {
                    pending.touch(visited.path, true);
                }
                Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })
        });
        match walked {
            // What vanishes while it is looked at is told by the directory above.
            Ok(()) | Err(WorkspaceError::NotFound(_) | WorkspaceError::NotADirectory(_)) => {}
            Err(error) => tracing::warn!(path = ?start, %error, "a directory could not be watched in full"),
        }
        if full { Err(WatchLimit) } else { Ok(()) }
    }

    fn watch_visited(&mut self, visited: &Visited<'_>) -> Result<(), WatchLimit> {
        if !visited.name.is_exact() || visited.name.text == ".git" {
            return Ok(());
        }
        match open_child_directory(visited.directory, &visited.name.text, OFlags::PATH) {
            Ok(directory) => self.watch(directory.as_fd(), &visited.path),
            // Gone, or replaced by something else: told by the directory above.
            Err(_) => Ok(()),
        }
    }

    fn watch(&mut self, directory: BorrowedFd<'_>, path: &WorkspacePath) -> Result<(), WatchLimit> {
        if self.paths.len() >= MAX_WATCHES {
            return Err(WatchLimit);
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVE
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        match inotify::add_watch(&self.queue, &*link, flags) {
            Ok(watch) => {
                if let Some(former) = self.paths.insert(watch, path.clone()) {
                    self.ids.remove(&former);
                }
                self.ids.insert(path.clone(), watch);
                Ok(())
            }
            Err(Errno::NOSPC | Errno::NOMEM) => Err(WatchLimit),
            Err(error) => {
                tracing::debug!(?path, %error, "a directory is not watched");
                Ok(())
            }
        }
    }

    fn drop_watch(&mut self, watch: i32) {
        if let Some(path) = self.paths.remove(&watch)
            && self.ids.get(&path) == Some(&watch)
        {
            self.ids.remove(&path);
        }
        // The kernel drops the watch of a directory that is gone by itself.
        let _gone = inotify::remove_watch(&self.queue, watch);
    }

    /// Takes the events that wait; true if there were any.
    pub fn take(&mut self, shared: &Shared, pending: &mut Pending) -> Result<bool, WatchLimit> {
        let mut any = false;
        for _ in 0..READS_AT_ONCE {
            let events = self.read();
            if events.is_empty() {
                break;
            }
            any = true;
            for event in events {
                self.apply(&event, shared, pending)?;
            }
        }
        Ok(any)
    }

    fn read(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut reader = Reader::new(&self.queue, &mut self.buffer[..]);
        loop {
            match reader.next() {
                Ok(event) => events.push(Event {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    // A name that is not UTF-8 cannot be addressed, so nobody is told of it.
                    name: event.file_name().and_then(|name| name.to_str().ok()).map(str::to_string),
                }),
                Err(Errno::INTR) => continue,
                Err(_) => return events,
            }
            if reader.is_buffer_empty() {
                return events;
            }
        }
    }

    fn apply(&mut self, event: &Event, shared: &Shared, pending: &mut Pending) -> Result<(), WatchLimit> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            pending.lose();
            return self.watch_all(shared);
        }
        if event.flags.contains(ReadFlags::IGNORED) {
            self.drop_watch(event.watch);
            return Ok(());
        }
        let Some(directory) = self.paths.get(&event.watch) else { return Ok(()) };
        let Some(path) = event.name.as_ref().and_then(|name| directory.join(name).ok()) else { return Ok(()) };
        let is_directory = event.flags.contains(ReadFlags::ISDIR);
        let kind = if is_directory { Kind::Dir } else { Kind::File };
        let temporary = is_temporary(path.name(), kind);
        self.rules_changed |= matches!(path.name(), ".gitignore" | ".ignore");
        if event.flags.contains(ReadFlags::MOVED_FROM) {
            self.moved_from.insert(event.cookie, (path, is_directory));
            return Ok(());
        }
        if event.flags.contains(ReadFlags::MOVED_TO) {
            return match self.moved_from.remove(&event.cookie) {
                Some((from, _)) if is_temporary(from.name(), kind) => {
                    if !temporary {
                        pending.touch(path, false);
                    }
                    Ok(())
                }
                Some((from, _)) => {
                    pending.rename(&from, &path);
                    if is_directory { self.rename_directory(&from, &path, shared) } else { Ok(()) }
                }
                None => self.appeared(&path, is_directory, shared, pending),
            };
        }
        if temporary {
            return Ok(());
        }
        if event.flags.contains(ReadFlags::CREATE) {
            return self.appeared(&path, is_directory, shared, pending);
        }
        if !is_directory || event.flags.contains(ReadFlags::DELETE) {
            pending.touch(path, false);
        }
        Ok(())
    }

    fn appeared(
        &mut self,
        path: &WorkspacePath,
        is_directory: bool,
        shared: &Shared,
        pending: &mut Pending,
    ) -> Result<(), WatchLimit> {
        pending.touch(path.clone(), true);
        if is_directory { self.watch_below(shared, path, Some(pending)) } else { Ok(()) }
    }

    /// The watches follow their directories; only their paths change. A new name may be an ignored one, or no longer.
    fn rename_directory(
        &mut self,
        from: &WorkspacePath,
        to: &WorkspacePath,
        shared: &Shared,
    ) -> Result<(), WatchLimit> {
        let ignored = Rules::above(&shared.root, &shared.cache, to).is_ok_and(|(_, ignored)| ignored);
        let moved: Vec<(i32, WorkspacePath)> =
            self.paths.iter().filter_map(|(watch, path)| Some((*watch, path.moved(from, to)?))).collect();
        let was_watched = !moved.is_empty();
        for (watch, path) in moved {
            if ignored {
                self.drop_watch(watch);
                continue;
            }
            if let Some(former) = self.paths.insert(watch, path.clone()) {
                self.ids.remove(&former);
            }
            self.ids.insert(path, watch);
        }
        if ignored || was_watched { Ok(()) } else { self.watch_below(shared, to, None) }
    }

    /// The end of a burst: what was moved away and did not arrive anywhere is gone.
    pub fn settle(&mut self, pending: &mut Pending) {
        for (path, is_directory) in std::mem::take(&mut self.moved_from).into_values() {
            if is_directory {
                let gone: Vec<i32> = self
                    .paths
                    .iter()
                    .filter(|(_, known)| known.moved(&path, &path).is_some())
                    .map(|(watch, _)| *watch)
                    .collect();
                for watch in gone {
                    self.drop_watch(watch);
                }
            }
            let kind = if is_directory { Kind::Dir } else { Kind::File };
            if !is_temporary(path.name(), kind) {
                pending.touch(path, false);
            }
        }
    }
}
