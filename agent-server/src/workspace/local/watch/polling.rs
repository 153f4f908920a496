//! Changes by looking again and again, where the system gives no events.
//!
//! Owns the remembered tree and the comparison. A path that is gone and a new one with the same inode are one rename.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Stat as RawStat, statat};
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::super::confine::{Root, kind_of};
use super::super::walk::Walk;
use crate::workspace::changes::{Change, Coverage, Limit, Means, Operation, Pending};
use crate::workspace::{Kind, WalkRequest, WorkspacePath};

/// Pause between two looks at least.
const INTERVAL: Duration = Duration::from_secs(2);
/// A look may take a twentieth of the time at most, so the pause grows with the tree.
const PAUSE_FACTOR: u32 = 20;
/// Entries remembered: at 200 bytes each 20 MiB.
const MAX_ENTRIES: usize = 100_000;

/// What tells that an entry is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    kind: Kind,
    inode: (u64, u64),
    /// Of a directory nothing more counts: its entries are looked at themselves.
    content: Option<(i64, u64, i64)>,
}

impl Stamp {
    fn of(stat: &RawStat) -> Self {
        let kind = kind_of(stat);
        let content = (kind != Kind::Dir).then_some((stat.st_mtime, stat.st_mtime_nsec, stat.st_size));
        Self { kind, inode: (stat.st_dev, stat.st_ino), content }
    }
}

type Tree = BTreeMap<WorkspacePath, Stamp>;

/// The source.
pub struct PollingSource {
    limit: Limit,
    known: Tree,
    folders: usize,
    cut: bool,
    due: Instant,
}

impl PollingSource {
    /// Knows nothing yet; `limit` says why it is needed.
    pub fn new(limit: Limit) -> Self {
        Self { limit, known: Tree::new(), folders: 0, cut: false, due: Instant::now() }
    }

    /// What is watched.
    pub fn coverage(&self) -> Coverage {
        let limit = if self.cut { Limit::EntryLimit } else { self.limit };
        Coverage { by: Means::Polling, folders: self.folders, limit: Some(limit) }
    }

    /// Time until the next look.
    pub fn until_due(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Looks at the tree; with `pending`, the differences are added to it.
    pub fn look(&mut self, shared: &Shared, pending: Option<&mut Pending>) {
        let begin = Instant::now();
        if let Some((tree, cut)) = read_tree(shared) {
            if let Some(pending) = pending {
                compare(&self.known, &tree, pending);
            }
            self.folders = 1 + tree.values().filter(|stamp| stamp.kind == Kind::Dir).count();
            self.known = tree;
            self.cut = cut;
        }
        let took = begin.elapsed();
        self.due = Instant::now() + INTERVAL.max(took.saturating_mul(PAUSE_FACTOR));
    }

    /// Remembers changes that are told already.
    pub fn know(&mut self, root: &Root, told: &[Change]) {
        for change in told {
            match (change.op, &change.old_path) {
                (Operation::Rename, Some(from)) => {
                    let moved: Vec<_> = self
                        .known
                        .iter()
                        .filter_map(|(path, stamp)| Some((path.clone(), path.moved(from, &change.path)?, *stamp)))
                        .collect();
                    for (old, new, stamp) in moved {
                        self.known.remove(&old);
                        self.known.insert(new, stamp);
                    }
                }
                (Operation::Unlink, _) => {
                    self.known.retain(|path, _| path.moved(&change.path, &change.path).is_none());
                }
                _ => {
                    if let Some(stamp) = stamp_at(root, &change.path) {
                        self.known.insert(change.path.clone(), stamp);
                    }
                }
            }
        }
    }
}

fn stamp_at(root: &Root, path: &WorkspacePath) -> Option<Stamp> {
    let (parent, name) = root.parent(path).ok()?;
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| Stamp::of(&stat))
}

/// The tree without ignored entries, and whether it was cut; `None` when it cannot be read, which the next look repeats.
fn read_tree(shared: &Shared) -> Option<(Tree, bool)> {
    let request = WalkRequest { include_hidden: true, ..WalkRequest::new(WorkspacePath::root(), usize::MAX) };
    let cancel = CancellationToken::new();
    let mut tree = Tree::new();
    let mut full = false;
    let mut walk = Walk::new(&shared.root, &shared.cache, &request, &cancel).ok()?;
    let walked = walk.run(|visited| {
        full = tree.len() >= MAX_ENTRIES;
        if full {
            return Ok(ControlFlow::Break(()));
        }
        if let Ok(stat) = visited.name.stat(visited.directory) {
            tree.insert(visited.path, Stamp::of(&stat));
        }
        Ok(ControlFlow::Continue(()))
    });
    match walked {
        Ok(()) => Some((tree, full || walk.cut)),
        Err(error) => {
            tracing::warn!(%error, "the tree could not be looked at");
            None
        }
    }
}

