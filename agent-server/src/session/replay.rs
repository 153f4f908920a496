//! Finding the chunks of a turn: running, kept on disk, or made again from its message.
//!
//! Owns that order. Must not know HTTP.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::entry::{TurnData, TurnStatus};
use super::error::SessionError;
use super::turn_log::TurnLog;
use super::{Sessions, history, ids};
use crate::harness::chunk::{Chunk, FinishReason};

impl Sessions {
    /// The log of a turn; `None` when the session or the turn is unknown.
    pub async fn turn_log(
        self: &Arc<Self>,
        session_id: &str,
        turn_id: &str,
    ) -> Result<Option<Arc<TurnLog>>, SessionError> {
        if !ids::is_session_id(session_id) || !ids::is_turn_id(turn_id) {
            return Ok(None);
        }
        if let Some(turn) = self.active(session_id).filter(|turn| turn.turn_id == turn_id) {
            return Ok(Some(Arc::clone(&turn.log)));
        }
        // Loading the session closes a turn that a crash left open.
        let id = turn_id.to_owned();
        let found = self.read(session_id, move |transcript| history::turn_message(transcript, &id));
        let (message, end) = match found.await {
            Ok(Some(found)) => found,
            Ok(None) | Err(SessionError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (path, turn_id) = (self.places.turn_log(session_id, turn_id), turn_id.to_owned());
        tokio::task::spawn_blocking(move || {
            let kept = TurnLog::load(&turn_id, path)?.map(|(log, _)| log).filter(|log| log.has_ended());
            Ok(Some(kept.unwrap_or_else(|| TurnLog::from_chunks(&turn_id, &chunks(&message, &end)))))
        })
        .await
        .unwrap_or_else(|error| Err(SessionError::Storage(error.to_string())))
    }
}

/// A whole message as one sequence of chunks.
fn chunks(message: &Value, turn: &TurnData) -> Vec<Chunk> {
    let mut chunks = vec![Chunk::Start {
        message_id: turn.message_id.clone(),
        message_metadata: message["metadata"].as_object().cloned().unwrap_or_default(),
    }];
    let mut in_step = false;
    for (index, part) in message["parts"].as_array().into_iter().flatten().enumerate() {
        if part["type"] == "step-start" {
            if in_step {
                chunks.push(Chunk::FinishStep {});
            }
            in_step = true;
        }
        chunks.extend(part_chunks(part, index));
    }
    if in_step {
        chunks.push(Chunk::FinishStep {});
    }
    chunks.push(match turn.status {
        TurnStatus::Finished | TurnStatus::Running => {
            Chunk::Finish { finish_reason: FinishReason::Stop, message_metadata: Map::new() }
        }
        TurnStatus::Aborted => Chunk::Abort {},
        TurnStatus::Error => {
            Chunk::Error { error_text: turn.metadata["error"]["code"].as_str().unwrap_or("the turn failed").to_owned() }
        }
    });
    chunks
}

/// The chunks of one part, read through the wire form so that only real chunks come out.
fn part_chunks(part: &Value, index: usize) -> Vec<Chunk> {
    let kind = part["type"].as_str().unwrap_or_default();
    let id = format!("p{index}");
    let values = match kind {
        "step-start" => vec![json!({"type": "start-step"})],
        "text" | "reasoning" => {
            let id = part["id"].as_str().unwrap_or(&id);
            vec![
                json!({"type": format!("{kind}-start"), "id": id}),
                json!({"type": format!("{kind}-delta"), "id": id, "delta": part["text"]}),
                json!({"type": format!("{kind}-end"), "id": id}),
            ]
        }
        kind if kind.starts_with("data-") => vec![json!({"type": kind, "id": part["id"], "data": part["data"]})],
        kind => {
            let Some(name) = kind.strip_prefix("tool-") else { return Vec::new() };
            let call = &part["toolCallId"];
            let end = if part["state"] == "output-error" {
                json!({"type": "tool-output-error", "toolCallId": call, "errorText": part["errorText"],
                       "providerExecuted": true})
            } else {
                json!({"type": "tool-output-available", "toolCallId": call, "output": part["output"],
                       "providerExecuted": true})
            };
            vec![
                json!({"type": "tool-input-start", "toolCallId": call, "toolName": name, "providerExecuted": true}),
                json!({"type": "tool-input-available", "toolCallId": call, "toolName": name, "input": part["input"],
                       "providerExecuted": true}),
                end,
            ]
        }
    };
    values
        .into_iter()
        .filter_map(|value| match serde_json::from_value(value) {
            Ok(chunk) => Some(chunk),
            Err(error) => {
                tracing::warn!(%error, "a part of a kept message is no longer a chunk");
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::fold::Fold;

    #[test]
    fn the_chunks_made_from_a_message_fold_to_the_same_message() {
        let message: Value =
            serde_json::from_str(include_str!("../../tests/fixtures/whole-turn.message.json")).expect("fixture");
        let turn: TurnData = serde_json::from_value(json!({
            "turnId": "turn_1", "messageId": message["id"], "userMessageId": "u", "status": "finished",
        }))
        .expect("data");
        let mut fold = Fold::default();
        for chunk in chunks(&message, &turn) {
            fold.apply(&chunk);
        }
        assert_eq!(fold.message(), message);
    }
}
