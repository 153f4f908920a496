//! Cases of removing, renaming and making directories.

use super::{Subject, path};
use crate::workspace::{WorkspaceError, WorkspacePath};

pub async fn files_links_and_empty_directories_are_removed(subject: &Subject) {
    subject.put("f", "x");
    subject.put("d/x", "x");
    std::fs::remove_file(subject.root.join("d/x")).expect("removed");
    subject.link("l", "f");
    subject.link("dangling", "nowhere");
    for name in ["l", "f", "d", "dangling"] {
        subject.workspace.remove(&path(name), false).await.expect(name);
        assert!(!subject.exists(name), "{name}");
    }
    assert_eq!(subject.workspace.remove(&path("f"), true).await, Err(WorkspaceError::NotFound(path("f"))));
    assert_eq!(subject.workspace.remove(&path("x/y"), true).await, Err(WorkspaceError::NotFound(path("x"))));
}

pub async fn a_directory_with_entries_needs_recursive(subject: &Subject) {
    for number in 0..200 {
        subject.put(&format!("d/{}/{number}/f", number % 7), "x");
    }
    subject.link("d/link", "..");
    subject.fifo("pipe");
    std::fs::rename(subject.root.join("pipe"), subject.root.join("d/pipe")).expect("moved");
    assert_eq!(subject.workspace.remove(&path("d"), false).await, Err(WorkspaceError::NotEmpty(path("d"))));
    assert!(subject.exists("d/0/0/f"));
    subject.put("stays", "x");
    subject.workspace.remove(&path("d"), true).await.expect("removed");
    assert!(!subject.exists("d") && subject.exists("stays"));
}

pub async fn the_root_is_never_removed_moved_or_replaced(subject: &Subject) {
    subject.put("f", "x");
    let root = WorkspacePath::root();
    for recursive in [false, true] {
        let refused = subject.workspace.remove(&root, recursive).await;
        assert!(matches!(refused, Err(WorkspaceError::Rejected(_))), "{refused:?}");
    }
    for (from, to) in [(&root, &path("d")), (&path("f"), &root)] {
        let refused = subject.workspace.rename(from, to, true).await;
        assert!(matches!(refused, Err(WorkspaceError::Rejected(_))), "{refused:?}");
    }
    assert_eq!(subject.content("f"), b"x");
    assert_eq!(WorkspacePath::parse("d/.."), Ok(root), "another spelling of the root is the root");
}

pub async fn a_rename_refuses_an_existing_target_unless_told(subject: &Subject) {
    subject.put("a", "a");
    subject.put("b", "b");
    subject.put("d/x", "x");
    subject.put("e/y", "y");
    let rename =
        async |from: &str, to: &str, overwrite| subject.workspace.rename(&path(from), &path(to), overwrite).await;
    assert_eq!(rename("a", "b", false).await, Err(WorkspaceError::AlreadyExists(path("b"))));
    assert_eq!((subject.content("a"), subject.content("b")), (b"a".to_vec(), b"b".to_vec()));
    rename("a", "b", true).await.expect("replaced");
    assert_eq!(subject.content("b"), b"a");
    rename("b", "d/c", false).await.expect("moved");
    assert_eq!(subject.content("d/c"), b"a");
    assert_eq!(rename("d", "e", true).await, Err(WorkspaceError::NotEmpty(path("e"))));
    assert_eq!(rename("d/c", "e", true).await, Err(WorkspaceError::IsDirectory(path("e"))));
    assert_eq!(rename("d", "e/y", true).await, Err(WorkspaceError::NotADirectory(path("e/y"))));
    assert_eq!(rename("none", "n", false).await, Err(WorkspaceError::NotFound(path("none"))));
    assert_eq!(rename("d", "none/n", false).await, Err(WorkspaceError::NotFound(path("none"))));
    rename("d", "e/d", false).await.expect("a directory with its entries");
    assert_eq!(subject.content("e/d/c"), b"a");
}

pub async fn a_directory_is_not_moved_into_itself(subject: &Subject) {
    subject.put("d/e/f", "x");
    for overwrite in [false, true] {
        let refused = subject.workspace.rename(&path("d"), &path("d/e/d"), overwrite).await;
        assert!(matches!(refused, Err(WorkspaceError::Rejected(_))), "{refused:?}");
    }
    subject.workspace.rename(&path("d"), &path("dd"), false).await.expect("a longer name is another directory");
    assert_eq!(subject.content("dd/e/f"), b"x");
}

pub async fn of_two_renames_to_one_target_exactly_one_wins(subject: &Subject) {
    for round in 0..50 {
        subject.put("left", "left");
        subject.put("right", "right");
        let target = path(&format!("target-{round}"));
        let (from_left, from_right) = (path("left"), path("right"));
        let (left, right) = tokio::join!(
            subject.workspace.rename(&from_left, &target, false),
            subject.workspace.rename(&from_right, &target, false)
        );
        assert!(left.is_ok() != right.is_ok(), "{left:?} {right:?}");
        assert_eq!(subject.content(target.as_str()), if left.is_ok() { &b"left"[..] } else { b"right" });
    }
}

pub async fn directories_are_made_one_by_one_or_with_their_parents(subject: &Subject) {
    let make = async |text: &str, recursive| subject.workspace.make_dir(&path(text), recursive).await;
    assert!(matches!(make("a/b", false).await, Err(WorkspaceError::NotFound(_))));
    make("a", false).await.expect("made");
    assert_eq!(make("a", false).await, Err(WorkspaceError::AlreadyExists(path("a"))));
    make("a/b/c/d", true).await.expect("made");
    make("a/b/c/d", true).await.expect("there already");
    assert!(subject.exists("a/b/c/d"));
    subject.put("f", "x");
    assert_eq!(make("f", true).await, Err(WorkspaceError::AlreadyExists(path("f"))));
    assert!(matches!(make("f/g", true).await, Err(WorkspaceError::NotADirectory(_))));
    make(".", true).await.expect("there already");
    assert_eq!(make(".", false).await, Err(WorkspaceError::AlreadyExists(path("."))));
}
