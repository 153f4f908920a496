//! Follow-ups as clients send them: queued durably, cancelled, begun when nothing runs.
//!
//! Owns those rules; which one is next is `follow_up`'s, how a turn hands over to the next is `turn`'s. Must not know
//! HTTP.

use std::sync::Arc;

use serde_json::{Value, json};

use super::attachments::Attachments;
use super::entry::{FollowUpData, Kind, QueuedMessage, TurnStatus};
use super::error::SessionError;
use super::follow_up::{self, FollowUpState, MAX_WAITING};
use super::submit::{Choice, Submission, Trigger};
use super::transcript::Transcript;
use super::user_message::UserMessage;
use super::{Sessions, ids};
use crate::llm::KeyState;

/// A checked follow-up.
#[derive(Debug)]
pub struct FollowUp {
    /// Session; made when there is none.
    pub session_id: String,
    /// The message.
    pub message: UserMessage,
    /// The client's name of it; a repeated one changes nothing.
    pub client_nonce: String,
    /// Its place among those that wait; behind all of them when absent.
    pub client_seq: Option<u64>,
}

impl Sessions {
    /// Queues a follow-up durably and says what became of it. Where no turn runs, the next one that waits begins at once.
    ///
    /// Runs in a task of its own: a client that leaves in between changes nothing.
    pub async fn follow_up(self: &Arc<Self>, follow_up: FollowUp) -> Result<FollowUpState, SessionError> {
        let sessions = Arc::clone(self);
        tokio::spawn(async move { sessions.queue_and_begin(follow_up).await })
            .await
            .unwrap_or_else(|error| Err(SessionError::Storage(format!("queueing a follow-up broke off: {error}"))))
    }

    async fn queue_and_begin(self: Arc<Self>, follow_up: FollowUp) -> Result<FollowUpState, SessionError> {
        let key = self.harness.key_state();
        if key != KeyState::Present {
            return Err(SessionError::ModelUnavailable(key));
        }
        // Refused without effect while the workspace drains.
        drop((self.begin_turn)()?);
        let (session_id, nonce) = (follow_up.session_id.clone(), follow_up.client_nonce.clone());
        let session = self.load(&session_id).await?;
        let store = self.attachments.clone();
        let nobody_takes_it = session
            .with_disk(move |disk, session| {
                let queued = disk.transcript().map_or(Ok(false), |transcript| check(transcript, &follow_up))?;
                if !queued {
                    disk.write(&session.id, &session.places, |writer| {
                        let last = writer.transcript.follow_ups().waiting().last().map_or(0, |last| last.client_seq);
                        let data = prepare(follow_up, last + 1, &store, &session.id)?;
                        writer.add(Kind::FollowUp(Box::new(FollowUpData::Queued(data))));
                        Ok(())
                    })?;
                }
                // A turn looks for what waits while it holds the same lock, and says before whether it will.
                Ok(session.active().is_none_or(|turn| turn.is_ending()))
            })
            .await?;
        self.refresh_index(&session_id).await?;
        if nobody_takes_it {
            self.begin_next(&session_id).await;
        }
        let state = self.read(&session_id, move |transcript| transcript.follow_ups().state(&nonce).cloned()).await?;
        state.ok_or_else(|| SessionError::Storage("a queued follow-up is not in its session".into()))
    }

    /// Cancels a follow-up, also one that has not come yet; without a name all that wait.
    pub async fn cancel_follow_ups(self: &Arc<Self>, id: &str, nonce: Option<String>) -> Result<(), SessionError> {
        let session = self.existing(id).await?;
        session
            .with_disk(move |disk, session| {
                let transcript = disk.transcript().ok_or_else(|| SessionError::NotFound(session.id.clone()))?;
                let nonces = to_cancel(transcript, nonce)?;
                disk.write(&session.id, &session.places, |writer| {
                    for client_nonce in nonces {
                        writer.add(Kind::FollowUp(Box::new(FollowUpData::Cancelled { client_nonce })));
                    }
                    Ok(())
                })
            })
            .await?;
        self.refresh_index(id).await
    }

    /// The follow-ups that wait, the next one first.
    pub async fn waiting_follow_ups(self: &Arc<Self>, id: &str) -> Result<Vec<QueuedMessage>, SessionError> {
        self.read(id, |transcript| transcript.follow_ups().waiting().to_vec()).await
    }

