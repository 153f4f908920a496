//! The tool `bash`.

use std::time::Duration;

use agent_server::catalog::ToolProgress;
use serde_json::{Value, json};

use crate::bench::{Bench, fine, refused, text_of};

fn without_time(mut details: Value) -> Value {
    assert!(details["durationMs"].is_u64(), "{details}");
    details.as_object_mut().unwrap().remove("durationMs");
    details
}

#[tokio::test]
async fn a_command_gives_its_output_and_its_exit_code() {
    let bench = Bench::new().await;
    let result = bench.call("bash", json!({"command": "echo hello; echo there >&2"})).await.0.unwrap();
    let mut lines: Vec<String> = text_of(&result).lines().map(String::from).collect();
    lines.sort();
    assert_eq!((lines, result.is_error), (vec!["hello".into(), "there".into()], false));
    assert_eq!(without_time(result.details.unwrap()), json!({"exitCode": 0}));

    let result = bench.call("bash", json!({"command": "echo no; exit 7"})).await.0.unwrap();
    assert_eq!((text_of(&result), result.is_error), refused("no\n\n[command exited with code 7]"));
    assert_eq!(without_time(result.details.unwrap()), json!({"exitCode": 7}));
    assert_eq!(bench.text("bash", json!({"command": ":"})).await, fine("(no output)"));
}

#[tokio::test]
async fn a_signal_a_timeout_and_a_limit_are_told_apart() {
    let bench = Bench::new().await;
    let result = bench.call("bash", json!({"command": "kill -KILL $$"})).await.0.unwrap();
    assert_eq!((text_of(&result), result.is_error), refused("(no output)\n\n[command was ended by signal 9]"));
    assert_eq!(without_time(result.details.unwrap()), json!({"exitCode": null, "signal": 9}));

    let timed = json!({"command": "echo begun; sleep 60", "timeout": 1});
    let expected = "begun\n\n[command timed out after 1 seconds and was ended with all its processes]";
    assert_eq!(bench.text("bash", timed).await, refused(expected));
}

#[tokio::test]
async fn timeouts_outside_the_bounds_are_refused() {
    let bench = Bench::new().await;
    let ask = |timeout: Value| json!({"command": ":", "timeout": timeout});
    assert_eq!(
        bench.failure("bash", ask(json!(120_000))).await,
        "timeout is in seconds and at most 3600, found 120000"
    );
    assert!(bench.failure("bash", ask(json!(0))).await.contains("expected a whole number of at least 1, found 0"));
    assert_eq!(bench.failure("bash", json!({})).await, "arguments do not fit: missing field `command`");
}

