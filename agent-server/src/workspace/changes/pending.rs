//! Changes between being seen and being told: a burst on one path becomes one change.
//!
//! Owns coalescing; pure. What a touched path is gets looked up when the burst is over, so the order and number of the
//! system's events do not matter.

use std::collections::{BTreeSet, HashMap};

use super::{Change, Operation};
use crate::event_log::Lost;
use crate::workspace::{Kind, WorkspacePath};

/// One thing seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Made, changed or removed.
    Touched {
        /// Path.
        path: WorkspacePath,
        /// It was not there before the burst.
        created: bool,
    },
    /// Renamed.
    Renamed {
        /// Former path.
        from: WorkspacePath,
        /// New path.
        to: WorkspacePath,
    },
}

/// What was seen and not told yet, in order.
#[derive(Debug)]
pub struct Pending {
    seen: Vec<Seen>,
    touched: HashMap<WorkspacePath, usize>,
    capacity: usize,
    lost: bool,
}

impl Pending {
    /// Holds at most `capacity` changes; with more, all of them count as lost.
    pub fn new(capacity: usize) -> Self {
        Self { seen: Vec::new(), touched: HashMap::new(), capacity, lost: false }
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty() && !self.lost
    }

    /// A path was made, changed or removed.
    pub fn touch(&mut self, path: WorkspacePath, created: bool) {
        if self.lost || self.touched.contains_key(&path) {
            return;
        }
        self.touched.insert(path.clone(), self.seen.len());
        self.push(Seen::Touched { path, created });
    }

    /// A path, with what is below it, has another one. What was made in the same burst under the old path was never
    /// told, so it is only told under the new one.
    pub fn rename(&mut self, from: &WorkspacePath, to: &WorkspacePath) {
        if self.lost {
            return;
        }
        let made_now = self
            .touched
            .get(from)
            .is_some_and(|index| matches!(self.seen[*index], Seen::Touched { created: true, .. }));
        let mut moved = Vec::new();
        self.seen.retain(|seen| match seen {
            Seen::Touched { path, created } => match path.moved(from, to) {
                Some(path) => {
                    moved.push(Seen::Touched { path, created: *created });
                    false
                }
                None => path != to,
            },
            Seen::Renamed { .. } => true,
        });
        if !made_now {
            self.seen.push(Seen::Renamed { from: from.clone(), to: to.clone() });
        }
        self.seen.append(&mut moved);
        self.touched = self
            .seen
            .iter()
            .enumerate()
            .filter_map(|(index, seen)| match seen {
                Seen::Touched { path, .. } => Some((path.clone(), index)),
                Seen::Renamed { .. } => None,
            })
            .collect();
        self.bound();
    }

    /// What happened meanwhile is not known.
    pub fn lose(&mut self) {
        self.seen.clear();
        self.touched.clear();
        self.lost = true;
    }

    /// Takes everything.
    pub fn take(&mut self) -> Result<Vec<Seen>, Lost> {
        self.touched.clear();
        if std::mem::take(&mut self.lost) {
            return Err(Lost);
        }
        Ok(std::mem::take(&mut self.seen))
    }

    fn push(&mut self, seen: Seen) {
        self.seen.push(seen);
        self.bound();
    }

    fn bound(&mut self) {
        if self.seen.len() > self.capacity {
            self.lose();
        }
    }
}

/// What a path is now: kind and modification time in milliseconds; `None` when nothing is there.
pub type Look<'a> = &'a dyn Fn(&WorkspacePath) -> Option<(Kind, i64)>;

/// From what was seen to what is told.
pub fn settle(seen: Vec<Seen>, look: Look<'_>) -> Vec<Change> {
    let mut changes = Vec::with_capacity(seen.len());
    for seen in seen {
        match seen {
            Seen::Renamed { from, to } => {
                let mtime_ms = look(&to).map(|(_, mtime_ms)| mtime_ms);
                changes.push(Change { op: Operation::Rename, path: to, old_path: Some(from), mtime_ms });
            }
            Seen::Touched { path, created } => {
                let (op, mtime_ms) = match look(&path) {
                    None if created => continue,
                    None => (Operation::Unlink, None),
                    Some((Kind::Dir, mtime_ms)) => (Operation::Mkdir, Some(mtime_ms)),
                    Some((_, mtime_ms)) => (Operation::Write, Some(mtime_ms)),
                };
                changes.push(Change { op, path, old_path: None, mtime_ms });
            }
        }
    }
    without_removed_children(changes)
}

