//! One reader of the changes: where it stands and what it is told next.
//!
//! Owns resuming. Must not know the wire.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Change, Changes, Coverage};

/// A greeting waits so long for the first look at the tree, so that what follows is complete. A larger tree is greeted
/// before, and told to look anew when the first look is done.
const FIRST_LOOK: Duration = Duration::from_millis(200);

/// What a reader is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The first thing: every change after the reader's position follows. `None`: what is watched is not known yet.
    Hello(Option<Coverage>),
    /// A change.
    Change(Change),
    /// Changes were missed; look at everything anew.
    Resync,
    /// What is watched has changed.
    Coverage(Coverage),
}

/// A reader. Dropping it is enough to leave.
pub struct ChangeReader {
    changes: Arc<Changes>,
    number: u64,
    numbers: watch::Receiver<u64>,
    coverage: watch::Receiver<Option<Coverage>>,
    greeted: bool,
    /// The place that the client named is of another process, or not kept.
    lost: bool,
    /// Greeted before the first look at the tree was done.
    early: bool,
}

impl ChangeReader {
    pub(super) fn new(changes: Arc<Changes>, last_event_id: Option<&str>) -> Self {
        let (numbers, coverage) = (changes.log.follow(), changes.coverage.subscribe());
        let now = changes.log.last();
        let (number, lost) = match last_event_id {
            None => (now, false),
            Some(id) => match changes.number_in(id).filter(|number| changes.log.next_after(*number).is_ok()) {
                Some(number) => (number, false),
                None => (now, true),
            },
        };
        Self { changes, number, numbers, coverage, greeted: false, lost, early: false }
    }

    /// Epoch of the log.
    pub fn epoch(&self) -> &str {
        &self.changes.epoch
    }

    /// Number of the last change told.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The id that resumes here.
    pub fn id(&self) -> String {
        format!("{}.{}", self.changes.epoch, self.number)
    }

    /// The next thing. Waits until there is one; may be dropped while waiting.
    pub async fn next(&mut self) -> Told {
        if !self.greeted {
            let looked = tokio::time::timeout(FIRST_LOOK, self.coverage.wait_for(Option::is_some)).await;
            let coverage = looked.ok().and_then(Result::ok).and_then(|coverage| *coverage);
            self.greeted = true;
            self.early = coverage.is_none();
            return Told::Hello(coverage);
        }
        if std::mem::take(&mut self.lost) {
            return Told::Resync;
        }
        loop {
            self.numbers.mark_unchanged();
            match self.changes.log.next_after(self.number) {
                Err(_) => {
                    self.number = self.changes.log.last();
                    return Told::Resync;
                }
                Ok(Some((number, change))) => {
                    self.number = number;
                    return Told::Change(change);
                }
                Ok(None) => {}
            }
            // The senders live in `self.changes`, so neither wait can fail.
            tokio::select! {
                _ = self.numbers.changed() => {}
                _ = self.coverage.changed() => {
                    let coverage = *self.coverage.borrow_and_update();
                    if std::mem::take(&mut self.early) {
                        self.lost = true;
                    }
                    if let Some(coverage) = coverage {
                        return Told::Coverage(coverage);
                    }
                }
            }
        }
    }
}

impl Changes {
    /// The number in an id of this process.
    fn number_in(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.rsplit_once('.')?;
        if epoch == self.epoch { number.parse().ok() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::WorkspacePath;
    use crate::workspace::changes::{Means, Operation};

    const EVENTS: Coverage = Coverage { by: Means::Events, folders: 1, limit: None };

    fn change(text: &str) -> Change {
        Change {
            op: Operation::Write,
            path: WorkspacePath::parse(text).expect("a path"),
            old_path: None,
            mtime_ms: Some(1),
        }
    }

    fn changes() -> Arc<Changes> {
        let changes = Arc::new(Changes::new(|| {}));
        changes.set_coverage(EVENTS);
        changes
    }

    #[tokio::test]
    async fn a_reader_resumes_after_the_last_change_it_was_told() {
        let changes = changes();
        let mut first = changes.read(None);
        assert_eq!(first.next().await, Told::Hello(Some(EVENTS)));
        changes.append(vec![change("a"), change("b")]);
        assert_eq!(first.next().await, Told::Change(change("a")));
        let id = first.id();
        drop(first);
        changes.append(vec![change("c")]);
        let mut second = changes.read(Some(&id));
        assert_eq!(second.next().await, Told::Hello(Some(EVENTS)));
        assert_eq!(second.number(), 1, "the greeting stands where the reader left");
        assert_eq!(second.next().await, Told::Change(change("b")));
        assert_eq!(second.next().await, Told::Change(change("c")));
    }

    #[tokio::test]
    async fn a_reader_of_another_process_or_of_what_is_gone_is_told_to_look_anew() {
        let changes = changes();
        changes.append(vec![change("a")]);
        for id in ["0000.1", "nonsense", &format!("{}.99", changes.epoch), &format!("{}.x", changes.epoch)] {
            let mut reader = changes.read(Some(id));
            assert_eq!(reader.next().await, Told::Hello(Some(EVENTS)));
            assert_eq!(reader.next().await, Told::Resync, "{id}");
            changes.append(vec![change("b")]);
            assert_eq!(reader.next().await, Told::Change(change("b")));
        }
        let mut reader = changes.read(None);
        assert_eq!(reader.next().await, Told::Hello(Some(EVENTS)));
        changes.lose();
        assert_eq!(reader.next().await, Told::Resync);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_greeted_before_the_first_look_is_told_to_look_anew_when_it_is_done() {
        let changes = Arc::new(Changes::new(|| {}));
        let mut reader = changes.read(None);
        assert_eq!(reader.next().await, Told::Hello(None));
        changes.set_coverage(EVENTS);
        assert_eq!(reader.next().await, Told::Coverage(EVENTS));
        assert_eq!(reader.next().await, Told::Resync);
    }
}
