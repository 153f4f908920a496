//! The conversation as the model gets it, made from the entries of a session.
//!
//! Owns what is sent: summaries in the place of what they sum up, results for every call, images within a bound. Must
//! not touch a disk; images are asked for by a closure.

use std::collections::HashSet;

use serde_json::Value;

use super::entry::{Assistant, Block, Entry, KeptImage, Kind, ToolResult};
use super::transcript::Transcript;
use crate::harness::{AbortReason, Counted, compaction};
use crate::llm::{AssistantBlock, InputBlock, ModelMessage, Usage};

/// Images sent along with one call, newest first: the provider takes 32 MB a request, base64 adds a third.
const MAX_IMAGE_BYTES: u64 = 16 * 1024 * 1024;

/// Said to the model in the place of what stood before an unreadable line.
const LOST_BEGINNING: &str = "[The beginning of this conversation is lost.]";

/// The conversation for a model, and where its messages come from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<ModelMessage>,
    /// The line of each message.
    pub lines: Vec<String>,
    /// What the provider counted at the newest model message.
    pub counted: Option<Counted>,
    /// Paths that tools were given, the first ones first.
    pub touched: Vec<String>,
}

impl Conversation {
    fn push(&mut self, line: &str, message: ModelMessage) {
        self.messages.push(message);
        self.lines.push(line.to_owned());
    }

    /// Gives results to calls that have none.
    fn settle(&mut self, line: &str, waiting: &mut Vec<String>) {
        for tool_call_id in waiting.drain(..) {
            let content = vec![InputBlock::Text { text: AbortReason::Crash.text().into() }];
            self.push(line, ModelMessage::ToolResult { tool_call_id, content, is_error: true });
        }
    }

    fn assistant(&mut self, line: &str, message: &Assistant, provider: &str, model: &str) -> Vec<String> {
        let blocks = blocks_for(message, provider, model);
        let mut calls = Vec::new();
        for block in &blocks {
            let AssistantBlock::ToolCall { id, arguments, .. } = block else { continue };
            calls.push(id.clone());
            if let Some(path) = arguments.get("path").and_then(Value::as_str)
                && !self.touched.iter().any(|touched| touched == path)
            {
                self.touched.push(path.to_owned());
            }
        }
        self.push(line, ModelMessage::Assistant(blocks));
        calls
    }

    /// Takes over what the provider counted for everything up to the newest message.
    fn count(&mut self, message: &Assistant) {
        let Usage { input, output, cache_read, cache_write } = message.usage;
        let tokens = input + output + cache_read + cache_write;
        if tokens > 0 && !message.is_cut() {
            self.counted = Some(Counted { messages: self.messages.len(), tokens });
        }
    }
}

/// The conversation for a model. Cut messages give their text only; thinking of another model is left out; every call
/// of a whole message has exactly one result, made up where it is missing.
pub fn conversation(
    transcript: &Transcript,
    provider: &str,
    model: &str,
    image: &dyn Fn(&KeptImage) -> Option<String>,
) -> Conversation {
    let (branch, counted_from) = after_compaction(transcript.branch());
    let images = Images { kept: images_to_send(&branch), read: image };
    let mut conversation = Conversation::default();
    let mut waiting: Vec<String> = Vec::new();
    for (at, entry) in branch.into_iter().enumerate() {
        if let Some(blocks) = said_to_model(entry, &images) {
            conversation.settle(&entry.id, &mut waiting);
            conversation.push(&entry.id, ModelMessage::User(blocks));
        }
        match &entry.kind {
            Kind::Assistant(message) => {
                conversation.settle(&entry.id, &mut waiting);
                waiting = conversation.assistant(&entry.id, message, provider, model);
                if at >= counted_from {
                    conversation.count(message);
                }
            }
            Kind::ToolResult(result) => {
                if let Some(at) = waiting.iter().position(|id| *id == result.tool_call_id) {
                    let tool_call_id = waiting.remove(at);
                    let content = images.blocks(&result.content);
                    let is_error = result.is_error;
                    conversation.push(&entry.id, ModelMessage::ToolResult { tool_call_id, content, is_error });
                }
            }
            _ => {}
        }
    }
    let last = conversation.lines.last().cloned().unwrap_or_default();
    conversation.settle(&last, &mut waiting);
    // Providers want the user to speak first. Behind a lost line the branch begins anywhere, and a session must not be
    // refused for ever because of it.
    if conversation.messages.first().is_some_and(|first| !matches!(first, ModelMessage::User(_))) {
        let first = conversation.lines.first().cloned().unwrap_or_default();
        let text = InputBlock::Text { text: LOST_BEGINNING.into() };
        conversation.messages.insert(0, ModelMessage::User(vec![text]));
        conversation.lines.insert(0, first);
        conversation.counted = None;
    }
    conversation
}

/// What an entry says to the model in the user's place.
fn said_to_model(entry: &Entry, images: &Images<'_>) -> Option<Vec<InputBlock>> {
    match &entry.kind {
        Kind::User { content } => Some(images.blocks(content)),
        Kind::Compaction { summary, .. } => Some(vec![InputBlock::Text { text: compaction::shown_to_model(summary) }]),
        Kind::Other { text: Some(text) } => Some(vec![InputBlock::Text { text: text.clone() }]),
        _ => None,
    }
}

/// The images that are sent along, and how they are read.
struct Images<'a> {
    kept: HashSet<&'a str>,
    read: &'a dyn Fn(&KeptImage) -> Option<String>,
}

