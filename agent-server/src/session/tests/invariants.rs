//! What holds for every turn, whatever the model does.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::harness::AbortReason;
use crate::harness::open_parts::OpenParts;
use crate::llm::{AssistantBlock, ModelMessage};

/// Every call has exactly one result, right behind its message; the last message is the user's or a result.
pub(super) fn assert_valid_conversation(messages: &[ModelMessage]) {
    let mut waiting: Vec<&str> = Vec::new();
    for message in messages {
        match message {
            ModelMessage::Assistant(blocks) => {
                assert_eq!(waiting, [""; 0], "calls without a result");
                waiting = blocks
                    .iter()
                    .filter_map(|block| match block {
                        AssistantBlock::ToolCall { id, .. } => Some(id.as_str()),
                        _ => None,
                    })
                    .collect();
            }
            ModelMessage::ToolResult { tool_call_id, .. } => {
                let at = waiting.iter().position(|id| id == tool_call_id).expect("a result answers a call");
                waiting.remove(at);
            }
            ModelMessage::User(blocks) => {
                assert_eq!(waiting, [""; 0], "calls without a result");
                assert!(!blocks.is_empty());
            }
        }
    }
    assert_eq!(waiting, [""; 0], "calls without a result");
    assert!(!matches!(messages.last(), Some(ModelMessage::Assistant(_)) | None));
}

fn assert_valid_stream(schema: &jsonschema::Validator, chunks: &[Value]) {
    let mut open = OpenParts::default();
    let mut outputs = HashSet::new();
    for (index, chunk) in chunks.iter().enumerate() {
        assert!(schema.is_valid(chunk), "not a chunk that clients accept: {chunk}");
        let parsed: crate::harness::chunk::Chunk = serde_json::from_value(chunk.clone()).expect("chunk");
        assert_eq!(parsed.is_terminal(), index + 1 == chunks.len(), "terminal at {index}");
        assert_eq!(chunk["type"] == "start", index == 0);
        if let Some(id) = chunk["toolCallId"].as_str().filter(|_| chunk["output"].is_object()) {
            assert!(!outputs.contains(id), "an output behind the final one");
            if chunk.get("preliminary").is_none() {
                outputs.insert(id.to_owned());
            }
        }
        open.apply(&parsed);
        if chunk["type"] == "finish-step" {
            assert_eq!(open.close("x"), [], "open behind a step");
        }
    }
    assert_eq!(open.close("x"), [], "open at the end");
}

fn an_act() -> impl Strategy<Value = Vec<Act>> {
    let words = "[a-z \\\\\"{}\u{e9}\u{1f600}]{0,40}";
    prop_oneof![
        4 => words.prop_map(|words| text(&words)),
        2 => words.prop_map(|words| thinking(&words)),
        1 => Just(vec![Act::Event(ModelEvent::ThinkingStart),
            Act::Event(ModelEvent::ThinkingEnd { signature: Some("OPAQUE".into()), redacted: true })]),
        4 => ("[a-c]", prop_oneof![Just("echo"), Just("make"), Just("fail"), Just("break"), Just("unknown")],
            prop_oneof![Just("{}"), Just(""), Just("{\"k\":[1,{\"__proto__\":2}]}"), Just("{\"cut"), Just("[1]")])
            .prop_map(|(id, name, arguments)| call(&id, name, arguments)),
        1 => Just(vec![Act::Wait(Duration::from_millis(1))]),
    ]
}

fn an_end() -> impl Strategy<Value = Vec<Act>> {
    prop_oneof![
        6 => prop_oneof![Just(StopReason::Stop), Just(StopReason::ToolUse), Just(StopReason::Length)]
            .prop_map(|reason| done(reason, 3, 2)),
        1 => Just(vec![Act::Fail(LlmError::Connection("lost".into()))]),
        1 => Just(vec![Act::Fail(LlmError::ContextTooLong)]),
        1 => Just(Vec::new()),
        1 => Just(vec![Act::Event(ModelEvent::TextStart), Act::Event(ModelEvent::TextDelta("cut".into())), Act::Hang]),
    ]
}

fn a_call() -> impl Strategy<Value = Vec<Act>> {
    (prop::collection::vec(an_act(), 0..5), an_end()).prop_map(|(acts, end)| [acts.concat(), end].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_turn_is_well_formed_stored_and_replayable(
        turns in prop::collection::vec(prop::collection::vec(a_call(), 1..4), 1..3),
    ) {
        let schema: Value =
            serde_json::from_str(include_str!("../../../tests/fixtures/chunk.schema.json")).expect("schema");
        let schema = jsonschema::validator_for(&schema).expect("schema");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let bench = Bench::new(Vec::new());
            for (number, calls) in turns.into_iter().enumerate() {
                let hangs = calls.iter().flatten().any(|act| matches!(act, Act::Hang));
                // A script that runs out ends the turn.
                *bench.script.calls.lock().expect("no panic") = calls.into_iter().chain([answer("end")]).collect();
                let turn = bench.start(submission("s", &format!("u{number}"), "go")).await;
                if hangs {
                    let ended = tokio::time::timeout(Duration::from_millis(100), chunks(&turn)).await;
                    if ended.is_err() {
                        bench.sessions.stop("s", None, AbortReason::User).await;
                    }
                }
                let seen = chunks(&turn).await;
                assert_valid_stream(&schema, &seen);
                let messages = bench.messages("s").await;
                assert_eq!(messages.last(), Some(&assembled(&seen)), "history is what clients assembled");
                assert_eq!(messages.len(), 2 * (number + 1));
                for request in bench.script.asked.lock().expect("no panic").iter() {
                    assert_valid_conversation(&request.messages);
                }
                let record = bench.sessions.summary("s").await.expect("summary");
                assert_eq!(record.message_count, messages.len() as u64);
            }
            let lines = lines(&bench.state(), "s");
            let ids: HashSet<&str> = lines.iter().filter_map(|line| line["id"].as_str()).collect();
            assert_eq!(ids.len(), lines.len(), "ids are unique");
            for line in &lines[1..] {
                assert!(line["parentId"].is_null() || ids.contains(line["parentId"].as_str().expect("id")));
            }
        });
    }
}