fn compare(before: &Tree, now: &Tree, pending: &mut Pending) {
    let mut gone: HashMap<(u64, u64), &WorkspacePath> =
        before.iter().filter(|(path, _)| !now.contains_key(*path)).map(|(path, stamp)| (stamp.inode, path)).collect();
    let mut renamed: Vec<(WorkspacePath, WorkspacePath)> = Vec::new();
    for (path, stamp) in now {
        match before.get(path) {
            Some(known) if known == stamp => {}
            Some(_) => pending.touch(path.clone(), false),
            None => match gone.remove(&stamp.inode).filter(|from| before[*from].kind == stamp.kind) {
                Some(from) => {
                    // What is below a renamed directory came with it.
                    let came_along = renamed.iter().any(|(old, new)| from.moved(old, new).as_ref() == Some(path));
                    if !came_along {
                        pending.rename(from, path);
                        renamed.push((from.clone(), path.clone()));
                    }
                    if before[from].content != stamp.content {
                        pending.touch(path.clone(), false);
                    }
                }
                None => pending.touch(path.clone(), true),
            },
        }
    }
    let mut removed: Vec<&WorkspacePath> = gone.into_values().collect();
    removed.sort_unstable();
    for path in removed {
        pending.touch(path.clone(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::changes::Seen;

    fn tree(entries: &[(&str, u64, i64)]) -> Tree {
        entries
            .iter()
            .map(|(path, inode, time)| {
                let kind = if *time == 0 { Kind::Dir } else { Kind::File };
                let content = (*time != 0).then_some((*time, 0, 1));
                (WorkspacePath::parse(path).expect("a path"), Stamp { kind, inode: (1, *inode), content })
            })
            .collect()
    }

    fn differences(before: &Tree, now: &Tree) -> Vec<String> {
        let mut pending = Pending::new(100);
        compare(before, now, &mut pending);
        let seen = pending.take().expect("not lost");
        seen.iter()
            .map(|seen| match seen {
                Seen::Touched { path, .. } => path.to_string(),
                Seen::Renamed { from, to } => format!("{from} -> {to}"),
            })
            .collect()
    }

    #[test]
    fn two_looks_differ_by_what_was_written_made_removed_and_renamed() {
        let before = tree(&[("a", 1, 0), ("a/f", 2, 5), ("a/g", 3, 5), ("gone", 4, 5), ("same", 5, 5), ("w", 6, 5)]);
        let now = tree(&[("b", 1, 0), ("b/f", 2, 5), ("b/g", 3, 6), ("new", 9, 5), ("same", 5, 5), ("w", 6, 7)]);
        assert_eq!(differences(&before, &now), ["a -> b", "b/g", "new", "w", "gone"]);
        assert_eq!(differences(&now, &now), [""; 0]);
    }

    #[test]
    fn a_look_finds_what_changed_on_disk_and_nothing_that_was_told() {
        let dir = tempfile::tempdir().expect("folder");
        let workspace = crate::workspace::LocalWorkspace::open(dir.path(), "/workspace").expect("opened");
        for (name, text) in [(".gitignore", "skip/"), ("old", "x"), ("gone", "x")] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        std::fs::create_dir(dir.path().join("skip")).expect("folder");
        let mut source = PollingSource::new(Limit::NoEvents);
        source.look(&workspace.shared, None);
        let coverage = Coverage { by: Means::Polling, folders: 1, limit: Some(Limit::NoEvents) };
        assert_eq!(source.coverage(), coverage);
        std::fs::rename(dir.path().join("old"), dir.path().join("new")).expect("renamed");
        std::fs::remove_file(dir.path().join("gone")).expect("removed");
        std::fs::write(dir.path().join("skip/f"), "x").expect("written");
        std::fs::write(dir.path().join("own"), "x").expect("written");
        let own = WorkspacePath::parse("own").expect("a path");
        let told = Change { op: Operation::Write, path: own, old_path: None, mtime_ms: None };
        source.know(&workspace.shared.root, &[told]);
        let mut pending = Pending::new(100);
        source.look(&workspace.shared, Some(&mut pending));
        let path = |text: &str| WorkspacePath::parse(text).expect("a path");
        assert_eq!(
            pending.take(),
            Ok(vec![
                Seen::Renamed { from: path("old"), to: path("new") },
                Seen::Touched { path: path("gone"), created: false },
            ])
        );
    }
}
