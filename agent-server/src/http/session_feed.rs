//! The topic `sessions` of event streams.
//!
//! Owns its place and its frames.

use std::sync::{Arc, LazyLock};

use serde_json::json;
use tokio::sync::watch;

use super::sse::Frame;
use crate::session::Sessions;

/// Tells the numbers of this process from those of others.
static EPOCH: LazyLock<String> = LazyLock::new(|| format!("{:016x}", rand::random::<u64>()));

/// A reader of what happens to sessions.
pub struct SessionFeed {
    sessions: Arc<Sessions>,
    number: u64,
    numbers: watch::Receiver<u64>,
    greeted: bool,
    lost: bool,
}

impl SessionFeed {
    /// Begins after the place, else now.
    pub fn new(sessions: Arc<Sessions>, place: Option<&str>) -> Self {
        let numbers = sessions.follow_changes();
        let known = |place: &str| {
            let (epoch, number) = place.rsplit_once('.')?;
            let number = number.parse().ok()?;
            (epoch == *EPOCH && sessions.change_after(number).is_ok()).then_some(number)
        };
        let (number, lost) = match place {
            None => (sessions.last_change(), false),
            Some(place) => match known(place) {
                Some(number) => (number, false),
                None => (sessions.last_change(), true),
            },
        };
        Self { sessions, number, numbers, greeted: false, lost }
    }

    /// The place that resumes here.
    pub fn place(&self) -> String {
        format!("{}.{}", *EPOCH, self.number)
    }

    /// The next frame. Waits until there is one; may be dropped while waiting.
    pub async fn next(&mut self) -> Frame {
        if !std::mem::replace(&mut self.greeted, true) {
            let data = json!({"topic": "sessions", "epoch": *EPOCH, "seq": self.number});
            return Frame::event("hello", data.to_string());
        }
        loop {
            if std::mem::take(&mut self.lost) {
                return Frame::event("resync", json!({"topic": "sessions"}).to_string());
            }
            self.numbers.mark_unchanged();
            match self.sessions.change_after(self.number) {
                Err(_) => {
                    self.number = self.sessions.last_change();
                    self.lost = true;
                }
                Ok(Some((number, change))) => {
                    self.number = number;
                    return Frame::event("session", serde_json::to_string(&change).unwrap_or_default());
                }
                // The sender lives in the sessions, so the wait cannot fail.
                Ok(None) => {
                    let _ = self.numbers.changed().await;
                }
            }
        }
    }
}
