//! Cases of walks and searches.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Subject, path};
use crate::workspace::{Found, GrepLine, GrepRequest, Kind, WalkPosition, WalkRequest, WorkspaceError};

async fn walk(subject: &Subject, request: WalkRequest) -> (Vec<String>, bool) {
    let found = subject.workspace.walk(request, CancellationToken::new()).await.expect("walked");
    (found.items.into_iter().map(|entry| entry.path.as_str().to_string()).collect(), found.truncated)
}

fn everything() -> WalkRequest {
    WalkRequest::new(path("."), 1000)
}

fn project(subject: &Subject) {
    for file in [
        "src/main.rs",
        "src/deep/a.rs",
        "src/deep/b.txt",
        "README.md",
        "target/x.rs",
        "logs/a.log",
        "logs/keep.log",
        ".github/ci.yml",
        ".git/HEAD",
        ".git/info/exclude",
        "secret.key",
        "docs/.ignore",
        "docs/draft.md",
        "docs/final.md",
    ] {
        subject.put(file, "x");
    }
    subject.put(".gitignore", "/target\n*.log\n!keep.log\n# comment\n\n");
    subject.put("src/.gitignore", "deep/b.txt\n");
    subject.put("docs/.ignore", "draft.md\n");
    subject.put(".git/info/exclude", "secret.key\n");
}

pub async fn walks_are_sorted_and_respect_ignore_rules(subject: &Subject) {
    project(subject);
    let (visible, truncated) = walk(subject, everything()).await;
    assert_eq!(
        visible,
        [
            "docs",
            "docs/final.md",
            "logs",
            "logs/keep.log",
            "src",
            "src/deep",
            "src/deep/a.rs",
            "src/main.rs",
            "README.md"
        ]
    );
    assert!(!truncated);
    let all = WalkRequest { include_hidden: true, include_ignored: true, ..everything() };
    let found = subject.workspace.walk(all, CancellationToken::new()).await.expect("walked");
    let ignored: Vec<_> = found.items.iter().filter(|entry| entry.ignored).map(|entry| entry.path.as_str()).collect();
    assert_eq!(
        ignored,
        [".git", "docs/draft.md", "logs/a.log", "src/deep/b.txt", "target", "target/x.rs", "secret.key"],
        "`.git` is shown and not walked into"
    );
    let start = WalkRequest::new(path("src/deep"), 10);
    assert_eq!(walk(subject, start).await.0, ["src/deep/a.rs"], "rules above the start hold too");
}

pub async fn a_walk_can_be_continued_where_it_was_cut(subject: &Subject) {
    project(subject);
    let whole = WalkRequest { include_hidden: true, include_ignored: true, ..everything() };
    let all = subject.workspace.walk(whole.clone(), CancellationToken::new()).await.expect("walked").items;
    for limit in 1..=all.len() {
        let mut pages = Vec::new();
        let mut after = None;
        loop {
            let request = WalkRequest { limit, after: after.take(), ..whole.clone() };
            let found = subject.workspace.walk(request, CancellationToken::new()).await.expect("walked");
            pages.extend(found.items);
            if !found.truncated {
                break;
            }
            let last = pages.last().expect("a page is never empty and cut");
            after = Some(WalkPosition { path: last.path.clone(), directory: last.kind == Kind::Dir });
        }
        assert_eq!(pages, all, "pages of {limit}");
    }
    // The entry of the position may be gone.
    let after = Some(WalkPosition { path: path("src/deep/aa"), directory: false });
    let rest = walk(subject, WalkRequest { after, ..everything() }).await.0;
    assert_eq!(rest, ["src/main.rs", "README.md"]);
}

pub async fn globs_words_depth_and_hidden_names_select(subject: &Subject) {
    project(subject);
    let select = async |glob: &str| walk(subject, WalkRequest { glob: Some(glob.into()), ..everything() }).await.0;
    assert_eq!(select("*.rs").await, ["src/deep/a.rs", "src/main.rs"]);
    assert_eq!(select("src/*.rs").await, ["src/main.rs"]);
    assert_eq!(select("src/**/*.rs").await, ["src/deep/a.rs", "src/main.rs"]);
    assert_eq!(select("**/{a,final}.*").await, ["docs/final.md", "src/deep/a.rs"]);
    let relative = WalkRequest { glob: Some("deep/*".into()), ..WalkRequest::new(path("src"), 10) };
    assert_eq!(walk(subject, relative).await.0, ["src/deep/a.rs"], "a glob is relative to the start");
    let words = WalkRequest { words: vec!["MAIN".into(), "src".into()], ..everything() };
    assert_eq!(walk(subject, words).await.0, ["src/main.rs"]);
    let shallow = WalkRequest { max_depth: Some(1), without_directories: true, ..everything() };
    assert_eq!(walk(subject, shallow).await.0, ["README.md"]);
    let hidden = WalkRequest { include_hidden: true, glob: Some("*.yml".into()), ..everything() };
    assert_eq!(walk(subject, hidden).await.0, [".github/ci.yml"]);
}

