//! Cases of confinement: links, swaps and races.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{Subject, path};
use crate::workspace::{GrepRequest, Kind, WalkRequest, WorkspaceError, WorkspacePath, WriteOptions};

const MANY: u64 = 1 << 30;

fn grep(start: WorkspacePath, pattern: &str) -> GrepRequest {
    GrepRequest {
        path: start,
        pattern: pattern.into(),
        literal: true,
        ignore_case: false,
        glob: None,
        context: 0,
        limit: 100,
    }
}

pub async fn links_that_lead_outside_are_refused_by_every_operation(subject: &Subject) {
    subject.link("relative", "../outside");
    let absolute = subject.keep.path().join("outside");
    subject.link("absolute", absolute.to_str().expect("text"));
    subject.link("file", "../outside/secret");
    subject.put("d/f", "x");
    subject.link("d/up", "../../outside");
    subject.link("proc", "/proc/self/root/etc");
    for (directory, file) in [
        ("relative", "relative/secret"),
        ("absolute", "absolute/secret"),
        ("d/up", "d/up/secret"),
        ("proc", "proc/passwd"),
    ] {
        let (directory, file) = (path(directory), path(file));
        let workspace = &subject.workspace;
        let escapes = |outcome: Result<(), WorkspaceError>, at: &WorkspacePath, what: &str| {
            let fitting = matches!(&outcome, Err(WorkspaceError::Escapes(path)) if *path == *at || at.as_str().starts_with(path.as_str()));
            assert!(fitting, "{what} {at}: {outcome:?}");
        };
        escapes(workspace.read(&file, MANY).await.map(drop), &file, "read");
        escapes(workspace.open(&file, None).await.map(drop), &file, "open");
        escapes(workspace.stat(&file).await.map(drop), &file, "stat");
        escapes(workspace.list(&directory).await.map(drop), &directory, "list");
        let write = workspace.write(&file, Bytes::from_static(b"x"), WriteOptions::default()).await;
        escapes(write.map(drop), &file, "write");
        let create = WriteOptions { create_dirs: true, ..WriteOptions::default() };
        let deeper = file.join("new/file").expect("path");
        escapes(workspace.write(&deeper, Bytes::new(), create).await.map(drop), &deeper, "write with directories");
        escapes(workspace.make_dir(&directory.join("new").expect("path"), true).await, &file, "make");
        let update = workspace.update(&file, MANY, Box::new(|_| Ok(Bytes::new()))).await;
        escapes(update.map(drop), &file, "update");
        let walk = workspace.walk(WalkRequest::new(directory.clone(), 10), CancellationToken::new()).await;
        escapes(walk.map(drop), &directory, "walk");
        let searched = workspace.grep(grep(directory.clone(), "s"), CancellationToken::new()).await;
        escapes(searched.map(drop), &directory, "grep");
    }
    let read = subject.workspace.read(&path("file"), MANY).await.map(drop);
    assert_eq!(read, Err(WorkspaceError::Escapes(path("file"))));
    assert_eq!(std::fs::read(subject.keep.path().join("outside/secret")).expect("there"), b"secret!");
    assert_eq!(std::fs::read_dir(subject.keep.path().join("outside")).expect("there").count(), 1);
}

pub async fn removal_and_renaming_never_go_through_links(subject: &Subject) {
    subject.put("d/f", "x");
    subject.link("inside", "d");
    subject.link("outside", "../outside");
    for link in ["inside", "outside"] {
        let file = path(&format!("{link}/f"));
        let refused = Err(WorkspaceError::ThroughLink(path(link)));
        assert_eq!(subject.workspace.remove(&file, true).await, refused);
        assert_eq!(subject.workspace.rename(&file, &path("g"), true).await, refused);
        assert_eq!(subject.workspace.rename(&path("d/f"), &file, true).await, refused);
    }
    assert_eq!(subject.content("d/f"), b"x");
    assert!(subject.keep.path().join("outside/secret").exists());
}

pub async fn a_removed_link_leaves_its_target_alone(subject: &Subject) {
    subject.put("d/f", "x");
    subject.link("inside", "d");
    subject.link("outside", "../outside");
    subject.link("d/deep", "../../outside");
    subject.workspace.remove(&path("inside"), true).await.expect("removed");
    subject.workspace.remove(&path("outside"), true).await.expect("removed");
    assert_eq!(subject.content("d/f"), b"x");
    subject.workspace.remove(&path("d"), true).await.expect("removed");
    assert!(subject.keep.path().join("outside/secret").exists());
}

pub async fn links_that_stay_inside_are_followed(subject: &Subject) {
    subject.put("d/e/f", "x");
    subject.link("d/e/up", "../../d");
    subject.link("file", "d/e/f");
    assert_eq!(subject.workspace.read(&path("d/e/up/e/f"), MANY).await.expect("read").1, "x");
    assert_eq!(subject.workspace.read(&path("file"), MANY).await.expect("read").1, "x");
    let stat = subject.workspace.stat(&path("file")).await.expect("stat");
    assert_eq!((stat.kind, stat.target.as_deref(), stat.etag), (Kind::Symlink, Some("d/e/f"), None));
    assert_eq!(subject.workspace.list(&path("d/e/up")).await.expect("listed").len(), 1);
}

