//! The tools `find` and `grep`.

use serde_json::json;

use crate::bench::{Bench, fine, refused};

async fn project() -> Bench {
    let bench = Bench::new().await;
    for folder in ["src/deep", "target", ".git", ".github"] {
        std::fs::create_dir_all(bench.path(folder)).unwrap();
    }
    bench.put(".gitignore", "target\n");
    bench.put("src/main.rs", "fn main() {\n    // needle here\n    run();\n}\n");
    bench.put("src/deep/other.rs", "needle\nNEEDLE\nneedle[0]\n");
    bench.put("target/built.rs", "needle\n");
    bench.put(".git/config.rs", "needle\n");
    bench.put(".github/ci.yml", "needle: yes\n");
    bench.put("binary.rs", b"needle\0\x01\x02");
    bench
}

#[tokio::test]
async fn names_are_found_by_glob_without_what_is_ignored() {
    let bench = project().await;
    let find = |pattern: &str| json!({"pattern": pattern});
    assert_eq!(bench.text("find", find("*.rs")).await, fine("src/deep/other.rs\nsrc/main.rs\nbinary.rs"));
    assert_eq!(bench.text("find", find("*.yml")).await, fine(".github/ci.yml"));
    assert_eq!(bench.text("find", find("src/*.rs")).await, fine("src/main.rs"));
    assert_eq!(bench.text("find", find("src/**/*.rs")).await, fine("src/deep/other.rs\nsrc/main.rs"));
    assert_eq!(bench.text("find", find("deep")).await, fine("src/deep/"));
    assert_eq!(bench.text("find", find("*.none")).await, fine("nothing found"));
    let below = json!({"pattern": "*.rs", "path": "src/deep"});
    assert_eq!(bench.text("find", below).await, fine("src/deep/other.rs"));
    let limited = json!({"pattern": "*.rs", "limit": 1});
    let expected = "src/deep/other.rs\n\n[the first 1 results; narrow the pattern or use limit=2]";
    assert_eq!(bench.text("find", limited).await, fine(expected));
    let (text, is_error) = bench.text("find", find("[")).await;
    assert!(is_error && text.starts_with("pattern: "), "{text}");
}

#[tokio::test]
async fn lines_are_found_by_pattern_and_by_text() {
    let bench = project().await;
    let exact = json!({"pattern": "needle$"});
    assert_eq!(bench.text("grep", exact).await, fine("src/deep/other.rs:1: needle"));
    let literal = json!({"pattern": "needle[0]", "literal": true, "ignoreCase": true, "path": "src"});
    assert_eq!(bench.text("grep", literal).await, fine("src/deep/other.rs:3: needle[0]"));
    let around = json!({"pattern": "here", "context": 1, "glob": "*.rs"});
    let expected = "src/main.rs-1- fn main() {\nsrc/main.rs:2:     // needle here\nsrc/main.rs-3-     run();";
    assert_eq!(bench.text("grep", around).await, fine(expected));
    let limited = json!({"pattern": "needle", "ignoreCase": true, "path": "src/deep/other.rs", "limit": 2});
    let expected = "src/deep/other.rs:1: needle\nsrc/deep/other.rs:2: NEEDLE\n\n\
                    [the first 2 matches; narrow the search or use limit=4]";
    assert_eq!(bench.text("grep", limited).await, fine(expected));
    assert_eq!(bench.text("grep", json!({"pattern": "absent"})).await, fine("no matches"));
    let (text, is_error) = bench.text("grep", json!({"pattern": "("})).await;
    assert!(is_error && text.starts_with("pattern: "), "{text}");
    let missing = "none: does not exist; use ls or find to see what is there";
    assert_eq!(bench.text("grep", json!({"pattern": "x", "path": "none"})).await, refused(missing));
}