impl Images<'_> {
    fn blocks(&self, blocks: &[Block]) -> Vec<InputBlock> {
        let block = |block: &Block| match block {
            Block::Text(text) => InputBlock::Text { text: text.clone() },
            Block::Inline { mime_type, data } => InputBlock::Image { mime_type: mime_type.clone(), data: data.clone() },
            Block::Kept(found) => {
                let data = self.kept.contains(&*found.sha256).then(|| (self.read)(found)).flatten();
                data.map_or_else(
                    || InputBlock::Text { text: found.placeholder() },
                    |data| InputBlock::Image { mime_type: found.media_type.clone(), data },
                )
            }
        };
        blocks.iter().map(block).collect()
    }
}

/// A summary stands for everything before its first kept message. Also gives the index from which on the messages were
/// said with the summary in view; what was counted before is no measure any more.
fn after_compaction(branch: Vec<&Entry>) -> (Vec<&Entry>, usize) {
    let Some((at, first_kept)) = branch.iter().enumerate().rev().find_map(|(at, entry)| match &entry.kind {
        Kind::Compaction { first_kept, .. } => Some((at, first_kept)),
        _ => None,
    }) else {
        return (branch, 0);
    };
    let kept = branch.iter().position(|entry| entry.id == *first_kept).filter(|kept| *kept < at).unwrap_or(at);
    let lines = std::iter::once(branch[at])
        .chain(branch[kept..at].iter().copied())
        .chain(branch[at + 1..].iter().copied())
        .collect();
    (lines, 1 + at - kept)
}

fn images_to_send<'a>(branch: &[&'a Entry]) -> HashSet<&'a str> {
    let mut left = MAX_IMAGE_BYTES;
    let mut kept = HashSet::new();
    for entry in branch.iter().rev() {
        let (Kind::User { content } | Kind::ToolResult(ToolResult { content, .. })) = &entry.kind else { continue };
        for block in content.iter().rev() {
            let Block::Kept(image) = block else { continue };
            let Some(rest) = left.checked_sub(image.size) else { return kept };
            left = rest;
            kept.insert(image.sha256.as_str());
        }
    }
    kept
}

fn blocks_for(message: &Assistant, provider: &str, model: &str) -> Vec<AssistantBlock> {
    let same_model = message.provider == provider && message.model == model;
    message
        .blocks
        .iter()
        .filter(|block| match block {
            AssistantBlock::Text { .. } => true,
            AssistantBlock::Thinking { .. } => same_model && !message.is_cut(),
            AssistantBlock::ToolCall { .. } => !message.is_cut(),
        })
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_minimal_file_gives_four_model_messages() {
        let read = Transcript::read(include_bytes!("../../tests/fixtures/minimal-session.jsonl"));
        let conversation = conversation(&read.transcript, "anthropic", "claude-x", &|_| None).messages;
        let kinds: Vec<&str> = conversation
            .iter()
            .map(|message| match message {
                ModelMessage::User(_) => "user",
                ModelMessage::Assistant(_) => "assistant",
                ModelMessage::ToolResult { .. } => "toolResult",
            })
            .collect();
        assert_eq!(kinds, ["user", "assistant", "toolResult", "assistant"]);
    }

    #[test]
    fn a_session_with_a_damaged_line_still_begins_with_the_user() {
        let text = include_str!("../../tests/fixtures/minimal-session.jsonl");
        for damaged in 0..text.lines().count() {
            let lines = text.lines().enumerate().map(|(at, line)| if at == damaged { "{broken" } else { line });
            let read = Transcript::read((lines.collect::<Vec<_>>().join("\n") + "\n").as_bytes());
            let conversation = conversation(&read.transcript, "anthropic", "claude-x", &|_| None).messages;
            assert!(
                matches!(conversation.first(), None | Some(ModelMessage::User(_))),
                "line {damaged}: {conversation:?}"
            );
        }
    }

    #[test]
    fn a_call_without_a_result_gets_one_and_thinking_of_another_model_is_left_out() {
        let text = include_str!("../../tests/fixtures/minimal-session.jsonl");
        let without_result: String = text.split_inclusive('\n').take(3).collect();
        let read = Transcript::read(without_result.as_bytes());
        assert_eq!(
            conversation(&read.transcript, "anthropic", "other", &|_| None).messages[1..],
            [
                ModelMessage::Assistant(vec![
                    AssistantBlock::Text { text: "I run the tests.".into() },
                    AssistantBlock::ToolCall {
                        id: "toolu_A".into(),
                        name: "bash".into(),
                        arguments: json!({"command": "make test"})
                    },
                ]),
                ModelMessage::ToolResult {
                    tool_call_id: "toolu_A".into(),
                    content: vec![InputBlock::Text { text: AbortReason::Crash.text().into() }],
                    is_error: true,
                },
            ]
        );
    }

    #[test]
    fn a_summary_stands_before_the_messages_that_were_kept() {
        let text = include_str!("../../tests/fixtures/minimal-session.jsonl");
        let compaction = json!({"type": "compaction", "id": "0badcafe", "parentId": "e5f6a7b8", "timestamp": "",
                                "summary": "Tests ran.", "firstKeptEntryId": "d4e5f6a7", "tokensBefore": 1});
        let read = Transcript::read(format!("{text}{compaction}\n").as_bytes());
        let conversation = conversation(&read.transcript, "anthropic", "claude-x", &|_| None);
        let notes = "[The conversation up to here was too long. These notes stand in its place:]\n<notes>\nTests ran.\n</notes>";
        assert_eq!(
            conversation,
            Conversation {
                messages: vec![
                    ModelMessage::User(vec![InputBlock::Text { text: notes.into() }]),
                    ModelMessage::Assistant(vec![AssistantBlock::Text { text: "All tests pass.".into() }]),
                ],
                lines: vec!["0badcafe".into(), "d4e5f6a7".into()],
                counted: None,
                touched: Vec::new(),
            }
        );
    }
}
