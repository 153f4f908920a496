//! Every file tool over files that are not what they seem. None may hang, leave the workspace or mangle a file.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use agent_server::catalog::{ToolFailure, ToolResult};
use serde_json::{Value, json};

use crate::bench::{Bench, text_of};

fn calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read", json!({"path": path})),
        ("edit", json!({"path": path, "oldText": "secret", "newText": "x"})),
        ("grep", json!({"pattern": "secret", "path": path})),
        ("find", json!({"pattern": "*", "path": path})),
        ("ls", json!({"path": path})),
    ]
}

/// Calls a tool with a limit, so that a hang is a failure of the test.
async fn call(bench: &Bench, tool: &str, arguments: Value) -> Result<ToolResult, ToolFailure> {
    let (result, _) = tokio::time::timeout(Duration::from_secs(10), bench.call(tool, arguments)).await.expect(tool);
    result
}

#[tokio::test]
async fn links_that_lead_outside_show_nothing_of_the_outside() {
    let bench = Bench::new().await;
    let outside = bench.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "secret outside\n").unwrap();
    std::os::unix::fs::symlink(&outside, bench.path("folder")).unwrap();
    std::os::unix::fs::symlink("../outside/file", bench.path("file")).unwrap();
    std::os::unix::fs::symlink("loop", bench.path("loop")).unwrap();
    for path in ["folder", "folder/file", "file", "loop", "folder/../../outside/file"] {
        let mut all = calls(path);
        all.push(("write", json!({"path": format!("{path}/new"), "content": "planted"})));
        for (tool, arguments) in all {
            if let Ok(result) = call(&bench, tool, arguments).await {
                let text = text_of(&result);
                assert!(!text.contains("secret"), "{tool} {path}: {text}");
                let lists_nothing = ["nothing found", "no matches", "(empty folder)"].contains(&text.as_str());
                assert!(result.is_error || lists_nothing, "{tool} {path}: {text}");
            }
        }
    }
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "secret outside\n");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn pipes_and_sockets_are_not_opened() {
    let bench = Bench::new().await;
    let made = std::process::Command::new("mkfifo").arg(bench.path("pipe")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    for path in ["pipe", "socket"] {
        for tool in ["read", "edit"] {
            let arguments = json!({"path": path, "oldText": "a", "newText": "b"});
            let result = call(&bench, tool, arguments).await.unwrap();
            assert!(result.is_error && text_of(&result).contains("is not a regular file"), "{tool}: {result:?}");
        }
        let result = call(&bench, "grep", json!({"pattern": "x"})).await.unwrap();
        assert_eq!(text_of(&result), "no matches");
    }
}

#[tokio::test]
async fn names_with_line_ends_and_bytes_that_are_no_text_stay_one_entry() {
    let bench = Bench::new().await;
    bench.put("two\nlines", "secret\n");
    std::fs::write(bench.path("x").with_file_name(std::ffi::OsStr::from_bytes(b"latin-\xe9")), "secret\n").unwrap();
    for (tool, arguments) in
        [("ls", json!({})), ("find", json!({"pattern": "*"})), ("grep", json!({"pattern": "secret"}))]
    {
        let text = text_of(&call(&bench, tool, arguments).await.unwrap());
        assert!(text.contains(r#""two\nlines""#), "{tool}: {text}");
        assert!(text.lines().count() <= 4, "{tool}: {text}");
    }
    let read = call(&bench, "read", json!({"path": "two\nlines"})).await.unwrap();
    assert_eq!(text_of(&read), "secret\n");
}

#[tokio::test]
async fn huge_lines_and_sparse_files_are_bounded() {
    let bench = Bench::new().await;
    bench.put("wide", "secret".repeat(2_000_000));
    let sparse = std::fs::File::create(bench.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for path in ["wide", "sparse"] {
        for (tool, arguments) in calls(path) {
            if let Ok(result) = call(&bench, tool, arguments).await {
                assert!(text_of(&result).len() <= 51 * 1024, "{tool} {path}: {}", text_of(&result).len());
            }
        }
    }
    let grep = call(&bench, "grep", json!({"pattern": "secret", "path": "wide"})).await.unwrap();
    assert!(text_of(&grep).len() < 3000, "{}", text_of(&grep).len());
}

#[tokio::test]
async fn trees_deeper_than_any_path_and_folders_with_a_hundred_thousand_files_are_bounded() {
    let bench = Bench::new().await;
    // 300 levels of 100 bytes: no path of the workspace reaches the end, and neither does the walk.
    let mut folder = std::fs::File::open(bench.path(".")).unwrap();
    let name = "d".repeat(100);
    for _ in 0..300 {
        rustix::fs::mkdirat(&folder, &*name, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        folder = rustix::fs::openat(&folder, &*name, flags, rustix::fs::Mode::empty()).unwrap().into();
    }
    for (tool, arguments) in [("find", json!({"pattern": "*"})), ("grep", json!({"pattern": "secret"}))] {
        let result = call(&bench, tool, arguments).await.unwrap();
        assert!(!result.is_error && text_of(&result).len() <= 51 * 1024, "{tool}: {}", text_of(&result));
    }
    let many = bench.path("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..100_000 {
        std::fs::File::create(many.join(number.to_string())).unwrap();
    }
    let listed = call(&bench, "ls", json!({"path": "many"})).await.unwrap();
    assert!(text_of(&listed).contains("500 of 100000 entries"), "{}", text_of(&listed));
    let found = call(&bench, "find", json!({"pattern": "99999", "path": "many"})).await.unwrap();
    assert!(text_of(&found).contains("99999"), "{}", text_of(&found));
}

#[tokio::test]
async fn an_edit_keeps_mark_line_ends_and_mode() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new().await;
    bench.put("f.sh", "\u{feff}one\r\ntwo\r\n");
    std::fs::set_permissions(bench.path("f.sh"), PermissionsExt::from_mode(0o750)).unwrap();
    let edit = json!({"path": "f.sh", "edits": [{"oldText": "two\n", "newText": "2\n3\n"}]});
    assert!(!call(&bench, "edit", edit).await.unwrap().is_error);
    assert_eq!(bench.content("f.sh"), "\u{feff}one\r\n2\r\n3\r\n");
    assert_eq!(std::fs::metadata(bench.path("f.sh")).unwrap().permissions().mode() & 0o777, 0o750);
}

#[tokio::test]
async fn arguments_of_any_shape_are_answered() {
    let bench = Bench::new().await;
    let shapes = [json!(null), json!([]), json!(3), json!("{"), json!({"path": 3}), json!({"path": "\u{0}"})];
    for tool in ["bash", "edit", "read", "write"] {
        for shape in &shapes {
            let failure = call(&bench, tool, shape.clone()).await.unwrap_err();
            assert!(!failure.0.is_empty(), "{tool} {shape}");
        }
    }
}
