//! Forks: which lines they take, and that both sessions go on by themselves.

use super::*;
use crate::harness::AbortReason;
use crate::session::error::SessionError;

fn words(messages: &[Value]) -> Vec<String> {
    messages
        .iter()
        .map(|message| {
            let parts = message["parts"].as_array().expect("parts");
            parts.iter().find_map(|part| part["text"].as_str()).unwrap_or_default().to_owned()
        })
        .collect()
}

async fn three_turns() -> Bench {
    let bench = Bench::new(["one", "two", "three"].map(answer).into());
    for (id, text) in [("u1", "first"), ("u2", "second"), ("u3", "third")] {
        bench.ask("s", id, text).await;
    }
    bench
}

#[tokio::test]
async fn a_fork_at_an_answer_holds_everything_up_to_it_and_both_go_on() {
    let bench = three_turns().await;
    let messages = bench.messages("s").await;
    let at = messages[3]["id"].as_str().expect("id").to_owned();
    let fork = bench.sessions.fork("s", Some(at)).await.expect("forks");
    assert_eq!((fork.title.as_str(), fork.turn_count, fork.message_count), ("first", 2, 4));
    assert_eq!(bench.messages(&fork.id).await, messages[..4], "ids and metadata are those of the parent");
    bench.script.calls.lock().expect("no panic").extend([answer("fork"), answer("parent")]);
    bench.ask(&fork.id, "u4", "on").await;
    bench.ask("s", "u4", "on").await;
    let asked = bench.script.asked.lock().expect("no panic").iter().map(|r| r.messages.len()).collect::<Vec<_>>();
    assert_eq!(asked[3..], [5, 7]);
    assert_eq!(words(&bench.messages(&fork.id).await)[4..], ["on", "fork"]);
    assert_eq!(words(&bench.messages("s").await)[6..], ["on", "parent"]);
    let header = &lines(&bench.state(), &fork.id)[0];
    let parent = bench.sessions.summary("s").await.expect("summary").file;
    assert_eq!((&header["parentSession"], &header["id"]), (&json!(parent), &json!(fork.id)));
    let entries = lines(&bench.state(), &fork.id);
    assert!(entries[1]["parentId"].is_null());
    assert!(entries[1..].windows(2).all(|pair| pair[1]["parentId"] == pair[0]["id"]), "one chain");
}

#[tokio::test]
async fn a_fork_at_a_question_ends_with_it_and_without_a_message_takes_all() {
    let bench = three_turns().await;
    let fork = bench.sessions.fork("s", Some("u2".into())).await.expect("forks");
    let messages = bench.messages(&fork.id).await;
    assert_eq!(words(&messages), ["first", "one", "second"]);
    bench.script.calls.lock().expect("no panic").push_back(answer("again"));
    let id = messages[2]["id"].as_str().expect("id").to_owned();
    let retry = Submission { trigger: Trigger::Regenerate, ..submission(&fork.id, &id, "ignored") };
    chunks(bench.start(retry).await.as_ref()).await;
    assert_eq!(words(&bench.messages(&fork.id).await), ["first", "one", "second", "again"]);
    let whole = bench.sessions.fork("s", None).await.expect("forks");
    assert_eq!(bench.messages(&whole.id).await, bench.messages("s").await);
    let unknown = bench.sessions.fork("s", Some("nothing".into())).await.expect_err("unknown");
    assert!(matches!(unknown, SessionError::Invalid { field: "messageId", .. }));
}

#[tokio::test]
async fn a_turn_that_runs_is_not_taken_along() {
    let bench = Bench::new(vec![answer("one"), vec![Act::Hang]]);
    bench.ask("s", "u1", "first").await;
    let turn = bench.start(submission("s", "u2", "second")).await;
    let fork = bench.sessions.fork("s", None).await.expect("forks");
    assert_eq!(words(&bench.messages(&fork.id).await), ["first", "one", "second"]);
    let running = bench.sessions.fork("s", Some(turn.message_id.clone())).await.expect_err("runs");
    assert_eq!(running, SessionError::TurnInProgress { turn_id: turn.turn_id.clone() });
    bench.sessions.stop("s", None, AbortReason::User).await;
    assert!(!bench.sessions.summary(&fork.id).await.expect("summary").running);
}

#[tokio::test]
async fn files_of_a_fork_outlive_its_parent() {
    let bench = Bench::new(vec![answer("seen")]);
    let message = json!({"id": "u1", "role": "user", "parts": [
        {"type": "text", "text": "look"}, {"type": "file", "url": "data:text/plain;base64,aGk="},
    ]});
    let message = UserMessage::parse(message, Vec::new()).expect("fits");
    chunks(bench.start(Submission { message, ..submission("s", "-", "-") }).await.as_ref()).await;
    let url = bench.messages("s").await[0]["parts"][1]["url"].as_str().expect("address").to_owned();
    let hash = url.rsplit('/').next().expect("hash").to_owned();
    let fork = bench.sessions.fork("s", None).await.expect("forks");
    bench.sessions.delete("s").await.expect("deleted");
    assert_eq!(bench.sessions.attachments().read(&hash).expect("read").expect("kept").bytes, b"hi");
    bench.sessions.delete(&fork.id).await.expect("deleted");
    assert_eq!(bench.sessions.attachments().read(&hash).expect("read"), None);
}
