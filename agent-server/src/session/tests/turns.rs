//! What clients see of a turn, and that history says the same.

use super::*;
use crate::harness::AbortReason;
use crate::llm::{AssistantBlock, InputBlock, ModelMessage};

#[tokio::test]
async fn a_turn_with_thinking_text_and_two_tools_has_the_structure_of_the_contract() {
    let bench = Bench::new(vec![
        [
            thinking("Two things."),
            text("I do both."),
            call("toolu_A", "make", "{\"target\":\"test\"}"),
            call("toolu_B", "echo", "{\"say\":\"hi\"}"),
            done(StopReason::ToolUse, 900, 80),
        ]
        .concat(),
        [text("All done."), done(StopReason::Stop, 1100, 20)].concat(),
    ]);
    let chunks = bench.ask("s", "u1", "Do both").await;
    assert_eq!(
        kinds(&chunks),
        [
            "start",
            "start-step",
            "reasoning-start",
            "reasoning-delta",
            "reasoning-end",
            "text-start",
            "text-delta",
            "text-end",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-available",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-available",
            "data-usage",
            "message-metadata",
            "data-file-changed",
            "tool-output-available",
            "tool-output-available",
            "finish-step",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "data-usage",
            "finish-step",
            "finish",
        ]
    );
    let turn_id = chunks[0]["messageMetadata"]["turnId"].as_str().expect("turn id");
    let finish = chunks.last().expect("finish");
    assert_eq!(finish["finishReason"], "stop");
    let usage = json!({"inputTokens": 2000, "outputTokens": 100, "cacheReadTokens": 0, "cacheWriteTokens": 0});
    assert_eq!(finish["messageMetadata"]["usage"], usage);
    let messages = bench.messages("s").await;
    assert_eq!(messages[0], json!({"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Do both"}]}));
    assert_eq!(
        messages[1],
        json!({
            "id": chunks[0]["messageId"], "role": "assistant",
            "metadata": {
                "turnId": turn_id, "createdAt": chunks[0]["messageMetadata"]["createdAt"],
                "model": {"provider": "anthropic", "id": "claude-x"}, "usage": usage,
                "durationMs": finish["messageMetadata"]["durationMs"],
            },
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "id": "s1-r0", "text": "Two things.", "state": "done"},
                {"type": "text", "text": "I do both.", "state": "done"},
                {"type": "tool-make", "toolCallId": "toolu_A", "state": "output-available", "providerExecuted": true,
                 "input": {"target": "test"},
                 "output": {"content": [{"type": "text", "text": "whole"}], "details": {"ran": "make"}}},
                {"type": "tool-echo", "toolCallId": "toolu_B", "state": "output-available", "providerExecuted": true,
                 "input": {"say": "hi"},
                 "output": {"content": [{"type": "text", "text": "{\"say\":\"hi\"}"}], "details": {"ran": "echo"}}},
                {"type": "data-usage", "id": "s1-usage",
                 "data": {"step": 1, "inputTokens": 900, "outputTokens": 80, "cacheReadTokens": 0, "cacheWriteTokens": 0}},
                {"type": "data-file-changed", "id": "toolu_A-0",
                 "data": {"op": "write", "path": "a.txt", "size": 3, "toolCallId": "toolu_A"}},
                {"type": "step-start"},
                {"type": "text", "text": "All done.", "state": "done"},
                {"type": "data-usage", "id": "s2-usage",
                 "data": {"step": 2, "inputTokens": 1100, "outputTokens": 20, "cacheReadTokens": 0, "cacheWriteTokens": 0}},
            ],
        })
    );
}

