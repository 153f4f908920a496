//! Changes, and holding writes.

use bytes::Bytes;

use super::confinement::Swapper;
use super::{Subject, path};
use crate::workspace::WriteOptions;
use crate::workspace::changes::{Change, ChangeReader, Operation, Told};

/// A reader that was told what is watched.
async fn reader(subject: &Subject) -> ChangeReader {
    let mut reader = subject.workspace.changes().read(None);
    let mut watched = false;
    while !watched {
        watched = match reader.next().await {
            Told::Hello(coverage) => coverage.is_some(),
            told => told == Told::Resync,
        };
    }
    reader
}

/// The next change; what is watched may change meanwhile.
async fn change(reader: &mut ChangeReader) -> Change {
    loop {
        match reader.next().await {
            Told::Change(change) => return change,
            Told::Coverage(_) => {}
            told => panic!("{told:?} instead of a change"),
        }
    }
}

pub async fn changes_made_here_and_by_others_are_told_once_each_in_order(subject: &Subject) {
    let mut reader = reader(subject).await;
    let mut told = Vec::new();
    subject.workspace.make_dir(&path("a"), false).await.expect("made");
    told.push(change(&mut reader).await);
    subject.workspace.write(&path("a/f"), Bytes::from_static(b"x"), WriteOptions::default()).await.expect("written");
    told.push(change(&mut reader).await);
    subject.workspace.rename(&path("a"), &path("b"), false).await.expect("renamed");
    told.push(change(&mut reader).await);
    std::fs::rename(subject.root.join("b/f"), subject.root.join("b/g")).expect("renamed");
    told.push(change(&mut reader).await);
    std::fs::remove_dir_all(subject.root.join("b")).expect("removed");
    // The end of a removed tree may come in parts: first what is in it.
    while told.last().is_none_or(|last| last.path != path("b") || last.op != Operation::Unlink) {
        told.push(change(&mut reader).await);
    }
    let shown: Vec<_> = told
        .iter()
        .filter(|change| change.path != path("b/g") || change.op != Operation::Unlink)
        .map(|change| (change.op, change.path.as_str(), change.old_path.as_ref().map_or("", |path| path.as_str())))
        .collect();
    assert_eq!(
        shown,
        [
            (Operation::Mkdir, "a", ""),
            (Operation::Write, "a/f", ""),
            (Operation::Rename, "b", "a"),
            (Operation::Rename, "b/g", "b/f"),
            (Operation::Unlink, "b", ""),
        ]
    );
}

pub async fn what_lies_outside_is_never_told_however_directories_are_swapped(subject: &Subject) {
    subject.put("swap/inside", "x");
    subject.link("other", "../outside");
    let mut reader = reader(subject).await;
    let swapper = Swapper::start(subject, "swap", "other");
    let outside = subject.keep.path().join("outside");
    for number in 0..300 {
        std::fs::write(outside.join(format!("planted-{number}")), "x").expect("written");
        // New directories make the watcher look while the swap goes on.
        let _swapped = std::fs::create_dir_all(subject.root.join(format!("new/{number}/swap")));
    }
    drop(swapper);
    subject.put("end", "x");
    loop {
        match reader.next().await {
            Told::Change(change) if change.path == path("end") => break,
            Told::Change(change) => assert!(!change.path.as_str().contains("planted"), "{change:?}"),
            // A flood may be told as "look anew"; then the end is seen by another write.
            Told::Resync => subject.put("end", "again"),
            Told::Hello(_) | Told::Coverage(_) => {}
        }
    }
}

pub async fn writes_are_held_until_the_hold_ends(subject: &Subject) {
    let hold = subject.workspace.hold_writes().await;
    subject.workspace.sync().await.expect("synced");
    let workspace = subject.workspace.clone();
    let writing = tokio::spawn(async move {
        workspace.write(&path("f"), Bytes::from_static(b"x"), WriteOptions::default()).await.expect("written");
        workspace.make_dir(&path("d"), false).await.expect("made");
        workspace.rename(&path("f"), &path("d/f"), false).await.expect("renamed");
        workspace.remove(&path("d"), true).await.expect("removed");
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!writing.is_finished() && !subject.exists("f"));
    drop(hold);
    writing.await.expect("no panic");
    assert!(!subject.exists("d"));
}
