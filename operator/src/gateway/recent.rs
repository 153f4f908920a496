//! Answers that stay good for a moment.
//!
//! Owns expiry, the bound, and that many who ask the same at once cause one question. Errors are never kept.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use tokio::sync::OnceCell;

/// Answers kept at most. One is some hundred bytes: 10 MiB.
const MOST: usize = 20_000;

type Slot<V> = Arc<OnceCell<(V, Instant)>>;

/// Recent answers by question.
#[derive(Debug)]
pub struct Recent<K, V> {
    slots: Mutex<HashMap<K, Slot<V>>>,
    good_for: fn(&V) -> Duration,
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    /// `good_for` tells how long an answer may be used.
    pub fn new(good_for: fn(&V) -> Duration) -> Self {
        Self { slots: Mutex::new(HashMap::new()), good_for }
    }

    /// The kept answer, or that of `ask`.
    pub async fn get<'a, E>(&self, key: &K, ask: impl FnOnce() -> BoxFuture<'a, Result<V, E>>) -> Result<V, E> {
        let slot = self.slot(key);
        if let Some((value, _)) = slot.get() {
            return Ok(value.clone());
        }
        let (value, _) = slot.get_or_try_init(async || ask().await.map(|value| (value, Instant::now()))).await?;
        Ok(value.clone())
    }

    fn slot(&self, key: &K) -> Slot<V> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(key)
            && self.usable(slot)
        {
            return Arc::clone(slot);
        }
        if slots.len() >= MOST {
            slots.retain(|_, slot| self.usable(slot));
        }
        if slots.len() >= MOST {
            // All of them are fresh: more callers than ever meant. They are asked about again.
            slots.clear();
        }
        let slot = Slot::default();
        slots.insert(key.clone(), Arc::clone(&slot));
        slot
    }

    /// Not answered yet, or answered lately.
    fn usable(&self, slot: &Slot<V>) -> bool {
        slot.get().is_none_or(|(value, at)| at.elapsed() < (self.good_for)(value))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_once_cause_one_question_and_an_error_is_asked_again() {
        let recent: Recent<&str, u32> = Recent::new(|_| Duration::from_secs(3600));
        let asked = AtomicU32::new(0);
        let ask = || -> BoxFuture<'_, Result<u32, ()>> {
            Box::pin(async {
                tokio::task::yield_now().await;
                Ok(asked.fetch_add(1, Ordering::Relaxed))
            })
        };
        assert_eq!(recent.get(&"a", || Box::pin(async { Err(()) })).await, Err(()));
        let both = futures::join!(recent.get(&"a", ask), recent.get(&"a", ask));
        assert_eq!(both, (Ok(0), Ok(0)));
        assert_eq!(recent.get(&"b", ask).await, Ok(1));
    }

    #[tokio::test]
    async fn an_answer_that_is_too_old_is_asked_for_again() {
        let recent: Recent<&str, u32> = Recent::new(|value| Duration::from_secs(if *value == 0 { 0 } else { 3600 }));
        for (answer, expected) in [(0, 0), (1, 1), (2, 1)] {
            let ask = || -> BoxFuture<'_, Result<u32, ()>> { Box::pin(async move { Ok(answer) }) };
            assert_eq!(recent.get(&"a", ask).await, Ok(expected));
        }
    }
}