#[tokio::test]
async fn the_model_gets_thinking_with_its_signature_and_each_result_in_order() {
    let bench = Bench::new(vec![
        [thinking("Hm."), call("a", "fail", "{}"), call("b", "nothing", "{}"), call("c", "echo", "{\"x")].concat(),
        answer("Sorry."),
        answer("Again."),
    ]);
    bench.script.calls.lock().expect("no panic")[0].extend(done(StopReason::ToolUse, 1, 1));
    bench.ask("s", "u1", "go").await;
    bench.ask("s", "u2", "more").await;
    let asked = bench.script.asked.lock().expect("no panic");
    let said = |text: &str| vec![InputBlock::Text { text: text.into() }];
    let result = |id: &str, text: &str| ModelMessage::ToolResult {
        tool_call_id: id.into(),
        content: said(text),
        is_error: true,
    };
    let empty =
        |id: &str, name: &str| AssistantBlock::ToolCall { id: id.into(), name: name.into(), arguments: json!({}) };
    let expected = vec![
        ModelMessage::User(said("go")),
        ModelMessage::Assistant(vec![
            AssistantBlock::Thinking {
                thinking: "Hm.".into(),
                thinking_signature: Some("SIG".into()),
                redacted: false,
            },
            empty("a", "fail"),
            empty("b", "nothing"),
            empty("c", "echo"),
        ]),
        result("a", "it failed"),
        result("b", "There is no tool named nothing."),
        result("c", "The arguments are no valid JSON: EOF while parsing a string at line 1 column 3."),
    ];
    assert_eq!(*asked[1].messages, expected, "within the turn");
    assert_eq!(asked[2].messages[..expected.len()], expected, "from the session file");
}

