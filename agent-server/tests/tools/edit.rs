//! The tools `edit` and `write`.

use agent_server::catalog::{FileChange, ToolProgress};
use serde_json::json;

use crate::bench::{Bench, fine, refused};

fn changed(path: &str, size: u64) -> Vec<ToolProgress> {
    vec![ToolProgress::FileChanged(FileChange { op: "write", path: path.into(), old_path: None, size: Some(size) })]
}

#[tokio::test]
async fn a_write_creates_and_replaces_and_reports_the_change() {
    let bench = Bench::new().await;
    let (result, reports) = bench.call("write", json!({"path": "a/b.txt", "content": "one"})).await;
    assert_eq!(result.unwrap().details.unwrap()["created"], json!(true));
    assert_eq!((bench.content("a/b.txt").as_str(), reports), ("one", changed("a/b.txt", 3)));
    let again = json!({"path": bench.path("a/b.txt"), "content": "other"});
    assert_eq!(bench.text("write", again).await, fine("Replaced a/b.txt (5 bytes)"));
}

#[tokio::test]
async fn an_edit_changes_its_pieces_and_shows_the_difference() {
    let bench = Bench::new().await;
    bench.put("f", "one\ntwo\nthree\n");
    let edits = json!([{"oldText": "one", "newText": "1"}, {"oldText": "three\n", "newText": "3\n"}]);
    let (result, reports) = bench.call("edit", json!({"path": "f", "edits": edits.to_string()})).await;
    let details = result.unwrap().details.unwrap();
    assert_eq!(details["diff"], "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n-one\n+1\n two\n-three\n+3\n");
    assert_eq!((details["firstChangedLine"].as_u64(), bench.content("f").as_str()), (Some(1), "1\ntwo\n3\n"));
    assert_eq!(reports, changed("f", 8));
}

#[tokio::test]
async fn an_edit_that_does_not_fit_changes_nothing() {
    let bench = Bench::new().await;
    bench.put("f", "a a\n");
    let edit = |old: &str| json!({"path": "f", "oldText": old, "newText": "b"});
    let twice = "oldText is found 2 times; add lines around it until it is unique";
    assert_eq!(bench.text("edit", edit("a")).await, refused(twice));
    let (text, is_error) = bench.text("edit", edit("missing")).await;
    assert!(is_error && text.contains("not found"), "{text}");
    bench.put("latin", b"\xe9");
    let binary = json!({"path": "latin", "oldText": "a", "newText": "b"});
    assert_eq!(bench.text("edit", binary).await, refused("the file is not UTF-8 text"));
    assert_eq!(bench.failure("edit", json!({"path": "f", "edits": []})).await, "edits is empty");
    assert_eq!(bench.content("f"), "a a\n");
}

#[tokio::test]
async fn edits_of_one_file_at_the_same_time_all_take_place() {
    let bench = Bench::new().await;
    let lines: String = (10..60).map(|number| format!("line {number}\n")).reduce(|all, line| all + &line).unwrap();
    bench.put("f", &lines);
    let edits = (10..60).map(|number| {
        let edit = json!({"path": "f", "oldText": format!("line {number}\n"), "newText": format!("done {number}\n")});
        bench.text("edit", edit)
    });
    for outcome in futures::future::join_all(edits).await {
        assert_eq!(outcome, fine("Replaced 1 piece of f"));
    }
    assert_eq!(bench.content("f"), lines.replace("line", "done"));
}
