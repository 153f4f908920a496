//! What a submission means, and what sessions say about themselves.

use super::*;
use crate::session::error::SessionError;

fn texts(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| {
            let parts = message["parts"].as_array().expect("parts");
            parts.iter().find_map(|part| part["text"].as_str()).unwrap_or_default()
        })
        .collect()
}

#[tokio::test]
async fn a_repeated_message_never_runs_twice_and_names_its_turn() {
    let bench = Bench::new(vec![answer("one"), answer("never")]);
    let turn = bench.start(submission("s", "u1", "hi")).await;
    let while_running = bench.sessions.submit(submission("s", "u1", "hi")).await.expect_err("repeated");
    chunks(&turn).await;
    let afterwards = bench.sessions.submit(submission("s", "u1", "hi")).await.expect_err("repeated");
    let expected = SessionError::AlreadyExists { what: "message u1".into(), turn_id: Some(turn.turn_id.clone()) };
    assert_eq!((while_running, afterwards), (expected.clone(), expected));
    assert_eq!(bench.script.asked.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn what_is_kept_of_a_session_is_for_the_servers_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let bench = Bench::new(vec![answer("one")]);
    bench.ask("s", "u1", "hi").await;
    let attachments = crate::session::attachments::Attachments::new(bench.state().join("attachments"));
    attachments.keep("s", "a.png", b"image").expect("kept");
    drop(bench.reopened(&bench.state()));
    let mut folders = vec![bench.state()];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("listed").map(|entry| entry.expect("readable")) {
            let kept = entry.metadata().expect("metadata");
            let mode = kept.permissions().mode() & 0o777;
            assert_eq!(mode, if kept.is_dir() { 0o700 } else { 0o600 }, "{}", entry.path().display());
            if folder == bench.state() {
                seen.insert(entry.file_name().into_string().expect("text"));
            }
            if kept.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    let expected = ["attachments", "session-index", "sessions", "turns"].map(String::from);
    assert!(expected.iter().all(|name| seen.contains(name)), "{seen:?}");
}

#[tokio::test]
async fn a_foreign_entry_in_the_session_folder_costs_neither_the_start_nor_its_target() {
    let bench = Bench::new(vec![answer("one"), answer("two")]);
    bench.ask("s", "u1", "hi").await;
    let sessions = bench.state().join("sessions");
    std::fs::create_dir(sessions.join("2026-11-30T14-00-00-000Z_folder.jsonl")).expect("folder");
    let target = bench.state().join("target");
    std::fs::write(&target, "kept\nwithout an end").expect("written");
    let link = sessions.join("2026-11-30T14-00-00-000Z_link.jsonl");
    std::os::unix::fs::symlink(&target, link).expect("link");
    drop(bench.reopened(&bench.state()));
    bench.ask("link", "u2", "hi").await;
    assert_eq!(texts(&bench.messages("link").await), ["hi", "two"]);
    assert_eq!(std::fs::read_to_string(&target).expect("read"), "kept\nwithout an end");
}

#[tokio::test]
async fn a_second_message_while_a_turn_runs_is_refused_without_effect() {
    let bench = Bench::new(vec![vec![Act::Hang]]);
    let turn = bench.start(submission("s", "u1", "hi")).await;
    let error = bench.sessions.submit(submission("s", "u2", "more")).await.expect_err("busy");
    assert_eq!(error, SessionError::TurnInProgress { turn_id: turn.turn_id.clone() });
    bench.sessions.stop("s", None, crate::harness::AbortReason::User).await;
    assert!(lines(&bench.state(), "s").iter().all(|line| line["data"]["userMessageId"] != "u2"));
}

#[tokio::test]
async fn regenerating_answers_the_same_message_on_a_new_branch() {
    let bench = Bench::new(vec![answer("one"), answer("two"), answer("three")]);
    bench.ask("s", "u1", "hi").await;
    let again = Submission { trigger: Trigger::Regenerate, ..submission("s", "u1", "hi") };
    chunks(bench.start(again).await.as_ref()).await;
    assert_eq!(texts(&bench.messages("s").await), ["hi", "two"]);
    bench.ask("s", "u2", "more").await;
    assert_eq!(texts(&bench.messages("s").await), ["hi", "two", "more", "three"]);
    let asked = bench.script.asked.lock().expect("no panic");
    assert_eq!(asked.iter().map(|request| request.messages.len()).collect::<Vec<_>>(), [1, 1, 3]);
    let every_parent_is_the_line_before = lines(&bench.state(), "s")
        .windows(2)
        .skip(1)
        .all(|pair| pair[1]["parentId"] == pair[0]["id"] || pair[1]["customType"] == "boring-agent/turn");
    assert!(every_parent_is_the_line_before);
}

#[tokio::test]
async fn regenerating_an_unknown_message_is_a_submit() {
    let bench = Bench::new(vec![answer("one")]);
    let retry = Submission { trigger: Trigger::Regenerate, ..submission("s", "u1", "hi") };
    chunks(bench.start(retry).await.as_ref()).await;
    assert_eq!(texts(&bench.messages("s").await), ["hi", "one"]);
}

#[tokio::test]
async fn an_edit_puts_the_message_in_the_place_of_the_known_one() {
    let bench = Bench::new(vec![answer("one"), answer("two"), answer("three")]);
    bench.ask("s", "u1", "first").await;
    bench.ask("s", "u2", "second").await;
    let edit = Submission { replaces: Some("u1".into()), ..submission("s", "u1", "changed") };
    chunks(bench.start(edit).await.as_ref()).await;
    assert_eq!(texts(&bench.messages("s").await), ["changed", "three"]);
    let unknown = Submission { replaces: Some("never seen".into()), ..submission("s", "u9", "plain") };
    chunks(bench.start(unknown).await.as_ref()).await;
    assert_eq!(texts(&bench.messages("s").await)[..3], ["changed", "three", "plain"]);
}

#[tokio::test]
async fn the_file_begins_with_its_header_and_holds_the_message_before_the_model_is_called() {
    let bench = Bench::new(vec![vec![Act::Hang]]);
    let turn = bench.start(submission("s", "u1", "hello\nworld")).await;
    let lines = lines(&bench.state(), "s");
    let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().expect("type")).collect();
    assert_eq!(kinds, ["session", "model_change", "message", "custom"]);
    assert_eq!(lines[2]["message"]["content"], json!([{"type": "text", "text": "hello\nworld"}]));
    assert_eq!(lines[3]["data"]["turnId"], *turn.turn_id);
    let records = bench.sessions.list(usize::MAX, |_| true).await.expect("list");
    assert_eq!((records.len(), &*records[0].id), (1, "s"));
    bench.sessions.stop("s", None, crate::harness::AbortReason::Drain).await;
    let record = bench.sessions.summary("s").await.expect("summary");
    assert_eq!(
        (record.title.as_str(), record.turn_count, record.message_count, record.running),
        ("hello", 1, 2, false)
    );
}

#[tokio::test]
async fn sessions_are_made_named_listed_and_deleted_with_everything() {
    let bench = Bench::new(vec![answer("one"), vec![Act::Hang]]);
    let made = bench.sessions.create(Some("s".into()), None).await.expect("made");
    assert_eq!((made.title.as_str(), made.message_count), ("New session", 0));
    let taken = bench.sessions.create(Some("s".into()), None).await.expect_err("taken");
    assert_eq!(taken, SessionError::AlreadyExists { what: "session s".into(), turn_id: None });
    assert!(matches!(
        bench.sessions.create(Some("../x".into()), None).await,
        Err(SessionError::Invalid { field: "id", .. })
    ));
    bench.ask("s", "u1", "hi").await;
    assert_eq!(bench.sessions.rename("s", "My name".into()).await.expect("named").title, "My name");
    let running = bench.start(submission("s", "u2", "more")).await;
    bench.sessions.delete("s").await.expect("deleted");
    assert!(running.log.has_ended(), "the turn was stopped first");
    assert_eq!(bench.sessions.list(usize::MAX, |_| true).await.expect("list"), []);
    assert_eq!(bench.sessions.delete("s").await, Err(SessionError::NotFound("s".into())));
    assert_eq!(std::fs::read_dir(bench.state().join("sessions")).expect("folder").count(), 0);
    assert!(!bench.state().join("turns").join("s").exists());
}

#[tokio::test]
async fn another_process_gets_locked_for_writing_and_may_read() {
    let bench = Bench::new(vec![answer("one"), answer("two")]);
    // Before there is anything that its index could know.
    let other = bench.reopened(&bench.state());
    bench.ask("s", "u1", "hi").await;
    let refused = other.submit(submission("s", "u2", "more")).await.expect_err("locked");
    assert_eq!(refused, SessionError::Locked("s".into()));
    assert_eq!(texts(&other.messages("s", false).await.expect("read")), ["hi", "one"]);
}