/// A removed directory says enough about what was in it.
fn without_removed_children(mut changes: Vec<Change>) -> Vec<Change> {
    let gone: BTreeSet<WorkspacePath> =
        changes.iter().filter(|change| change.op == Operation::Unlink).map(|change| change.path.clone()).collect();
    changes.retain(|change| {
        let mut above = change.path.parent();
        while change.op == Operation::Unlink
            && let Some(path) = above
        {
            if gone.contains(&path) {
                return false;
            }
            above = path.parent();
        }
        true
    });
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).expect("a path")
    }

    fn told(pending: &mut Pending, there: &[(&str, Kind)]) -> Vec<(Operation, String, Option<String>)> {
        let look = |wanted: &WorkspacePath| {
            there.iter().find(|(name, _)| *name == wanted.as_str()).map(|(_, kind)| (*kind, 7))
        };
        settle(pending.take().expect("nothing is lost"), &look)
            .into_iter()
            .map(|change| (change.op, change.path.to_string(), change.old_path.map(|path| path.to_string())))
            .collect()
    }

    #[test]
    fn a_burst_on_one_path_is_one_change_and_says_what_is_there_in_the_end() {
        let mut pending = Pending::new(10);
        for text in ["f", "gone", "f", "d", "f"] {
            pending.touch(path(text), false);
        }
        assert_eq!(
            told(&mut pending, &[("f", Kind::File), ("d", Kind::Dir)]),
            [
                (Operation::Write, "f".into(), None),
                (Operation::Unlink, "gone".into(), None),
                (Operation::Mkdir, "d".into(), None),
            ]
        );
        assert!(pending.is_empty());
    }

    #[test]
    fn what_came_and_went_in_one_burst_is_not_told() {
        let mut pending = Pending::new(10);
        pending.touch(path("new"), true);
        pending.touch(path("new"), false);
        assert_eq!(told(&mut pending, &[]), []);
    }

    #[test]
    fn a_file_written_beside_and_renamed_over_another_is_one_write() {
        let mut pending = Pending::new(10);
        pending.touch(path("f~"), true);
        pending.touch(path("f"), false);
        pending.rename(&path("f~"), &path("f"));
        assert_eq!(told(&mut pending, &[("f", Kind::File)]), [(Operation::Write, "f".into(), None)]);
    }

    #[test]
    fn a_changed_file_that_is_renamed_is_told_as_renamed_and_then_written() {
        let mut pending = Pending::new(10);
        pending.touch(path("a/f"), false);
        pending.touch(path("other"), false);
        pending.rename(&path("a"), &path("b"));
        pending.touch(path("b/f"), false);
        assert_eq!(
            told(&mut pending, &[("b", Kind::Dir), ("b/f", Kind::File), ("other", Kind::File)]),
            [
                (Operation::Write, "other".into(), None),
                (Operation::Rename, "b".into(), Some("a".into())),
                (Operation::Write, "b/f".into(), None),
            ]
        );
    }

    #[test]
    fn a_removed_tree_is_one_change() {
        let mut pending = Pending::new(10);
        for text in ["t/a/1", "t/a", "t", "t2"] {
            pending.touch(path(text), false);
        }
        assert_eq!(
            told(&mut pending, &[]),
            [(Operation::Unlink, "t".into(), None), (Operation::Unlink, "t2".into(), None)]
        );
    }

    #[test]
    fn more_than_the_bound_is_lost_as_a_whole_and_the_next_burst_is_not() {
        let mut pending = Pending::new(2);
        for text in ["a", "b", "c", "d"] {
            pending.touch(path(text), false);
        }
        assert!(!pending.is_empty());
        assert_eq!(pending.take(), Err(Lost));
        pending.touch(path("e"), false);
        assert_eq!(told(&mut pending, &[("e", Kind::File)]), [(Operation::Write, "e".into(), None)]);
    }
}