#[tokio::test]
async fn a_stop_in_mid_text_and_mid_call_closes_everything_and_keeps_what_was_said() {
    let cut = [
        text("So far"),
        call("a", "echo", "{}"),
        vec![
            Act::Event(ModelEvent::ToolCallStart { id: "b".into(), name: "echo".into() }),
            Act::Event(ModelEvent::ToolCallDelta("{\"half\":".into())),
            Act::Hang,
        ],
    ]
    .concat();
    let bench = Bench::new(vec![cut, answer("Next.")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_for(&turn, "tool-input-available").await;
    bench.sessions.stop("s", Some("another"), AbortReason::User).await;
    assert!(bench.sessions.active("s").is_some(), "a stop of another turn changes nothing");
    bench.sessions.stop("s", Some(&turn.turn_id), AbortReason::User).await;
    assert!(bench.sessions.active("s").is_none());
    let chunks = chunks(&turn).await;
    assert_eq!(
        chunks[chunks.len() - 6..],
        [
            json!({"type": "tool-input-available", "toolCallId": "b", "toolName": "echo", "input": "{\"half\":",
                   "providerExecuted": true}),
            json!({"type": "tool-output-error", "toolCallId": "a", "errorText": "Stopped by the user.",
                   "providerExecuted": true}),
            json!({"type": "tool-output-error", "toolCallId": "b", "errorText": "Stopped by the user.",
                   "providerExecuted": true}),
            json!({"type": "finish-step"}),
            json!({"type": "message-metadata", "messageMetadata": {"status": "aborted", "reason": "user",
                   "usage": {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0}}}),
            json!({"type": "abort"}),
        ]
    );
    bench.ask("s", "u2", "and now").await;
    let asked = bench.script.asked.lock().expect("no panic").last().expect("asked").messages.clone();
    assert_eq!(
        asked[1],
        ModelMessage::Assistant(vec![AssistantBlock::Text { text: "So far".into() }]),
        "the cut message gives its text and no call"
    );
}

#[tokio::test]
async fn a_stop_while_tools_run_gives_each_call_its_result() {
    let calls = [call("a", "hang", "{}"), call("b", "make", "{}"), done(StopReason::ToolUse, 5, 1)].concat();
    let bench = Bench::new(vec![calls]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_for(&turn, "message-metadata").await;
    bench.sessions.stop("s", None, AbortReason::User).await;
    let state = bench.state();
    let results: Vec<Value> = lines(&state, "s")
        .into_iter()
        .filter(|line| line["message"]["role"] == "toolResult")
        .map(|line| json!([line["message"]["toolCallId"], line["message"]["isError"], line["message"]["content"]]))
        .collect();
    let stopped = json!([{"type": "text", "text": "Stopped by the user."}]);
    assert_eq!(results, [json!(["a", true, stopped]), json!(["b", true, stopped])]);
    let assistant = lines(&state, "s").into_iter().find(|line| line["message"]["role"] == "assistant").expect("there");
    assert_eq!(assistant["message"]["stopReason"], "toolUse");
    assert_eq!(bench.messages("s").await[1], turn.message());
}

#[tokio::test]
async fn a_failure_of_the_model_ends_the_turn_with_its_class_and_keeps_the_message() {
    let failed = [text("Half"), vec![Act::Fail(LlmError::Overloaded { retry_after: Some(Duration::from_secs(7)) })]];
    let bench = Bench::new(vec![failed.concat()]);
    let chunks = bench.ask("s", "u1", "go").await;
    assert_eq!(
        chunks[chunks.len() - 3..],
        [
            json!({"type": "finish-step"}),
            json!({"type": "message-metadata", "messageMetadata":
                   {"status": "error", "error": {"code": "model_overloaded", "retryAfter": 7}}}),
            json!({"type": "error", "errorText": "the model provider is overloaded"}),
        ]
    );
    let messages = bench.messages("s").await;
    assert_eq!(messages[1]["parts"][1], json!({"type": "text", "text": "Half", "state": "done"}));
}

#[tokio::test]
async fn a_broken_tool_leaves_a_result_and_repeated_call_ids_become_unique() {
    let bench = Bench::new(vec![
        // The pause lets the reader come before the notice, which is not replayed.
        [
            vec![Act::Wait(Duration::from_millis(50))],
            call("x", "break", "{}"),
            call("x", "echo", "{\"__proto__\":1,\"y\":2}"),
            done(StopReason::ToolUse, 1, 1),
        ]
        .concat(),
        answer("ok"),
    ]);
    let chunks = bench.ask("s", "u1", "go").await;
    let outputs: Vec<&Value> = chunks
        .iter()
        .filter(|chunk| chunk["type"].as_str().is_some_and(|kind| kind.starts_with("tool-output")))
        .collect();
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    let error = outputs.iter().find(|chunk| chunk["type"] == "tool-output-error").expect("error");
    assert_eq!(error["toolCallId"], "x");
    let echo = outputs.iter().find(|chunk| chunk["type"] == "tool-output-available").expect("output");
    assert_eq!((&echo["toolCallId"], &echo["output"]["content"][0]["text"]), (&json!("x-2"), &json!("{\"y\":2}")));
    assert!(chunks.iter().any(|chunk| chunk["type"] == "data-notice"), "the dropped key is told");
}

/// Waits until a chunk of this kind was sent.
pub(super) async fn wait_for(turn: &ActiveTurn, kind: &str) {
    let mut frames = Box::pin(turn.log.follow(0));
    let wanted = format!("\"type\":\"{kind}\"");
    let found = async {
        while let Some(frame) = frames.next().await {
            if String::from_utf8_lossy(&frame.expect("whole")).contains(&wanted) {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), found).await.expect("in time"), "no {kind}");
}

#[tokio::test]
async fn what_a_call_left_running_is_told_to_end_when_the_turn_ends_well() {
    let bench = Bench::new(vec![
        [call("toolu_A", "leave", "{}"), done(StopReason::ToolUse, 1, 1)].concat(),
        [vec![Act::Wait(Duration::from_millis(50))], answer("Done.")].concat(),
    ]);
    let chunks = bench.ask("s", "u1", "Start it").await;
    assert_eq!(chunks.last().expect("finish")["type"], "finish");
    let file = bench.folder.path().join("workspace/ended");
    let told = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("it is told");
}
