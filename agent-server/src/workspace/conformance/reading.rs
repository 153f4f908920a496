//! Cases of reading and listing.

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use super::{Subject, path};
use crate::workspace::{Kind, OpenFile, PathError, WorkspaceError, WriteOptions};

const MANY: u64 = 1 << 30;

async fn collect(mut opened: OpenFile) -> Bytes {
    let mut all = BytesMut::new();
    while let Some(chunk) = opened.content.next().await {
        all.extend_from_slice(&chunk.expect("readable"));
    }
    all.freeze()
}

pub async fn a_file_is_read_with_size_time_and_a_validator_of_its_content(subject: &Subject) {
    subject.put("a/b.txt", "hello");
    let (stat, content) = subject.workspace.read(&path("a/b.txt"), MANY).await.expect("read");
    assert_eq!(content, "hello");
    assert_eq!((stat.kind, stat.size, stat.target.clone()), (Kind::File, 5, None));
    let modified = std::fs::metadata(subject.root.join("a/b.txt")).expect("there").modified().expect("time");
    let since = modified.duration_since(std::time::UNIX_EPOCH).expect("after");
    assert_eq!(stat.mtime_ms, i64::try_from(since.as_millis()).expect("fits"));
    assert_eq!(subject.workspace.stat(&path("a/b.txt")).await.expect("stat"), stat);
    let etag = stat.etag.expect("a validator");
    assert!(etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"'), "{etag}");
}

pub async fn validators_follow_the_content_and_only_it_for_small_files(subject: &Subject) {
    let etag = async |name: &str| subject.workspace.stat(&path(name)).await.expect("stat").etag.expect("a validator");
    subject.put("a", "one");
    subject.put("b", "one");
    let first = etag("a").await;
    assert_eq!(first, etag("b").await);
    subject.put("a", "two");
    assert_ne!(first, etag("a").await);
    subject.put("a", "one");
    assert_eq!(first, etag("a").await);
}

pub async fn a_large_file_changes_its_validator_when_it_is_written(subject: &Subject) {
    let content = Bytes::from(vec![b'x'; 300_000]);
    let first =
        subject.workspace.write(&path("large"), content.clone(), WriteOptions::default()).await.expect("written");
    let seen = subject.workspace.stat(&path("large")).await.expect("stat").etag;
    assert_eq!(seen.as_deref(), Some(&*first.etag));
    assert_eq!(subject.workspace.read(&path("large"), MANY).await.expect("read").0.etag, seen);
    let second = subject.workspace.write(&path("large"), content, WriteOptions::default()).await.expect("written");
    assert_ne!(first.etag, second.etag);
}

pub async fn a_file_over_the_bound_is_refused_with_its_size(subject: &Subject) {
    subject.put("f", vec![0; 100_000]);
    let error = subject.workspace.read(&path("f"), 99_999).await.expect_err("too large");
    assert_eq!(error, WorkspaceError::TooLarge { path: path("f"), size: 100_000, limit: 99_999 });
    assert_eq!(subject.workspace.read(&path("f"), 100_000).await.expect("read").1.len(), 100_000);
}

pub async fn streams_give_the_whole_or_a_range(subject: &Subject) {
    let content: Vec<u8> = (0..700_000_u32).map(|number| u8::try_from(number % 251).expect("small")).collect();
    subject.put("large", &content);
    subject.put("small", &content[..1000]);
    subject.put("empty", "");
    for (name, size) in [("large", content.len()), ("small", 1000), ("empty", 0)] {
        let opened = subject.workspace.open(&path(name), None).await.expect("opened");
        assert_eq!((opened.stat.size, opened.stat.kind), (size as u64, Kind::File));
        assert!(opened.stat.etag.is_some());
        assert_eq!(collect(opened).await, content[..size]);
        for (offset, length) in [(0_usize, 1_usize), (10, 300_000), (999, 1), (999, 5000), (5_000_000, 10)] {
            let range = Some((offset as u64, length as u64));
            let opened = subject.workspace.open(&path(name), range).await.expect("opened");
            let (from, to) = (offset.min(size), (offset + length).min(size));
            assert_eq!(collect(opened).await, content[from..to], "{name} {offset} {length}");
        }
    }
}

pub async fn directories_missing_files_and_files_as_directories_are_told_apart(subject: &Subject) {
    subject.put("d/f", "x");
    let read = async |text: &str| subject.workspace.read(&path(text), MANY).await.expect_err("refused");
    assert_eq!(read("d").await, WorkspaceError::IsDirectory(path("d")));
    assert_eq!(read(".").await, WorkspaceError::IsDirectory(path(".")));
    assert_eq!(read("none").await, WorkspaceError::NotFound(path("none")));
    assert_eq!(read("none/f").await, WorkspaceError::NotFound(path("none/f")));
    assert_eq!(read("d/f/g").await, WorkspaceError::NotADirectory(path("d/f/g")));
    assert_eq!(subject.workspace.list(&path("d/f")).await, Err(WorkspaceError::NotADirectory(path("d/f"))));
    assert_eq!(subject.workspace.list(&path("none")).await, Err(WorkspaceError::NotFound(path("none"))));
    assert_eq!(subject.workspace.stat(&path("none")).await, Err(WorkspaceError::NotFound(path("none"))));
    assert_eq!(subject.workspace.stat(&path(".")).await.expect("stat").kind, Kind::Dir);
}

pub async fn listings_are_sorted_with_directories_first_and_marks(subject: &Subject) {
    for file in ["b", "a.txt", "Z", ".hidden", "zdir/x", "adir/x", "node_modules/x", ".git/config", "build.log"] {
        subject.put(file, "content");
    }
    subject.put(".gitignore", "node_modules\n*.log\n");
    subject.link("link", "b");
    let entries = subject.workspace.list(&path(".")).await.expect("listed");
    let seen: Vec<_> = entries.iter().map(|entry| (entry.path.as_str(), entry.kind, entry.ignored)).collect();
    assert_eq!(
        seen,
        [
            (".git", Kind::Dir, true),
            ("adir", Kind::Dir, false),
            ("node_modules", Kind::Dir, true),
            ("zdir", Kind::Dir, false),
            (".gitignore", Kind::File, false),
            (".hidden", Kind::File, false),
            ("Z", Kind::File, false),
            ("a.txt", Kind::File, false),
            ("b", Kind::File, false),
            ("build.log", Kind::File, true),
            ("link", Kind::Symlink, false),
        ]
    );
    assert_eq!(entries.iter().find(|entry| entry.path == path("a.txt")).map(|entry| entry.size), Some(7));
    let inside = subject.workspace.list(&path("node_modules")).await.expect("listed");
    assert!(inside[0].ignored, "what lies in an ignored directory is ignored");
}

pub async fn names_of_every_kind_come_back_as_they_are(subject: &Subject) {
    let long = "n".repeat(255);
    let names = [
        "new\nline",
        "..x",
        "~",
        "$HOME",
        "...",
        " ",
        "tab\there",
        "-rf",
        "*",
        "?",
        "[a]",
        "{b}",
        "a\\b",
        "quote\"'",
        "ünïcödé",
        "日本語",
        "\u{202e}rtl",
        "\u{1b}[31m",
        "%2e%2e",
        "CON",
        ".",
        &long,
    ];
    for name in names.iter().filter(|name| **name != ".") {
        let file = path(name);
        subject
            .workspace
            .write(&file, Bytes::from(name.as_bytes().to_vec()), WriteOptions::default())
            .await
            .expect(name);
        assert_eq!(subject.content(name), name.as_bytes());
        assert_eq!(subject.workspace.read(&file, MANY).await.expect(name).1, name.as_bytes());
        assert_eq!(subject.workspace.stat(&file).await.expect(name).kind, Kind::File);
    }
    let entries = subject.workspace.list(&path(".")).await.expect("listed");
    assert_eq!(entries.len(), names.len() - 1);
    for name in names.iter().filter(|name| **name != ".") {
        subject.workspace.remove(&path(name), false).await.expect(name);
    }
    assert_eq!(subject.workspace.list(&path(".")).await.expect("listed"), []);
    let too_long = crate::workspace::WorkspacePath::parse(&"n".repeat(256));
    assert_eq!(too_long, Err(PathError::TooLong));
}

pub async fn ten_thousand_files_are_listed_whole(subject: &Subject) {
    for number in 0..10_000 {
        subject.put(&format!("many/{number:05}"), "");
    }
    let entries = subject.workspace.list(&path("many")).await.expect("listed");
    assert_eq!(entries.len(), 10_000);
    let sorted = entries.windows(2).all(|pair| pair[0].path < pair[1].path);
    assert!(sorted, "sorted by name");
}

pub async fn a_fifo_is_shown_and_never_opened(subject: &Subject) {
    subject.fifo("pipe");
    let fifo = path("pipe");
    assert_eq!(subject.workspace.stat(&fifo).await.expect("stat").kind, Kind::Other);
    assert_eq!(subject.workspace.list(&path(".")).await.expect("listed")[0].kind, Kind::Other);
    let refused = WorkspaceError::NotRegular(fifo.clone());
    assert_eq!(subject.workspace.read(&fifo, MANY).await.expect_err("refused"), refused);
    assert_eq!(subject.workspace.open(&fifo, None).await.map(|_| ()).expect_err("refused"), refused);
    let write = subject.workspace.write(&fifo, Bytes::from_static(b"x"), WriteOptions::default()).await;
    assert_eq!(write.expect_err("refused"), refused);
    // A writer that waits for a reader goes on waiting: nobody opened the other end.
    subject.workspace.remove(&fifo, false).await.expect("removed");
}
