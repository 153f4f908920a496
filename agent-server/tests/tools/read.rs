//! The tool `read`.

use agent_server::catalog::ToolContent;
use serde_json::json;

use crate::bench::{Bench, fine, refused};

#[tokio::test]
async fn a_text_is_read_whole_or_in_parts() {
    let bench = Bench::new().await;
    bench.put("f", "one\ntwo\nthree");
    assert_eq!(bench.text("read", json!({"path": "f"})).await, fine("one\ntwo\nthree"));
    let shown = bench.path("f");
    assert_eq!(bench.text("read", json!({"path": shown})).await, fine("one\ntwo\nthree"));
    assert_eq!(bench.text("read", json!({"path": "/workspace/f", "offset": 3})).await, fine("three"));
    let part = json!({"path": "f", "offset": "2", "limit": 1.0});
    assert_eq!(bench.text("read", part).await, fine("two\n\n[lines 2-2 of 3; use offset=3 for the rest]"));
    let beyond = json!({"path": "f", "offset": 4});
    assert_eq!(bench.text("read", beyond).await, refused("offset 4 is after the end: the file has 3 lines"));
    bench.put("empty", "");
    assert_eq!(bench.text("read", json!({"path": "empty"})).await, fine("(empty file)"));
}

#[tokio::test]
async fn long_files_are_cut_with_a_way_to_the_rest() {
    let bench = Bench::new().await;
    let lines: String = (1..=3000).map(|number| number.to_string() + "\n").collect();
    bench.put("long", &lines);
    let (text, _) = bench.text("read", json!({"path": "long"})).await;
    assert!(text.ends_with("\n2000\n\n[lines 1-2000 of 3000; use offset=2001 for the rest]"), "{text}");
    bench.put("wide", "x".repeat(60 * 1024));
    let expected = "line 1 alone has 60 KiB, more than the 50 KiB that can be shown. \
                    Use bash: sed -n '1p' FILE | head -c 51200";
    assert_eq!(bench.text("read", json!({"path": "wide"})).await, refused(expected));
}

#[tokio::test]
async fn images_are_shown_and_other_binaries_are_named() {
    let bench = Bench::new().await;
    let png = b"\x89PNG\r\n\x1a\n\0\0rest";
    bench.put("a.png", png);
    let result = bench.call("read", json!({"path": "a.png"})).await.0.unwrap();
    let image = ToolContent::Image { media_type: "image/png".into(), data: "iVBORw0KGgoAAHJlc3Q=".into() };
    assert_eq!(result.content, [ToolContent::Text("a.png (image/png, 14 bytes)".into()), image]);

    bench.put("b.zip", b"PK\x03\x04\0\0");
    let expected = "b.zip is a binary file (application/zip, 6 bytes); it cannot be shown as text";
    assert_eq!(bench.text("read", json!({"path": "b.zip"})).await, refused(expected));
    bench.put("u.txt", b"\xff\xfea\0b\0");
    let (text, is_error) = bench.text("read", json!({"path": "u.txt"})).await;
    assert!(is_error && text.contains("UTF-16"), "{text}");
    let mut large = png.to_vec();
    large.resize(4 << 20, 1);
    bench.put("large.png", &large);
    let (text, is_error) = bench.text("read", json!({"path": "large.png"})).await;
    assert!(is_error && text.contains("of 4.0 MiB; at most 3.7 MiB can be shown"), "{text}");
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_marked() {
    let bench = Bench::new().await;
    bench.put("latin", b"caf\xe9\n");
    let expected = "caf\u{fffd}\n\n[not all of this is UTF-8; other bytes are shown as \u{fffd}]";
    assert_eq!(bench.text("read", json!({"path": "latin"})).await, fine(expected));
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let bench = Bench::new().await;
    std::fs::create_dir(bench.path("folder")).unwrap();
    let missing = "missing: does not exist; use ls or find to see what is there";
    assert_eq!(bench.text("read", json!({"path": "missing"})).await, refused(missing));
    let folder = "folder: is a directory; use ls to list it";
    assert_eq!(bench.text("read", json!({"path": "folder"})).await, refused(folder));
    for outside in ["/etc/passwd", "../x"] {
        let failure = bench.failure("read", json!({"path": outside})).await;
        assert!(failure.contains("is outside the workspace; files are below "), "{failure}");
    }
}