pub async fn loops_and_dangling_links_end_in_an_error(subject: &Subject) {
    subject.link("a", "b");
    subject.link("b", "a");
    subject.link("self", "self/x");
    subject.link("dangling", "none");
    for name in ["a", "self", "a/f"] {
        assert!(subject.workspace.read(&path(name), MANY).await.is_err(), "{name}");
        assert!(subject.workspace.write(&path(name), Bytes::new(), WriteOptions::default()).await.is_err(), "{name}");
    }
    let dangling = subject.workspace.read(&path("dangling"), MANY).await.map(drop);
    assert_eq!(dangling, Err(WorkspaceError::NotFound(path("dangling"))));
    assert_eq!(subject.workspace.stat(&path("dangling")).await.expect("stat").kind, Kind::Symlink);
}

pub async fn walks_and_searches_do_not_follow_links(subject: &Subject) {
    subject.put("d/f", "needle secret!");
    subject.link("out", "../outside");
    subject.link("d/loop", "..");
    subject.link("file", "../outside/secret");
    subject.fifo("pipe");
    let found =
        subject.workspace.walk(WalkRequest::new(path("."), 100), CancellationToken::new()).await.expect("walked");
    let seen: Vec<_> = found.items.iter().map(|entry| (entry.path.as_str(), entry.kind)).collect();
    assert_eq!(
        seen,
        [
            ("d", Kind::Dir),
            ("d/f", Kind::File),
            ("d/loop", Kind::Symlink),
            ("file", Kind::Symlink),
            ("out", Kind::Symlink),
            ("pipe", Kind::Other),
        ]
    );
    let lines = subject.workspace.grep(grep(path("."), "secret!"), CancellationToken::new()).await.expect("searched");
    assert_eq!(lines.items.iter().map(|line| line.path.as_str()).collect::<Vec<_>>(), ["d/f"]);
}

/// Exchanges two entries of the workspace all the time, as another process may, until dropped.
pub struct Swapper {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    /// Begins.
    pub fn start(subject: &Subject, left: &'static str, right: &'static str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let root = std::fs::File::open(&subject.root).expect("folder");
        let thread = std::thread::spawn({
            let over = over.clone();
            move || {
                while !over.load(Ordering::Relaxed) {
                    // Either may be gone for a moment when the case removes them.
                    let _gone = rustix::fs::renameat_with(&root, left, &root, right, rustix::fs::RenameFlags::EXCHANGE);
                }
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().expect("started").join().expect("no panic");
    }
}

/// What lies outside is as it was.
fn assert_outside_untouched(subject: &Subject) {
    let outside = subject.keep.path().join("outside");
    assert_eq!(std::fs::read(outside.join("secret")).expect("there"), b"secret!");
    assert_eq!(std::fs::read_dir(outside).expect("there").count(), 1);
}

pub async fn a_directory_swapped_for_a_link_never_shows_what_is_outside(subject: &Subject) {
    subject.put("swap/secret", "inside");
    subject.link("other", "../outside");
    let swapper = Swapper::start(subject, "swap", "other");
    let (mut inside, mut refused) = (0, 0);
    let until = Instant::now() + Duration::from_secs(20);
    while inside < 200 || refused < 200 {
        assert!(Instant::now() < until, "the swap was seen only from one side: {inside} {refused}");
        match subject.workspace.read(&path("swap/secret"), MANY).await {
            Ok((_, content)) => {
                assert_eq!(content, "inside");
                inside += 1;
            }
            Err(_) => refused += 1,
        }
        let _refused =
            subject.workspace.write(&path("swap/new"), Bytes::from_static(b"n"), WriteOptions::default()).await;
        let _refused = subject.workspace.make_dir(&path("swap/dir/dir"), true).await;
        let _refused = subject.workspace.rename(&path("swap/new"), &path("swap/newer"), true).await;
        let found = subject.workspace.grep(grep(path("."), "secret!"), CancellationToken::new()).await;
        assert_eq!(found.map(|found| found.items).unwrap_or_default(), [], "only the outside holds this word");
        if let Ok(found) = subject.workspace.walk(WalkRequest::new(path("swap"), 9), CancellationToken::new()).await {
            assert!(found.items.iter().all(|entry| entry.size != 7), "the outside's file has 7 bytes");
        }
    }
    drop(swapper);
    assert_outside_untouched(subject);
}

pub async fn a_tree_whose_parts_are_swapped_for_links_is_removed_without_touching_the_outside(subject: &Subject) {
    let _swapper = Swapper::start(subject, "victim/d", "spare");
    for _ in 0..100 {
        for number in 0..20 {
            subject.put(&format!("victim/{number}/f"), "x");
        }
        // Whatever the last round left in either place.
        let _left_over = std::fs::remove_file(subject.root.join("spare"));
        let _left_over = std::fs::remove_dir_all(subject.root.join("spare"));
        let _made = std::fs::create_dir_all(subject.root.join("victim/d"));
        let _made = std::os::unix::fs::symlink("../outside", subject.root.join("spare"));
        let _raced = subject.workspace.remove(&path("victim"), true).await;
        assert_outside_untouched(subject);
    }
}
