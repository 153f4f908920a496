//! Remarks for everybody who watches: in running turns, and for event streams of the workspace.
//!
//! Owns their form and the way to their readers. Must not know who sends them or how streams are framed.
//!
//! For event streams: `sessions.notices()` gives a receiver; send what it yields as `event: notice`. `Lagged` means
//! that remarks were missed, which is no fault.

use serde::Serialize;
use tokio::sync::broadcast;

use super::Sessions;
use crate::harness::chunk::{Chunk, NoticeLevel};

/// Remarks that a reader may fall behind by; they come minutes apart.
pub(super) const MAX_UNREAD: usize = 16;

/// A remark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// How important.
    pub level: NoticeLevel,
    /// For people.
    pub text: String,
    /// Seconds until the workspace is stopped, when that is what it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_in_seconds: Option<u64>,
}

impl Sessions {
    /// Shows a remark in every running turn and to everybody who listens.
    pub fn notice(&self, notice: Notice) {
        for turn in self.running() {
            turn.log.push(&Chunk::notice(notice.level, notice.text.clone()));
        }
        let _nobody_listens = self.notices.send(notice);
    }

    /// Remarks from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}
