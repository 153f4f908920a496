//! Follow-ups of one session: which wait, in which order, and what became of the others.
//!
//! Owns that state, made from the session's lines alone, so that it survives a restart. Must not touch a disk.

use std::collections::BTreeMap;

use super::entry::{FollowUpData, Kind, QueuedMessage, TurnData, TurnStatus};

/// Follow-ups that may wait in one session: more than anybody types while a turn runs.
pub const MAX_WAITING: usize = 100;

/// What became of a follow-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowUpState {
    /// It waits.
    Queued,
    /// It is not to run.
    Cancelled,
    /// Its turn has begun.
    Begun {
        /// Which.
        turn_id: String,
    },
}

/// All follow-ups of a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FollowUps {
    states: BTreeMap<String, FollowUpState>,
    waiting: Vec<QueuedMessage>,
}

impl FollowUps {
    /// Takes the next line of the session.
    pub fn apply(&mut self, kind: &Kind) {
        match kind {
            Kind::FollowUp(data) => match &**data {
                FollowUpData::Queued(queued) => self.queue(queued),
                FollowUpData::Cancelled { client_nonce } => self.cancel(client_nonce),
            },
            Kind::Turn(turn) if turn.status == TurnStatus::Running => self.begin(turn),
            _ => {}
        }
    }

    /// One that was cancelled before it came stays cancelled.
    fn queue(&mut self, queued: &QueuedMessage) {
        if self.states.contains_key(&queued.client_nonce) {
            return;
        }
        self.states.insert(queued.client_nonce.clone(), FollowUpState::Queued);
        let at = self.waiting.partition_point(|waiting| waiting.client_seq <= queued.client_seq);
        self.waiting.insert(at, queued.clone());
    }

    fn cancel(&mut self, nonce: &str) {
        if !matches!(self.states.get(nonce), Some(FollowUpState::Begun { .. })) {
            self.states.insert(nonce.to_owned(), FollowUpState::Cancelled);
            self.waiting.retain(|waiting| waiting.client_nonce != nonce);
        }
    }

    /// The message counts, not who sent it: a client may also have sent it as an ordinary chat.
    fn begin(&mut self, turn: &TurnData) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.user_message_id == turn.user_message_id) {
            let begun = self.waiting.remove(at);
            self.states.insert(begun.client_nonce, FollowUpState::Begun { turn_id: turn.turn_id.clone() });
        }
    }

    /// What became of a follow-up; `None` when it never came.
    pub fn state(&self, nonce: &str) -> Option<&FollowUpState> {
        self.states.get(nonce)
    }

    /// Those that wait, the next one first.
    pub fn waiting(&self) -> &[QueuedMessage] {
        &self.waiting
    }
}

/// Whether waiting follow-ups begin by themselves behind a turn that ended like this. Not after a stop by the user and
/// not after a failure: a queue that goes on then would do what nobody watches any more, or fail once for each message.
pub fn go_on_behind(turn: &TurnData) -> bool {
    match turn.status {
        TurnStatus::Finished => true,
        TurnStatus::Aborted => turn.metadata.get("reason").is_none_or(|reason| reason != "user"),
        TurnStatus::Error | TurnStatus::Running => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queued(nonce: &str, seq: u64) -> Kind {
        Kind::FollowUp(Box::new(FollowUpData::Queued(QueuedMessage {
            client_nonce: nonce.into(),
            client_seq: seq,
            user_message_id: format!("m-{nonce}"),
            message: json!({}),
        })))
    }

    fn cancelled(nonce: &str) -> Kind {
        Kind::FollowUp(Box::new(FollowUpData::Cancelled { client_nonce: nonce.into() }))
    }

    fn begun(nonce: &str) -> Kind {
        let turn = json!({"turnId": format!("t-{nonce}"), "messageId": "a", "userMessageId": format!("m-{nonce}"),
                          "status": "running"});
        Kind::Turn(Box::new(serde_json::from_value(turn).expect("turn")))
    }

    fn after(kinds: &[Kind]) -> (Vec<String>, FollowUps) {
        let mut follow_ups = FollowUps::default();
        for kind in kinds {
            follow_ups.apply(kind);
        }
        (follow_ups.waiting().iter().map(|waiting| waiting.client_nonce.clone()).collect(), follow_ups)
    }

    #[test]
    fn they_wait_by_number_and_then_by_arrival_and_each_once() {
        let (waiting, _) = after(&[queued("c", 3), queued("a", 1), queued("b", 2), queued("a2", 1), queued("c", 0)]);
        assert_eq!(waiting, ["a", "a2", "b", "c"]);
    }

    #[test]
    fn a_cancelled_one_does_not_wait_whether_it_comes_before_or_after() {
        let (waiting, state) = after(&[queued("a", 1), cancelled("a"), cancelled("b"), queued("b", 2), queued("a", 1)]);
        assert_eq!(waiting, [""; 0]);
        assert_eq!(state.state("a"), Some(&FollowUpState::Cancelled));
        assert_eq!(state.state("b"), Some(&FollowUpState::Cancelled));
    }

    #[test]
    fn one_that_has_begun_stays_begun() {
        let (waiting, state) = after(&[queued("a", 1), queued("b", 2), begun("a"), cancelled("a"), queued("a", 1)]);
        assert_eq!(waiting, ["b"]);
        assert_eq!(state.state("a"), Some(&FollowUpState::Begun { turn_id: "t-a".into() }));
        assert_eq!(state.state("c"), None);
    }
}
