//! A process that dies at any moment leaves a session that goes on.

use super::turns::wait_for;
use super::*;
use crate::harness::AbortReason;
use crate::llm::{InputBlock, ModelMessage};

/// Copies the state as a crash would leave it, without the lock of the running process.
pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("folder");
    for entry in std::fs::read_dir(from).expect("folder") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copy");
        }
    }
}

async fn wait_until_on_disk(bench: &Bench, turn: &ActiveTurn, text: &str) {
    let path = bench.state().join("turns").join("s").join(format!("{}.log", turn.turn_id));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(&path).unwrap_or_default().contains(text) {
        assert!(tokio::time::Instant::now() < deadline, "{text} does not reach the disk");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_turn_cut_by_a_crash_is_closed_and_the_session_goes_on() {
    let first = [text("Working"), call("a", "make", "{}"), call("b", "hang", "{}"), done(StopReason::ToolUse, 5, 5)];
    let bench = Bench::new(vec![first.concat(), answer("after")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_until_on_disk(&bench, &turn, "\"whole\"").await;
    let crashed = bench.folder.path().join("crashed");
    copy(&bench.state(), &crashed);
    bench.sessions.stop("s", None, AbortReason::User).await;

    let sessions = bench.reopened(&crashed);
    sessions.recover().await;
    let record = sessions.summary("s").await.expect("summary");
    assert!(!record.running);
    let messages = sessions.messages("s", false).await.expect("messages");
    assert_eq!(messages.len(), 2);
    let message = &messages[1];
    assert_eq!((&message["metadata"]["status"], &message["metadata"]["reason"]), (&json!("aborted"), &json!("crash")));
    let part = |id: &str| {
        message["parts"].as_array().expect("parts").iter().find(|part| part["toolCallId"] == id).expect("part").clone()
    };
    assert_eq!(part("a")["output"]["content"], json!([{"type": "text", "text": "whole"}]));
    assert_eq!(part("b")["errorText"], AbortReason::Crash.text());

    let log = sessions.turn_log("s", &turn.turn_id).await.expect("log").expect("there");
    let frames: Vec<_> = log.follow(0).collect().await;
    let replayed: Vec<String> =
        frames.into_iter().map(|frame| String::from_utf8(frame.expect("whole").to_vec()).expect("text")).collect();
    assert!(replayed[replayed.len() - 2].contains("{\"type\":\"abort\"}"), "{replayed:?}");

    let next = sessions.submit(submission("s", "u2", "go on")).await.expect("starts");
    chunks(&next).await;
    let asked = bench.script.asked.lock().expect("no panic").last().expect("asked").messages.clone();
    let results: Vec<(String, bool)> = asked
        .iter()
        .filter_map(|message| match message {
            ModelMessage::ToolResult { tool_call_id, is_error, .. } => Some((tool_call_id.clone(), *is_error)),
            _ => None,
        })
        .collect();
    assert_eq!(results, [("a".to_owned(), false), ("b".to_owned(), true)]);
    assert_eq!(asked.last(), Some(&ModelMessage::User(vec![InputBlock::Text { text: "go on".into() }])));
}

#[tokio::test]
async fn a_session_file_cut_at_every_byte_opens_and_goes_on() {
    let first = [text("Hi"), call("a", "echo", "{\"x\":1}"), done(StopReason::ToolUse, 5, 5)].concat();
    let bench = Bench::new(vec![first, answer("done")]);
    bench.ask("s", "u1", "go").await;
    let path = std::fs::read_dir(bench.state().join("sessions")).expect("folder").next().expect("file").expect("entry");
    let whole = std::fs::read(path.path()).expect("read");
    let header = whole.iter().position(|byte| *byte == b'\n').expect("header") + 1;
    // Every border of a line and a spread of other places; each one is a process of its own.
    let borders = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').flat_map(|(at, _)| [at, at + 1, at + 2]);
    let spread = (header..whole.len()).step_by(97);
    let before_the_header_is_whole = [0, 1, header - 1];
    let cuts: std::collections::BTreeSet<usize> =
        before_the_header_is_whole.into_iter().chain(borders).chain(spread).filter(|cut| *cut <= whole.len()).collect();
    for cut in cuts {
        let state = bench.folder.path().join(format!("cut-{cut}"));
        std::fs::create_dir_all(state.join("sessions")).expect("folder");
        std::fs::write(state.join("sessions").join(path.file_name()), &whole[..cut]).expect("write");
        let sessions = bench.reopened(&state);
        sessions.recover().await;
        bench.script.calls.lock().expect("no panic").push_back(answer("again"));
        let turn = sessions.submit(submission("s", "u2", "more")).await.expect("starts");
        chunks(&turn).await;
        let asked = bench.script.asked.lock().expect("no panic").last().expect("asked").clone();
        super::invariants::assert_valid_conversation(&asked.messages);
        let messages = sessions.messages("s", false).await.expect("messages");
        assert_eq!(messages.last(), Some(&turn.message()), "cut at {cut}");
        for line in lines(&state, "s") {
            assert!(line["type"].is_string());
        }
    }
}

#[tokio::test]
async fn a_finished_turn_replays_from_disk_and_later_from_its_message() {
    let bench = Bench::new(vec![[call("a", "make", "{}"), done(StopReason::ToolUse, 5, 5)].concat(), answer("done")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    let live = chunks(&turn).await;
    let replay = |log: Arc<crate::session::turn_log::TurnLog>| async move {
        let turn = ActiveTurn {
            turn_id: log.turn_id().to_owned(),
            message_id: String::new(),
            log,
            stop: crate::harness::StopSignal::default(),
            fold: Mutex::default(),
            decided: true.into(),
        };
        chunks(&turn).await
    };
    let kept = replay(bench.sessions.turn_log("s", &turn.turn_id).await.expect("log").expect("there")).await;
    assert_eq!(assembled(&kept), assembled(&live));
    assert!(kept.iter().all(|chunk| chunk.get("transient").is_none() && chunk.get("preliminary").is_none()));
    std::fs::remove_dir_all(bench.state().join("turns")).expect("the logs have aged out");
    let made = replay(bench.sessions.turn_log("s", &turn.turn_id).await.expect("log").expect("there")).await;
    assert_eq!(assembled(&made), assembled(&live));
    assert_eq!(bench.messages("s").await[1], assembled(&live));
    assert!(bench.sessions.turn_log("s", "turn_x").await.expect("log").is_none());
    assert!(bench.sessions.turn_log("nowhere", "turn_x").await.expect("log").is_none());
}

#[tokio::test]
async fn shutdown_closes_running_turns_with_a_mark() {
    let bench = Bench::new(vec![[text("long"), vec![Act::Hang]].concat()]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_for(&turn, "text-delta").await;
    bench.sessions.stop_all(AbortReason::Shutdown).await;
    let chunks = chunks(&turn).await;
    assert_eq!(chunks[chunks.len() - 2]["messageMetadata"]["reason"], "shutdown");
    assert_eq!(chunks.last(), Some(&json!({"type": "abort"})));
    assert!(bench.sessions.running().is_empty());
}

#[tokio::test]
async fn what_another_program_appended_is_read_and_built_upon() {
    let bench = Bench::new(vec![answer("one"), answer("two")]);
    bench.ask("s", "u1", "hi").await;
    let state = bench.state();
    let file = std::fs::read_dir(state.join("sessions")).expect("folder").next().expect("file").expect("entry").path();
    let last = lines(&state, "s").pop().expect("line");
    let foreign = json!({"type": "message", "id": "0f0f0f0f", "parentId": last["id"], "timestamp": last["timestamp"],
                         "message": {"role": "user", "content": "from pi", "timestamp": 1}});
    let torn = "{\"type\":\"message\",\"id\":\"1a";
    let text = std::fs::read_to_string(&file).expect("read");
    std::fs::write(&file, format!("{text}{foreign}\n{torn}")).expect("write");
    bench.ask("s", "u2", "more").await;
    let lines = lines(&state, "s");
    let at = lines.iter().position(|line| line["id"] == "0f0f0f0f").expect("kept");
    assert_eq!(lines[at + 1]["parentId"], "0f0f0f0f");
    let asked = bench.script.asked.lock().expect("no panic").last().expect("asked").messages.clone();
    assert_eq!(asked[2], ModelMessage::User(vec![InputBlock::Text { text: "from pi".into() }]));
    assert_eq!(asked.len(), 4);
    let roles: Vec<Value> = bench.messages("s").await.iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "user", "assistant"]);
}
