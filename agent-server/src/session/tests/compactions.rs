//! A conversation that outgrows the model's context is summarised for the model and stays whole for people.

use super::*;
use crate::harness::AbortReason;
use crate::llm::{AssistantBlock, InputBlock, ModelMessage};

/// Fills an eighth of the context by itself.
fn long() -> String {
    "word ".repeat(4_000)
}

/// An answer after which the context counts as full.
fn filling(words: &str) -> Vec<Act> {
    [text(words), done(StopReason::Stop, CONTEXT_TOKENS / 4 * 3 + 1, 10)].concat()
}

fn notes(summary: &str) -> ModelMessage {
    let text = format!(
        "[The conversation up to here was too long. These notes stand in its place:]\n<notes>\n{summary}\n</notes>"
    );
    ModelMessage::User(vec![InputBlock::Text { text }])
}

fn user(words: &str) -> ModelMessage {
    ModelMessage::User(vec![InputBlock::Text { text: words.into() }])
}

fn said(words: &str) -> ModelMessage {
    ModelMessage::Assistant(vec![AssistantBlock::Text { text: words.into() }])
}

fn asked(bench: &Bench) -> Vec<ModelRequest> {
    bench.script.asked.lock().expect("no panic").clone()
}

#[tokio::test]
async fn a_full_context_is_summarised_before_the_next_call_and_the_shown_history_stays_whole() {
    let summary = [text("NOTES"), done(StopReason::Stop, 100, 50)].concat();
    let bench = Bench::new(vec![filling("one"), summary, answer("two"), answer("three")]);
    bench.ask("s", "u1", &long()).await;
    let chunks = bench.ask("s", "u2", "more").await;
    bench.ask("s", "u3", "on").await;
    let requests = asked(&bench);
    assert_eq!(requests.len(), 4);
    assert_eq!((requests[1].tools.len(), requests[1].messages.len()), (0, 1));
    let ModelMessage::User(blocks) = &requests[1].messages[0] else { panic!("a user message") };
    let InputBlock::Text { text } = &blocks[0] else { panic!("a text") };
    assert!(text.starts_with("<conversation>\n### User\nword word"), "{}", &text[..60]);
    assert_eq!(*requests[2].messages, [notes("NOTES"), said("one"), user("more")]);
    let kept = [notes("NOTES"), said("one"), user("more"), said("two"), user("on")];
    assert_eq!(*requests[3].messages, kept, "from the file it is the same, and not summarised again");
    let usage = chunks.iter().find(|chunk| chunk["type"] == "data-usage").expect("usage");
    assert_eq!((&usage["data"]["inputTokens"], &usage["data"]["outputTokens"]), (&json!(110), &json!(52)));
    assert_eq!(bench.messages("s").await.len(), 6);
    let lines = lines(&bench.state(), "s");
    let compaction = lines.iter().find(|line| line["type"] == "compaction").expect("compaction");
    let first_kept = lines.iter().find(|line| line["id"] == compaction["firstKeptEntryId"]).expect("the line is there");
    assert_eq!(first_kept["message"]["content"][0]["text"], "one");
    assert_eq!(compaction["summary"], "NOTES");
    assert!(compaction["tokensBefore"].as_u64().is_some_and(|tokens| tokens > 5_000), "{compaction}");
}

