//! A session followed over its turns: one turn after the other, as long as the reader stays.
//!
//! Owns which turn comes next in such a stream. Must not know HTTP or how a single turn is read.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Sessions;
use super::error::SessionError;
use super::in_use::{ActiveTurn, Session};
use super::transcript::Transcript;
use super::turn_log::{BEAT, Cut, DONE, HEARTBEAT, OPENING, TurnLog};

impl Sessions {
    /// The frames of a turn from behind a number on, or of the running turn from its first, and then of every turn that
    /// begins later. Ends with `[DONE]` when the session is deleted or the server ends. `None` for an unknown session.
    pub async fn follow(
        self: &Arc<Self>,
        id: &str,
        from: Option<(Arc<TurnLog>, u64)>,
    ) -> Result<Option<impl Stream<Item = Result<Bytes, Cut>> + Send + use<>>, SessionError> {
        let session = match self.existing(id).await {
            Ok(session) => session,
            Err(SessionError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let changes = session.changes();
        let from = from.or_else(|| session.active().map(|turn| (Arc::clone(&turn.log), 0)));
        let last_turn = if let Some((log, _)) = &from {
            log.turn_id().to_owned()
        } else {
            let last = |transcript: &Transcript| transcript.turns().last().map(|(_, turn)| turn.turn_id.clone());
            self.read(id, last).await?.unwrap_or_default()
        };
        let follower = Follower {
            sessions: Arc::clone(self),
            session,
            changes,
            ending: self.ending.clone(),
            last_turn,
            frames: from.map(|(log, cursor)| log.frames(cursor).boxed()),
            state: State::New,
        };
        Ok(Some(futures::stream::unfold(follower, |mut follower| async move {
            follower.next().await.map(|item| (item, follower))
        })))
    }
}

enum State {
    New,
    Open,
    Over,
}

struct Follower {
    sessions: Arc<Sessions>,
    session: Arc<Session>,
    changes: watch::Receiver<Option<Arc<ActiveTurn>>>,
    ending: CancellationToken,
    /// The turn that is shown or was shown last; empty before the first one of the session.
    last_turn: String,
    frames: Option<BoxStream<'static, Result<Bytes, Cut>>>,
    state: State,
}

impl Follower {
    async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        match self.state {
            State::Over => return None,
            State::New => {
                self.state = State::Open;
                return Some(Ok(OPENING));
            }
            State::Open => {}
        }
        loop {
            if let Some(frames) = &mut self.frames {
                match frames.next().await {
                    Some(Ok(bytes)) => return Some(Ok(bytes)),
                    Some(Err(cut)) => return Some(self.over(Err(cut))),
                    None => self.frames = None,
                }
            }
            self.changes.borrow_and_update();
            match self.next_turn().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(SessionError::NotFound(_)) => return Some(self.over(Ok(DONE))),
                Err(error) => {
                    tracing::warn!(session = self.session.id, %error, "a session could not be followed");
                    return Some(self.over(Err(Cut)));
                }
            }
            tokio::select! {
                () = self.ending.cancelled() => return Some(self.over(Ok(DONE))),
                changed = tokio::time::timeout(HEARTBEAT, self.changes.changed()) => {
                    if changed.is_err() {
                        return Some(Ok(BEAT));
                    }
                }
            }
        }
    }

    fn over(&mut self, last: Result<Bytes, Cut>) -> Result<Bytes, Cut> {
        self.state = State::Over;
        last
    }

    /// Goes on to the turn that began after the last one; false when there is none yet.
    async fn next_turn(&mut self) -> Result<bool, SessionError> {
        let last = self.last_turn.clone();
        let next =
            self.sessions.read(&self.session.id, move |transcript| transcript.turn_after(&last).map(str::to_owned));
        let Some(next) = next.await? else { return Ok(false) };
        // A turn whose end could not be stored has nothing to show.
        self.frames = self.sessions.turn_log(&self.session.id, &next).await?.map(|log| log.frames(0).boxed());
        self.last_turn = next;
        Ok(true)
    }
}
