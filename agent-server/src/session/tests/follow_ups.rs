//! Follow-ups: durable, in order, once each, and announced.

use super::recovery::copy;
use super::turns::wait_for;
use super::*;
use crate::harness::AbortReason;
use crate::session::error::SessionError;
use crate::session::follow_up::FollowUpState;
use crate::session::queue::FollowUp;

fn follow_up(nonce: &str, seq: Option<u64>, words: &str) -> FollowUp {
    FollowUp {
        session_id: "s".into(),
        message: UserMessage::text(words.into()).expect("fits"),
        client_nonce: nonce.into(),
        client_seq: seq,
    }
}

async fn queue(bench: &Bench, nonce: &str, seq: Option<u64>, words: &str) -> FollowUpState {
    bench.sessions.follow_up(follow_up(nonce, seq, words)).await.expect("is queued")
}

/// Waits until the session shows so many messages and nothing runs.
async fn until_messages(sessions: &Arc<Sessions>, count: usize) -> Vec<Value> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let messages = sessions.messages("s", false).await.expect("messages");
        if messages.len() == count && sessions.active("s").is_none() {
            return messages;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} messages: {messages:?}", messages.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn said(messages: &[Value]) -> Vec<&str> {
    let text = |message: &'_ Value| -> Option<usize> {
        message["parts"].as_array().expect("parts").iter().position(|part| part["type"] == "text")
    };
    messages.iter().map(|m| text(m).map_or("", |at| m["parts"][at]["text"].as_str().expect("text"))).collect()
}

/// A turn that goes on until it is told to.
fn held() -> (Vec<Act>, Arc<tokio::sync::Notify>) {
    let release = Arc::new(tokio::sync::Notify::new());
    ([vec![Act::Until(release.clone())], answer("first")].concat(), release)
}