#[tokio::test]
async fn a_context_that_fills_within_a_turn_is_summarised_between_its_steps() {
    let step = |id: &str, input| [call(id, "echo", "{\"x\":1}"), done(StopReason::ToolUse, input, 1)].concat();
    let full = CONTEXT_TOKENS / 4 * 3 + 1;
    let bench = Bench::new(vec![step("a", 10), step("b", full), answer("NOTES"), answer("done")]);
    bench.ask("s", "u1", &long()).await;
    let requests = asked(&bench);
    assert_eq!(requests.len(), 4);
    let kinds: Vec<&str> = requests[3]
        .messages
        .iter()
        .map(|message| match message {
            ModelMessage::User(_) => "user",
            ModelMessage::Assistant(_) => "assistant",
            ModelMessage::ToolResult { .. } => "result",
        })
        .collect();
    assert_eq!(kinds, ["user", "assistant", "result", "assistant", "result"]);
    assert_eq!(requests[3].messages[0], notes("NOTES"));
    super::invariants::assert_valid_conversation(&requests[3].messages);
    bench.script.calls.lock().expect("no panic").push_back(answer("again"));
    bench.ask("s", "u2", "on").await;
    let next = asked(&bench).pop().expect("asked").messages;
    assert_eq!(next[..5], requests[3].messages[..]);
    assert_eq!(next[5..], [said("done"), user("on")]);
    let shown = &bench.messages("s").await[1];
    assert_eq!(shown["parts"].as_array().expect("parts").iter().filter(|part| part["type"] == "tool-echo").count(), 2);
}

#[tokio::test]
async fn a_call_that_the_provider_finds_too_long_is_made_once_more_after_a_summary() {
    let too_long = || vec![Act::Fail(LlmError::ContextTooLong)];
    let bench = Bench::new(vec![answer("one"), too_long(), answer("NOTES"), answer("two")]);
    bench.ask("s", "u1", &long()).await;
    let chunks = bench.ask("s", "u2", "more").await;
    assert_eq!(kinds(&chunks).last(), Some(&"finish"));
    assert_eq!(*asked(&bench)[3].messages, [notes("NOTES"), said("one"), user("more")]);
    bench.script.calls.lock().expect("no panic").extend([
        too_long(),
        answer("MORE NOTES"),
        too_long(),
        answer("never"),
    ]);
    let chunks = bench.ask("s", "u3", "on").await;
    let error = &chunks[chunks.len() - 2]["messageMetadata"]["error"]["code"];
    assert_eq!((error, asked(&bench).len()), (&json!("context_too_long"), 7), "one summary and one retry");
}

#[tokio::test]
async fn a_request_for_a_summary_that_is_too_long_itself_is_halved() {
    let too_long = || vec![Act::Fail(LlmError::ContextTooLong)];
    let bench = Bench::new(vec![answer("one"), too_long(), too_long(), answer("NOTES"), answer("two")]);
    bench.ask("s", "u1", &long()).await;
    bench.ask("s", "u2", "more").await;
    let requests = asked(&bench);
    let length = |at: usize| match &requests[at].messages[0] {
        ModelMessage::User(blocks) => match &blocks[0] {
            InputBlock::Text { text } => text.len(),
            InputBlock::Image { .. } => 0,
        },
        _ => 0,
    };
    assert!(length(3) < length(2) * 2 / 3, "{} after {}", length(3), length(2));
    assert_eq!(requests[4].messages[0], notes("NOTES"));
}

#[tokio::test]
async fn one_message_that_is_too_long_alone_fails_without_a_summary() {
    let bench = Bench::new(vec![vec![Act::Fail(LlmError::ContextTooLong)], answer("never")]);
    let chunks = bench.ask("s", "u1", &long()).await;
    assert_eq!(chunks[chunks.len() - 2]["messageMetadata"]["error"]["code"], "context_too_long");
    assert_eq!(asked(&bench).len(), 1);
}

#[tokio::test]
async fn a_stop_while_the_summary_is_written_leaves_the_conversation_as_it_was() {
    let bench = Bench::new(vec![filling("one"), [text("half"), vec![Act::Hang]].concat(), answer("two")]);
    bench.ask("s", "u1", &long()).await;
    let turn = bench.start(submission("s", "u2", "more")).await;
    let summarising = async {
        while asked(&bench).len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), summarising).await.expect("in time");
    bench.sessions.stop("s", None, AbortReason::User).await;
    assert_eq!(chunks(&turn).await.pop(), Some(json!({"type": "abort"})));
    assert!(lines(&bench.state(), "s").iter().all(|line| line["type"] != "compaction"));
}