#[tokio::test]
async fn output_is_shown_while_the_command_runs() {
    let bench = Bench::new().await;
    let command = "echo first; sleep 0.3; head -c 20000 /dev/zero | tr '\\0' x; echo; echo last; sleep 0.3";
    let (_, reports) = bench.call("bash", json!({"command": command})).await;
    let views: Vec<String> = reports
        .into_iter()
        .map(|report| match report {
            ToolProgress::Preliminary(view) => view,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(views.first().map(String::as_str), Some("first\n"));
    let last = views.last().unwrap();
    assert!(last.ends_with("x\nlast\n") && last.len() == 8192, "{}", last.len());
}

#[tokio::test]
async fn long_output_is_kept_for_read() {
    let bench = Bench::new().await;
    let (text, is_error) = bench.text("bash", json!({"command": "seq 1 5000"})).await;
    assert!(!is_error && text.starts_with("3001\n"), "{}", &text[..50]);
    let (_, uri) = text.rsplit_once("read artifact://").unwrap();
    let uri = format!("artifact://{}", uri.split_once(' ').unwrap().0);
    let read = json!({"path": uri, "offset": 10, "limit": 2});
    assert_eq!(bench.text("read", read).await, fine("10\n11\n\n[lines 10-11 of 5000; use offset=12 for the rest]"));
    let gone = "artifact://00000000-0000-0000-0000-000000000000";
    let expected = format!("{gone}: this artifact does not exist or is no longer kept");
    assert_eq!(bench.text("read", json!({"path": gone})).await, refused(&expected));
    let state = bench.folder.path().join("state");
    let (text, _) =
        bench.text("bash", json!({"command": format!("cat {}/artifacts/* && echo LEAK", state.display())})).await;
    assert!(!text.contains("LEAK"), "{text}");
}

#[tokio::test]
async fn background_processes_are_told_and_end_with_the_turn() {
    let bench = Bench::new().await;
    let result = bench.call("bash", json!({"command": "sleep 86410 & echo started"})).await.0.unwrap();
    let expected = "started\n\n[processes of this command still run in the background; they end with this turn]";
    assert_eq!((text_of(&result), result.is_error), fine(expected));
    assert_eq!(without_time(result.details.unwrap()), json!({"exitCode": 0, "background": true}));
    assert_eq!(bench.sandbox.running(), 1);
    bench.cancel.cancel();
    let all_gone = async {
        while bench.sandbox.running() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all_gone).await.unwrap();
}

#[tokio::test]
async fn a_stop_still_gives_what_was_written() {
    let bench = Bench::new().await;
    let cancel = bench.cancel.clone();
    let stop = async {
        while bench.sandbox.running() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancel.cancel();
    };
    let (text, ()) = tokio::join!(bench.text("bash", json!({"command": "echo so far; sleep 60"})), stop);
    assert_eq!(text, refused("so far\n\n[command was stopped by the user]"));
}

/// Waits until the text of a call satisfies a condition.
async fn until(bench: &Bench, tool: &str, arguments: Value, holds: impl Fn(&str) -> bool) -> String {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (text, _) = bench.text(tool, arguments.clone()).await;
        if holds(&text) {
            return text;
        }
        assert!(tokio::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_background_command_outlives_its_turn_is_listed_read_and_ended() {
    let bench = Bench::new().await;
    let command = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo went on; sleep 600";
    let result = bench.call("bash", json!({"command": command, "background": true})).await.0.unwrap();
    let details = result.details.clone().unwrap();
    assert_eq!((&details["processId"], result.is_error), (&json!("p1"), false), "{}", text_of(&result));
    let artifact = details["artifact"].as_str().unwrap().to_owned();
    assert!(text_of(&result).contains(&format!("p1 runs in the background; its output goes to {artifact}")));
    bench.cancel.cancel();
    assert_eq!(bench.sandbox.running(), 1, "the end of the turn does not end it");
    bench.put("go", "");
    let bench = Bench { cancel: tokio_util::sync::CancellationToken::new(), ..bench };
    let read = until(&bench, "read", json!({"path": artifact}), |text| text.contains("went on")).await;
    assert!(read.starts_with("begun\nwent on"), "{read}");
    let (listed, _) = bench.text("processes", json!({})).await;
    assert!(listed.starts_with("p1: running; started ") && listed.contains(&artifact), "{listed}");
    let (ended, failed) = bench.text("processes", json!({"end": "p1"})).await;
    assert!(ended.starts_with("p1: ended on request; ") && !failed, "{ended}");
    let gone = async {
        while bench.sandbox.running() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    assert!(bench.text("read", json!({"path": artifact})).await.0.starts_with("begun\nwent on"), "kept after its end");
    assert_eq!(bench.text("processes", json!({"end": "p9"})).await, refused("there is no background process p9"));
}

#[tokio::test]
async fn a_background_command_that_fails_at_once_says_so() {
    let bench = Bench::new().await;
    assert_eq!(bench.text("processes", json!({})).await, fine("(no background processes)"));
    bench.call("bash", json!({"command": "echo no; exit 3", "background": true})).await.0.unwrap();
    let listed = until(&bench, "processes", json!({}), |text| !text.contains("running")).await;
    assert!(listed.starts_with("p1: exited with code 3; "), "{listed}");
    for _ in 0..16 {
        let result = bench.call("bash", json!({"command": "sleep 600", "background": true})).await.0.unwrap();
        assert!(!result.is_error, "{}", text_of(&result));
    }
    let (text, refused) = bench.text("bash", json!({"command": "sleep 600", "background": true})).await;
    assert!(refused && text.contains("16 background processes run already"), "{text}");
    bench.sandbox.stop_all().await;
    assert_eq!(bench.sandbox.running(), 0, "they end with the sandbox");
}
