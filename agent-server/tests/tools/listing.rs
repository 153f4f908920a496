//! The tool `ls`.

use serde_json::json;

use crate::bench::{Bench, fine, refused};

#[tokio::test]
async fn a_folder_is_listed_with_marks_and_a_limit() {
    let bench = Bench::new().await;
    assert_eq!(bench.text("ls", json!({})).await, fine("(empty folder)"));
    std::fs::create_dir(bench.path("z")).unwrap();
    bench.put(".hidden", "");
    bench.put("a\nb", "");
    std::os::unix::fs::symlink("nowhere", bench.path("link")).unwrap();
    assert_eq!(bench.text("ls", json!({})).await, fine("z/\n.hidden\n\"a\\nb\"\nlink@"));
    let limited = "z/\n\n[1 of 4 entries; use limit=4 for all]";
    assert_eq!(bench.text("ls", json!({"limit": 1})).await, fine(limited));
    let missing = "none: does not exist; use ls or find to see what is there";
    assert_eq!(bench.text("ls", json!({"path": "none"})).await, refused(missing));
}