pub async fn patterns_that_do_not_parse_are_told(subject: &Subject) {
    let request = WalkRequest { glob: Some("a[".into()), ..everything() };
    let walked = subject.workspace.walk(request, CancellationToken::new()).await;
    assert!(matches!(walked, Err(WorkspaceError::Pattern(_))), "{walked:?}");
    for pattern in ["(", "a{99999999}", "((a{100}){100}){100}", "\\p{Nope}"] {
        let searched = subject.workspace.grep(grep_for(pattern), CancellationToken::new()).await;
        assert!(matches!(searched, Err(WorkspaceError::Pattern(_))), "{pattern}: {searched:?}");
    }
    let file = subject.workspace.walk(WalkRequest::new(path("none"), 1), CancellationToken::new()).await;
    assert_eq!(file, Err(WorkspaceError::NotFound(path("none"))));
}

fn grep_for(pattern: &str) -> GrepRequest {
    GrepRequest {
        path: path("."),
        pattern: pattern.into(),
        literal: false,
        ignore_case: false,
        glob: None,
        context: 0,
        limit: 100,
    }
}

async fn grep(subject: &Subject, request: GrepRequest) -> Found<GrepLine> {
    subject.workspace.grep(request, CancellationToken::new()).await.expect("searched")
}

fn shown(found: &Found<GrepLine>) -> Vec<String> {
    let mark = |line: &GrepLine| if line.is_match { ':' } else { '-' };
    found.items.iter().map(|line| format!("{}{}{}", line.line, mark(line), line.text)).collect()
}

pub async fn grep_finds_lines_and_skips_binary_and_ignored_files(subject: &Subject) {
    subject.put("a.txt", "one\r\nneedle two\r\nthree NEEDLE\nlast needle");
    subject.put("b/c.md", "needle");
    subject.put("binary", b"needle\nneedle \0 needle\n");
    subject.put(".gitignore", "ignored\n");
    subject.put("ignored/x", "needle");
    subject.put(".git/x", "needle");
    subject.put(".hidden", "needle");
    subject.put("latin", b"needle \xe9");
    let found = grep(subject, grep_for("needle")).await;
    let seen: Vec<_> = found.items.iter().map(|line| (line.path.as_str(), line.line, &*line.text)).collect();
    assert_eq!(
        seen,
        [
            ("b/c.md", 1, "needle"),
            (".hidden", 1, "needle"),
            ("a.txt", 2, "needle two"),
            ("a.txt", 4, "last needle"),
            ("latin", 1, "needle \u{fffd}"),
        ]
    );
    assert!(!found.truncated);
    let by_glob = grep(subject, GrepRequest { glob: Some("*.md".into()), ..grep_for("needle") }).await;
    assert_eq!(by_glob.items.len(), 1);
    let any_case = GrepRequest { ignore_case: true, path: path("a.txt"), ..grep_for("needle") };
    assert_eq!(shown(&grep(subject, any_case).await), ["2:needle two", "3:three NEEDLE", "4:last needle"]);
    subject.put("dots", "a.b\naxb\n");
    let literal = GrepRequest { literal: true, path: path("dots"), ..grep_for("a.b") };
    assert_eq!(shown(&grep(subject, literal).await), ["1:a.b"]);
}

pub async fn grep_gives_context_and_says_when_it_was_cut(subject: &Subject) {
    subject.put("f", "1\n2\n3 x\n4\n5\n6 x\n7\n");
    let request = GrepRequest { context: 1, path: path("f"), ..grep_for("x") };
    assert_eq!(shown(&grep(subject, request.clone()).await), ["2-2", "3:3 x", "4-4", "5-5", "6:6 x", "7-7"]);
    let cut = grep(subject, GrepRequest { limit: 1, ..request.clone() }).await;
    assert!(cut.truncated);
    assert_eq!(cut.items.iter().filter(|line| line.is_match).count(), 1);
    assert!(!grep(subject, GrepRequest { limit: 2, ..request }).await.truncated, "exactly as many as allowed");
    subject.put("g", "x\n");
    let over_files = grep(subject, GrepRequest { limit: 2, ..grep_for("x") }).await;
    assert!(over_files.truncated);
}

pub async fn long_lines_are_cut_with_a_mark(subject: &Subject) {
    subject.put("f", format!("x{}", "ü".repeat(600)));
    let found = grep(subject, grep_for("x")).await;
    assert_eq!(found.items[0].text, format!("x{}…", "ü".repeat(499)));
    subject.put("f", format!("x{}", "ü".repeat(499)));
    assert_eq!(grep(subject, grep_for("x")).await.items[0].text, format!("x{}", "ü".repeat(499)));
    subject.put("f", [b"x".repeat(20_000_000), b"\nx\n".to_vec()].concat());
    assert!(grep(subject, grep_for("x$")).await.truncated, "a line over the bound is not searched in silence");
}

pub async fn a_cancelled_search_ends_soon(subject: &Subject) {
    for number in 0..2000 {
        subject.put(&format!("{number}"), "x".repeat(10_000));
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    let started = Instant::now();
    let searched = subject.workspace.grep(grep_for("y"), cancel.clone()).await;
    assert_eq!(searched, Err(WorkspaceError::Cancelled));
    let walked = subject.workspace.walk(everything(), cancel).await;
    assert_eq!(walked, Err(WorkspaceError::Cancelled));
    assert!(started.elapsed() < Duration::from_secs(1));
    let later = CancellationToken::new();
    let searching = tokio::spawn({
        let (workspace, later) = (subject.workspace.clone(), later.clone());
        async move { workspace.grep(grep_for("y"), later).await }
    });
    later.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(5), searching).await.expect("soon").expect("no panic");
    assert!(matches!(ended, Err(WorkspaceError::Cancelled) | Ok(_)), "{ended:?}");
}