#[tokio::test]
async fn they_run_one_after_the_other_in_the_order_of_their_numbers_and_each_end_names_the_next_turn() {
    let (first, release) = held();
    let bench = Bench::new(vec![first, answer("one"), answer("two")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    assert_eq!(queue(&bench, "n2", Some(2), "second").await, FollowUpState::Queued);
    assert_eq!(queue(&bench, "n1", Some(1), "first of them").await, FollowUpState::Queued);
    assert_eq!(queue(&bench, "n2", Some(2), "second").await, FollowUpState::Queued, "a repetition changes nothing");
    release.notify_one();
    let messages = until_messages(&bench.sessions, 6).await;
    assert_eq!(said(&messages), ["go", "first", "first of them", "one", "second", "two"]);
    let finish = chunks(&turn).await.pop().expect("finish");
    let next = &messages[3]["metadata"]["turnId"];
    assert_eq!(finish["messageMetadata"]["next"], json!({"turnId": next, "userMessageId": messages[2]["id"]}));
    assert_eq!(messages[1]["metadata"]["next"], finish["messageMetadata"]["next"], "history says the same");
    assert_eq!(messages[3]["metadata"]["next"]["turnId"], messages[5]["metadata"]["turnId"]);
    assert_eq!(messages[5]["metadata"].get("next"), None);
    let begun = FollowUpState::Begun { turn_id: next.as_str().expect("id").into() };
    assert_eq!(queue(&bench, "n1", Some(1), "first of them").await, begun, "once it has run it never runs again");
    assert_eq!(bench.script.asked.lock().expect("no panic").len(), 3);
    let record = bench.sessions.summary("s").await.expect("summary");
    assert_eq!((record.queued, record.turn_count, record.message_count), (0, 3, 6));
}

#[tokio::test]
async fn one_that_finds_nothing_running_begins_at_once_with_the_model_and_thinking_of_before() {
    let bench = Bench::new(vec![answer("one"), answer("two")]);
    let choice = Choice::Named { model: Some("claude-other".into()), thinking: ThinkingLevel::Low };
    chunks(bench.start(Submission { choice, ..submission("s", "u1", "go") }).await.as_ref()).await;
    assert!(matches!(queue(&bench, "n", None, "more").await, FollowUpState::Begun { .. }));
    until_messages(&bench.sessions, 4).await;
    let asked = bench.script.asked.lock().expect("no panic");
    assert_eq!((asked[1].model.as_str(), asked[1].thinking), ("claude-other", ThinkingLevel::Low));
    let kinds: Vec<Value> = lines(&bench.state(), "s").into_iter().map(|line| line["type"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "model_change").count(), 1, "{kinds:?}");
}

#[tokio::test]
async fn a_cancelled_one_never_runs_even_when_the_cancellation_comes_first() {
    let (first, release) = held();
    let bench = Bench::new(vec![first, answer("never")]);
    bench.start(submission("s", "u1", "go")).await;
    queue(&bench, "n1", None, "one").await;
    bench.sessions.cancel_follow_ups("s", Some("n1".into())).await.expect("cancelled");
    bench.sessions.cancel_follow_ups("s", Some("n2".into())).await.expect("cancelled ahead");
    assert_eq!(queue(&bench, "n1", None, "one").await, FollowUpState::Cancelled);
    assert_eq!(queue(&bench, "n2", None, "two").await, FollowUpState::Cancelled);
    queue(&bench, "n3", None, "three").await;
    queue(&bench, "n4", None, "four").await;
    bench.sessions.cancel_follow_ups("s", None).await.expect("all cancelled");
    assert_eq!(bench.sessions.waiting_follow_ups("s").await.expect("list"), []);
    release.notify_one();
    until_messages(&bench.sessions, 2).await;
    assert_eq!(bench.script.asked.lock().expect("no panic").len(), 1);
    let unknown = bench.sessions.cancel_follow_ups("nowhere", None).await.expect_err("unknown");
    assert_eq!(unknown, SessionError::NotFound("nowhere".into()));
}

#[tokio::test]
async fn one_that_has_begun_is_not_cancelled_but_named() {
    let bench = Bench::new(vec![vec![Act::Hang]]);
    let FollowUpState::Begun { turn_id } = queue(&bench, "n", None, "go").await else { panic!("nothing ran before") };
    let refused = bench.sessions.cancel_follow_ups("s", Some("n".into())).await.expect_err("has begun");
    assert_eq!(refused, SessionError::FollowUpBegun { turn_id });
    bench.sessions.stop("s", None, AbortReason::User).await;
}

#[tokio::test]
async fn a_message_is_queued_or_sent_but_not_both() {
    let (first, release) = held();
    let bench = Bench::new(vec![first, answer("two")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    let message = |id: &str| {
        let message = json!({"id": id, "role": "user", "parts": [{"type": "text", "text": "more"}]});
        FollowUp { message: UserMessage::parse(message, Vec::new()).expect("fits"), ..follow_up("x", None, "-") }
    };
    let sent = bench.sessions.follow_up(message("u1")).await.expect_err("was sent");
    let expected = |id: &str, turn_id| SessionError::AlreadyExists { what: format!("message {id}"), turn_id };
    assert_eq!(sent, expected("u1", Some(turn.turn_id.clone())));
    bench.sessions.follow_up(message("u2")).await.expect("is queued");
    let twice = FollowUp { client_nonce: "y".into(), ..message("u2") };
    assert_eq!(bench.sessions.follow_up(twice).await.expect_err("waits"), expected("u2", None));
    release.notify_one();
    until_messages(&bench.sessions, 4).await;
    let sent = bench.sessions.submit(submission("s", "u2", "more")).await.expect_err("has run");
    assert!(matches!(sent, SessionError::AlreadyExists { turn_id: Some(_), .. }), "{sent:?}");
}

#[tokio::test]
async fn after_a_stop_by_the_user_they_wait_until_something_is_sent() {
    let bench = Bench::new(vec![[text("x"), vec![Act::Hang]].concat(), answer("two"), answer("three")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_for(&turn, "text-delta").await;
    queue(&bench, "n1", None, "later").await;
    bench.sessions.stop("s", None, AbortReason::User).await;
    assert_eq!(bench.messages("s").await.len(), 2);
    assert!(bench.sessions.active("s").is_none());
    assert_eq!(bench.sessions.waiting_follow_ups("s").await.expect("list").len(), 1);
    bench.ask("s", "u2", "now").await;
    let messages = until_messages(&bench.sessions, 6).await;
    assert_eq!(said(&messages)[2..], ["now", "two", "later", "three"]);
}

#[tokio::test]
async fn they_survive_a_crash_and_go_on_by_themselves_behind_the_closed_turn() {
    let bench = Bench::new(vec![[text("x"), vec![Act::Hang]].concat(), answer("after")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    wait_for(&turn, "text-delta").await;
    queue(&bench, "n1", None, "later").await;
    let crashed = bench.folder.path().join("crashed");
    copy(&bench.state(), &crashed);
    bench.sessions.stop("s", None, AbortReason::User).await;
    let sessions = bench.reopened(&crashed);
    sessions.recover().await;
    let messages = until_messages(&sessions, 4).await;
    assert_eq!(said(&messages)[2..], ["later", "after"]);
    assert_eq!(messages[1]["metadata"]["reason"], "crash");
}

#[tokio::test]
async fn many_at_once_while_turns_end_run_exactly_once_each() {
    const COUNT: usize = 24;
    let bench = Bench::new((0..=COUNT).map(|_| answer("ok")).collect());
    bench.start(submission("s", "u1", "go")).await;
    let queued = (0..COUNT).map(|number| {
        let (sessions, nonce) = (Arc::clone(&bench.sessions), format!("n{number}"));
        async move {
            for _ in 0..2 {
                sessions.follow_up(follow_up(&nonce, None, &nonce)).await.expect("is queued");
                tokio::time::sleep(Duration::from_millis(number as u64 % 5)).await;
            }
        }
    });
    futures::future::join_all(queued).await;
    let messages = until_messages(&bench.sessions, 2 + 2 * COUNT).await;
    let mut asked: Vec<&str> = said(&messages).into_iter().step_by(2).skip(1).collect();
    asked.sort_unstable();
    let mut expected: Vec<String> = (0..COUNT).map(|number| format!("n{number}")).collect();
    expected.sort_unstable();
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_reader_that_follows_the_session_gets_every_turn_and_nothing_twice() {
    let (first, release) = held();
    let bench = Bench::new(vec![first, answer("one"), answer("two")]);
    let turn = bench.start(submission("s", "u1", "go")).await;
    let mut frames = Box::pin(bench.sessions.follow("s", None).await.expect("follows").expect("is known"));
    queue(&bench, "n1", None, "more").await;
    release.notify_one();
    until_messages(&bench.sessions, 4).await;
    bench.ask("s", "u2", "again").await;
    let mut seen: Vec<String> = Vec::new();
    while seen.iter().filter(|frame| frame.contains("\"type\":\"finish\"")).count() < 3 {
        let frame = tokio::time::timeout(Duration::from_secs(30), frames.next()).await.expect("in time");
        seen.push(String::from_utf8(frame.expect("goes on").expect("whole").to_vec()).expect("text"));
    }
    assert_eq!(seen.remove(0), ": stream-open\n\n");
    let ids: Vec<&str> = seen.iter().map(|frame| frame.lines().next().expect("id")).collect();
    let unique: std::collections::HashSet<&&str> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
    assert_eq!(ids[0], format!("id: {}:1", turn.turn_id));
    assert_eq!(seen.iter().filter(|frame| frame.contains("\"type\":\"start\"")).count(), 3);
    // From the first turn's last number on, long after, the same two turns follow.
    let log = bench.sessions.turn_log("s", &turn.turn_id).await.expect("log").expect("there");
    let last = log.last_number();
    let later = bench.sessions.follow("s", Some((log, last))).await.expect("follows").expect("is known");
    let later: Vec<String> = later
        .take(1 + seen.iter().filter(|frame| !frame.contains(&*turn.turn_id)).count())
        .map(|frame| String::from_utf8(frame.expect("whole").to_vec()).expect("text"))
        .collect()
        .await;
    assert_eq!(later[1..], seen.iter().filter(|frame| !frame.contains(&*turn.turn_id)).cloned().collect::<Vec<_>>());
    bench.sessions.stop_all(AbortReason::Shutdown).await;
    let end = tokio::time::timeout(Duration::from_secs(30), frames.next()).await.expect("in time");
    assert_eq!(end, Some(Ok("data: [DONE]\n\n".into())));
    assert!(bench.sessions.follow("nowhere", None).await.expect("no error").is_none());
}