    /// After a start: goes on with what waits, unless the last turn was stopped by the user or failed.
    pub(super) async fn continue_after_start(self: &Arc<Self>, id: &str) -> Result<(), SessionError> {
        let goes_on = self
            .read(id, |transcript| {
                let ended = transcript.turns().filter(|(_, turn)| turn.status != TurnStatus::Running).last();
                ended.is_none_or(|(_, turn)| follow_up::go_on_behind(turn))
            })
            .await?;
        if goes_on {
            self.begin_next(id).await;
        }
        Ok(())
    }

    /// Begins the next follow-up that waits, when no turn runs. What keeps it from beginning is logged; it waits on.
    async fn begin_next(self: &Arc<Self>, id: &str) {
        let next = self.read(id, |transcript| transcript.follow_ups().waiting().first().cloned()).await;
        let started = match next {
            Ok(None) => return,
            Ok(Some(queued)) => match submission(id, queued.clone()) {
                Ok(submission) => Arc::clone(self).start_turn(submission).await.map(drop),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match started {
            // Another one was faster; the end of its turn takes up what waits.
            Ok(()) | Err(SessionError::TurnInProgress { .. } | SessionError::AlreadyExists { .. }) => {}
            Err(error) => tracing::warn!(session = id, %error, "a follow-up could not begin"),
        }
    }
}

/// The submission of a follow-up: with the model and thinking level of what came before it.
pub(super) fn submission(session_id: &str, queued: QueuedMessage) -> Result<Submission, SessionError> {
    Ok(Submission {
        session_id: session_id.to_owned(),
        message: UserMessage::parse(queued.message, Vec::new())?,
        trigger: Trigger::Submit,
        replaces: None,
        choice: Choice::AsBefore,
        system_prompt: None,
    })
}

/// Whether it is known already; else whether it may be queued.
fn check(transcript: &Transcript, follow_up: &FollowUp) -> Result<bool, SessionError> {
    let queue = transcript.follow_ups();
    if queue.state(&follow_up.client_nonce).is_some() {
        return Ok(true);
    }
    if let Some(id) = &follow_up.message.id {
        let answered = transcript.find_user_message(id);
        if answered.is_some()
            || transcript.has_answer(id)
            || queue.waiting().iter().any(|waiting| waiting.user_message_id == *id)
        {
            let turn_id = answered.and_then(|found| found.turn).map(|turn| turn.turn_id.clone());
            return Err(SessionError::AlreadyExists { what: format!("message {id}"), turn_id });
        }
    }
    if queue.waiting().len() >= MAX_WAITING {
        return Err(SessionError::QueueFull(MAX_WAITING));
    }
    Ok(false)
}

/// Keeps the files of the message and gives it the form in which it waits.
fn prepare(
    follow_up: FollowUp,
    next_seq: u64,
    store: &Attachments,
    session_id: &str,
) -> Result<QueuedMessage, SessionError> {
    let FollowUp { message, client_nonce, client_seq, .. } = follow_up;
    let user_message_id = message.id.clone().unwrap_or_else(|| ids::new_id("msg"));
    let metadata = message.metadata.clone();
    let parts = message.prepare(store, session_id)?.into_parts();
    let mut message = json!({"id": user_message_id, "role": "user", "parts": parts});
    if let Some(metadata) = metadata {
        message["metadata"] = metadata;
    }
    Ok(QueuedMessage { client_nonce, client_seq: client_seq.unwrap_or(next_seq), user_message_id, message })
}

fn to_cancel(transcript: &Transcript, nonce: Option<String>) -> Result<Vec<String>, SessionError> {
    let queue = transcript.follow_ups();
    let Some(nonce) = nonce else {
        return Ok(queue.waiting().iter().map(|waiting| waiting.client_nonce.clone()).collect());
    };
    match queue.state(&nonce) {
        Some(FollowUpState::Begun { turn_id }) => Err(SessionError::FollowUpBegun { turn_id: turn_id.clone() }),
        Some(FollowUpState::Cancelled) => Ok(Vec::new()),
        Some(FollowUpState::Queued) | None => Ok(vec![nonce]),
    }
}

/// What the metadata of a turn's last chunk says about the next one.
pub(super) fn announcement(turn_id: &str, user_message_id: &str) -> Value {
    json!({"turnId": turn_id, "userMessageId": user_message_id})
}
