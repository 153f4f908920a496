//! Cases of writing.

use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use futures::stream;
use futures::{FutureExt as _, StreamExt as _};

use super::{Subject, path};
use crate::workspace::{Precondition, WorkspaceError, WriteOptions, Written};

const MANY: u64 = 1 << 30;

fn with(precondition: Precondition) -> WriteOptions {
    WriteOptions { create_dirs: false, precondition }
}

fn if_etag(etag: &str) -> WriteOptions {
    with(Precondition { etag: Some(etag.into()), ..Precondition::default() })
}

async fn write(
    subject: &Subject,
    file: &str,
    content: &'static str,
    options: WriteOptions,
) -> Result<Written, WorkspaceError> {
    subject.workspace.write(&path(file), Bytes::from_static(content.as_bytes()), options).await
}

/// The names really in a folder, sorted.
fn names(subject: &Subject, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(subject.root.join(folder)).expect("folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

pub async fn a_new_file_is_made_and_an_old_one_replaced_with_its_mode_kept(subject: &Subject) {
    let made = write(subject, "run.sh", "one", WriteOptions::default()).await.expect("written");
    assert_eq!((made.created, made.size), (true, 3));
    std::fs::set_permissions(subject.root.join("run.sh"), PermissionsExt::from_mode(0o750)).expect("mode");
    let replaced = write(subject, "run.sh", "three", WriteOptions::default()).await.expect("written");
    assert_eq!((replaced.created, replaced.size), (false, 5));
    assert_eq!(subject.content("run.sh"), b"three");
    let bits = std::fs::metadata(subject.root.join("run.sh")).expect("there").permissions().mode();
    assert_eq!(bits & 0o7777, 0o750);
    let stat = subject.workspace.stat(&path("run.sh")).await.expect("stat");
    assert_eq!((stat.etag, stat.mtime_ms), (Some(replaced.etag), replaced.mtime_ms));
    assert_eq!(names(subject, "."), ["run.sh"]);
}

pub async fn missing_directories_are_made_only_when_asked(subject: &Subject) {
    let refused = write(subject, "a/b/c", "x", WriteOptions::default()).await.expect_err("refused");
    assert!(matches!(refused, WorkspaceError::NotFound(_)), "{refused}");
    assert_eq!(names(subject, "."), Vec::<String>::new());
    let options = WriteOptions { create_dirs: true, ..WriteOptions::default() };
    write(subject, "a/b/c", "x", options.clone()).await.expect("written");
    assert_eq!(subject.content("a/b/c"), b"x");
    let through_a_file = write(subject, "a/b/c/d", "x", options).await.expect_err("refused");
    assert!(matches!(through_a_file, WorkspaceError::NotADirectory(_)), "{through_a_file}");
}

pub async fn a_precondition_that_fails_changes_nothing_and_tells_what_is_there(subject: &Subject) {
    let first = write(subject, "f", "one", WriteOptions::default()).await.expect("written");
    let second = write(subject, "f", "two", if_etag(&first.etag)).await.expect("it holds");
    let stale = write(subject, "f", "three", if_etag(&first.etag)).await.expect_err("stale");
    let there = subject.workspace.stat(&path("f")).await.expect("stat");
    assert_eq!(there.etag.as_ref(), Some(&second.etag));
    assert_eq!(stale, WorkspaceError::Conflict { path: path("f"), current: Some(Box::new(there)) });
    let by_time = Precondition { mtime_ms: Some(second.mtime_ms - 1), ..Precondition::default() };
    assert!(matches!(write(subject, "f", "x", with(by_time)).await, Err(WorkspaceError::Conflict { .. })));
    let by_right_time = Precondition { mtime_ms: Some(second.mtime_ms), ..Precondition::default() };
    write(subject, "f", "four", with(by_right_time)).await.expect("it holds");
    write(subject, "f", "five", if_etag("*")).await.expect("it exists");
    let missing = write(subject, "none", "x", if_etag("*")).await.expect_err("missing");
    assert_eq!(missing, WorkspaceError::Conflict { path: path("none"), current: None });
    assert_eq!(subject.content("f"), b"five");
    assert_eq!(names(subject, "."), ["f"]);
}

pub async fn of_two_writers_with_one_precondition_exactly_one_wins(subject: &Subject) {
    for _ in 0..20 {
        let start = write(subject, "f", "start", WriteOptions::default()).await.expect("written");
        let (left, right) = tokio::join!(
            write(subject, "f", "left", if_etag(&start.etag)),
            write(subject, "f", "right", if_etag(&start.etag))
        );
        assert!(left.is_ok() != right.is_ok(), "{left:?} {right:?}");
        assert_eq!(subject.content("f"), if left.is_ok() { &b"left"[..] } else { b"right" });
    }
}

pub async fn concurrent_updates_of_one_file_lose_nothing(subject: &Subject) {
    subject.put("d/log", "");
    subject.link("same", "d");
    let update = |number: usize| {
        // Two spellings of one file must meet at one lock.
        let file = path(if number.is_multiple_of(2) { "d/log" } else { "same/log" });
        async move {
            let append = move |old: &[u8]| Ok(Bytes::from([old, format!("{number}\n").as_bytes()].concat()));
            subject.workspace.update(&file, MANY, Box::new(append)).await.expect("updated");
        }
    };
    futures::future::join_all((0..40).map(update)).await;
    let text = String::from_utf8(subject.content("d/log")).expect("text");
    let mut numbers: Vec<usize> = text.lines().map(|line| line.parse().expect("number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
}

pub async fn an_update_that_refuses_changes_nothing(subject: &Subject) {
    subject.put("f", "content");
    let update = async |file: &str, most, refuse: bool| {
        let change = move |_: &[u8]| if refuse { Err("does not match".to_string()) } else { Ok(Bytes::new()) };
        subject.workspace.update(&path(file), most, Box::new(change)).await.expect_err("refused")
    };
    assert_eq!(update("f", MANY, true).await, WorkspaceError::Rejected("does not match".into()));
    assert_eq!(update("f", 6, false).await, WorkspaceError::TooLarge { path: path("f"), size: 7, limit: 6 });
    assert_eq!(update("none", MANY, false).await, WorkspaceError::NotFound(path("none")));
    assert_eq!(subject.content("f"), b"content");
    assert_eq!(names(subject, "."), ["f"]);
}

pub async fn a_stream_that_breaks_off_or_is_too_long_leaves_no_trace(subject: &Subject) {
    subject.put("f", "old");
    let broken = stream::iter([Ok(Bytes::from_static(b"new")), Err(std::io::Error::other("gone"))]).boxed();
    let error = subject.workspace.write_stream(&path("f"), broken, MANY, WriteOptions::default()).await;
    assert!(matches!(error, Err(WorkspaceError::Rejected(_))), "{error:?}");
    let long = stream::iter([Ok(Bytes::from_static(b"12345")), Ok(Bytes::from_static(b"67890"))]).boxed();
    let error = subject.workspace.write_stream(&path("f"), long, 9, WriteOptions::default()).await;
    assert_eq!(error, Err(WorkspaceError::TooLarge { path: path("f"), size: 10, limit: 9 }));
    // A caller that goes away in the middle.
    let endless = stream::iter([Ok(Bytes::from_static(b"x"))]).chain(stream::pending()).boxed();
    let file = path("f");
    let write = subject.workspace.write_stream(&file, endless, MANY, WriteOptions::default());
    let cut = tokio::time::timeout(std::time::Duration::from_millis(200), write).await;
    assert!(cut.is_err(), "it was waiting for more");
    assert_eq!(subject.content("f"), b"old");
    assert_eq!(names(subject, "."), ["f"]);
}

pub async fn a_stream_of_megabytes_arrives_whole(subject: &Subject) {
    let chunk = Bytes::from(vec![7_u8; 100_000]);
    let chunks = stream::iter((0..50).map(move |_| Ok(chunk.clone()))).boxed();
    let options = WriteOptions { create_dirs: true, ..WriteOptions::default() };
    let written = subject.workspace.write_stream(&path("d/large"), chunks, MANY, options).await.expect("written");
    assert_eq!((written.size, written.created), (5_000_000, true));
    assert!(subject.content("d/large").iter().all(|byte| *byte == 7));
    assert_eq!(subject.workspace.stat(&path("d/large")).await.expect("stat").etag, Some(written.etag));
}

pub async fn readers_see_the_old_or_the_new_content_and_nothing_between(subject: &Subject) {
    let (old, new) = (Bytes::from(vec![b'a'; 40_000]), Bytes::from(vec![b'b'; 50_000]));
    subject.put("f", &old);
    let file = path("f");
    let writing = async {
        for content in [&new, &old].into_iter().cycle().take(30) {
            subject.workspace.write(&file, content.clone(), WriteOptions::default()).await.expect("written");
        }
    };
    let mut writing = Box::pin(writing).fuse();
    let mut reads = 0;
    loop {
        futures::select_biased! {
            () = writing => break,
            read = subject.workspace.read(&file, MANY).fuse() => {
                let (stat, content) = read.expect("always there");
                assert!(content == old || content == new, "torn content of {} bytes", content.len());
                assert_eq!(stat.size, content.len() as u64);
                reads += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    assert!(reads > 0);
}

pub async fn what_cannot_be_replaced_is_refused(subject: &Subject) {
    subject.put("d/f", "x");
    let directory = write(subject, "d", "x", WriteOptions::default()).await;
    assert_eq!(directory, Err(WorkspaceError::IsDirectory(path("d"))));
    let root = write(subject, ".", "x", WriteOptions::default()).await;
    assert_eq!(root, Err(WorkspaceError::IsDirectory(path("."))));
    std::fs::set_permissions(subject.root.join("d/f"), PermissionsExt::from_mode(0o444)).expect("mode");
    assert_eq!(write(subject, "d/f", "y", WriteOptions::default()).await, Err(WorkspaceError::Denied(path("d/f"))));
    assert_eq!(subject.content("d/f"), b"x");
    assert_eq!(names(subject, "d"), ["f"]);
}

pub async fn a_link_at_the_end_is_written_through_when_it_stays_inside(subject: &Subject) {
    subject.put("d/real", "old");
    subject.link("link", "d/real");
    subject.link("d/again", "../link");
    write(subject, "d/again", "new", WriteOptions::default()).await.expect("written");
    assert_eq!(subject.content("d/real"), b"new");
    assert!(std::fs::symlink_metadata(subject.root.join("link")).expect("there").is_symlink());
    subject.link("out", "../outside/secret");
    let outside = write(subject, "out", "x", WriteOptions::default()).await;
    assert_eq!(outside, Err(WorkspaceError::Escapes(path("out"))));
    subject.link("dangling", "nowhere");
    let dangling = write(subject, "dangling", "x", WriteOptions::default()).await;
    assert_eq!(dangling, Err(WorkspaceError::NotFound(path("dangling"))));
}

pub async fn directories_made_for_a_write_that_fails_are_gone_again(subject: &Subject) {
    subject.put("there/f", "x");
    let precondition = Precondition { etag: Some("\"never\"".into()), ..Precondition::default() };
    let options = WriteOptions { create_dirs: true, precondition };
    for text in ["a/b/c/f", "there/d/f"] {
        let written = subject.workspace.write(&path(text), Bytes::from_static(b"x"), options.clone()).await;
        assert!(matches!(written, Err(WorkspaceError::Conflict { .. })), "{written:?}");
        let pieces = [Ok(Bytes::from_static(b"x")), Err(std::io::ErrorKind::ConnectionReset.into())];
        let streamed = WriteOptions { create_dirs: true, ..WriteOptions::default() };
        let content = futures::StreamExt::boxed(futures::stream::iter(pieces));
        let broken = subject.workspace.write_stream(&path(text), content, 100, streamed).await;
        assert!(matches!(broken, Err(WorkspaceError::Rejected(_))), "{broken:?}");
    }
    assert!(!subject.exists("a") && !subject.exists("there/d") && subject.exists("there/f"));
    let options = WriteOptions { create_dirs: true, ..WriteOptions::default() };
    subject.workspace.write(&path("a/b/c/f"), Bytes::from_static(b"x"), options).await.expect("written");
    assert!(subject.exists("a/b/c/f"));
}
