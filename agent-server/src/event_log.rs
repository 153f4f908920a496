//! A numbered log in memory with replay: the last events of one kind, and a signal for those who wait for more.
//!
//! Owns numbers, the bound and what "lost" means. Must not know what the events are or how they travel.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Events after a number that are not there any more, or never were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events after this number are not kept any more")]
pub struct Lost;

/// The last `capacity` events, numbered without gaps.
#[derive(Debug)]
pub struct EventLog<T> {
    kept: Mutex<Kept<T>>,
    last: watch::Sender<u64>,
    capacity: usize,
}

#[derive(Debug)]
struct Kept<T> {
    events: VecDeque<(u64, T)>,
    last: u64,
    /// The newest number that is not kept any more.
    dropped: u64,
}

impl<T: Clone> EventLog<T> {
    /// An empty log whose next event has the number after `last`.
    pub fn new(capacity: usize, last: u64) -> Self {
        let kept = Kept { events: VecDeque::new(), last, dropped: last };
        Self { kept: Mutex::new(kept), last: watch::Sender::new(last), capacity }
    }

    /// Appends an event and wakes the readers; returns its number.
    pub fn push(&self, event: T) -> u64 {
        let last = {
            let mut kept = self.kept();
            kept.last += 1;
            let last = kept.last;
            kept.events.push_back((last, event));
            if kept.events.len() > self.capacity
                && let Some((number, _)) = kept.events.pop_front()
            {
                kept.dropped = number;
            }
            last
        };
        self.last.send_replace(last);
        last
    }

    /// Forgets every event and skips one number, so that each reader learns that it missed something.
    pub fn forget(&self) {
        let last = {
            let mut kept = self.kept();
            kept.events.clear();
            kept.last += 1;
            kept.dropped = kept.last;
            kept.last
        };
        self.last.send_replace(last);
    }

    /// Every event after `number`, oldest first. [`Lost`] if some of them are not kept, or `number` is yet to come.
    pub fn after(&self, number: u64) -> Result<Vec<(u64, T)>, Lost> {
        let kept = self.kept();
        if number < kept.dropped || number > kept.last {
            return Err(Lost);
        }
        let skip = kept.events.partition_point(|(known, _)| *known <= number);
        Ok(kept.events.range(skip..).cloned().collect())
    }

    /// The first event after `number`, if there is one yet; [`Lost`] as in [`EventLog::after`].
    pub fn next_after(&self, number: u64) -> Result<Option<(u64, T)>, Lost> {
        let kept = self.kept();
        if number < kept.dropped || number > kept.last {
            return Err(Lost);
        }
        let skip = kept.events.partition_point(|(known, _)| *known <= number);
        Ok(kept.events.get(skip).cloned())
    }

    /// Every event that is kept, oldest first.
    pub fn kept_events(&self) -> Vec<(u64, T)> {
        self.kept().events.iter().cloned().collect()
    }

    /// Number of the newest event.
    pub fn last(&self) -> u64 {
        self.kept().last
    }

    /// Number of the newest event that is not kept any more.
    pub fn dropped(&self) -> u64 {
        self.kept().dropped
    }

    /// Changes with each new number. Take it before looking at the events.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// How many readers follow.
    pub fn followers(&self) -> usize {
        self.last.receiver_count()
    }

    fn kept(&self) -> MutexGuard<'_, Kept<T>> {
        // No statement leaves numbers and events apart, so a panic elsewhere left a sound value.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{EventLog, Lost};

    #[test]
    fn events_are_replayed_from_any_number_that_is_kept() {
        let log = EventLog::new(3, 10);
        assert_eq!(log.after(10), Ok(vec![]));
        for text in ["a", "b", "c", "d"] {
            log.push(text);
        }
        assert_eq!((log.last(), log.dropped()), (14, 11));
        assert_eq!(log.after(10), Err(Lost));
        assert_eq!(log.after(11), Ok(vec![(12, "b"), (13, "c"), (14, "d")]));
        assert_eq!(log.after(14), Ok(vec![]));
        assert_eq!(log.after(15), Err(Lost), "a number of another process");
    }

    #[test]
    fn what_was_forgotten_is_lost_for_every_reader_but_a_new_one() {
        let log = EventLog::new(3, 0);
        log.push("a");
        let follower = log.follow();
        log.forget();
        assert!(follower.has_changed().expect("open"));
        assert_eq!(log.after(1), Err(Lost));
        assert_eq!(log.after(log.last()), Ok(vec![]));
        assert_eq!(log.push("b"), 3);
    }
}
