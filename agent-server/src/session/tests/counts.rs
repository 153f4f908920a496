//! What is counted about turns, and the instructions that go with touched folders.

use super::*;
use crate::harness::AbortReason;
use crate::session::tests::turns::wait_for;

#[tokio::test]
async fn turns_tokens_and_tools_are_counted_by_outcome() {
    let calls =
        [call("a", "echo", "{}"), call("b", "fail", "{}"), call("c", "other", "{}"), call("d", "echo", "{\"cut")];
    let bench = Bench::new(vec![
        [calls.concat(), done(StopReason::ToolUse, 100, 7)].concat(),
        answer("done"),
        vec![Act::Fail(LlmError::Overloaded { retry_after: None })],
        [text("x"), vec![Act::Hang]].concat(),
    ]);
    bench.ask("s", "u1", "go").await;
    bench.ask("s", "u2", "again").await;
    let turn = bench.start(submission("s", "u3", "and again")).await;
    wait_for(&turn, "text-delta").await;
    bench.sessions.stop("s", None, AbortReason::User).await;
    let mut registry = prometheus_client::registry::Registry::with_prefix("agent");
    bench.sessions.harness().metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    for line in [
        "agent_turns_total{outcome=\"finished\"} 1",
        "agent_turns_total{outcome=\"error\"} 1",
        "agent_turns_total{outcome=\"aborted\"} 1",
        "agent_model_tokens_total{kind=\"input\"} 110",
        "agent_model_tokens_total{kind=\"output\"} 9",
        "agent_tool_calls_total{tool=\"echo\",outcome=\"ok\"} 1",
        "agent_tool_calls_total{tool=\"echo\",outcome=\"not_run\"} 1",
        "agent_tool_calls_total{tool=\"fail\",outcome=\"error\"} 1",
        "agent_tool_calls_total{tool=\"unknown\",outcome=\"not_run\"} 1",
        "agent_tool_call_seconds_count{tool=\"echo\"} 2",
        "agent_turn_first_chunk_seconds_count 2",
        "agent_chat_stream_readers 0",
        "agent_compactions_total 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[tokio::test]
async fn instructions_of_a_touched_folder_are_there_from_the_next_call_on() {
    let touching = [call("a", "echo", "{\"path\":\"app/main.rs\"}"), done(StopReason::ToolUse, 1, 1)].concat();
    let bench = Bench::new(vec![touching, answer("one"), answer("two"), answer("other")]);
    let folder = bench.folder.path().join("workspace/app");
    std::fs::create_dir(&folder).expect("folder");
    std::fs::write(folder.join("AGENTS.md"), "Tabs here.").expect("written");
    bench.ask("s", "u1", "go").await;
    let turn = Submission { system_prompt: Some("For this turn.".into()), ..submission("s", "u2", "on") };
    chunks(bench.start(turn).await.as_ref()).await;
    bench.ask("other", "u1", "go").await;
    let asked = bench.script.asked.lock().expect("no panic").clone();
    let has = |text: &str| asked.iter().map(|request| request.system.contains(text)).collect::<Vec<_>>();
    assert_eq!(has("Tabs here."), [false, true, true, false]);
    assert_eq!(has("For this turn."), [false, false, true, false]);
    assert!(bench.sessions.system_prompt("s").await.expect("prompt").contains("Tabs here."));
    assert!(!bench.sessions.system_prompt("other").await.expect("prompt").contains("Tabs here."));
}
