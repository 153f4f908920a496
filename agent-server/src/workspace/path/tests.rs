//! Properties and examples of the path syntax.

use proptest::prelude::*;

use super::{MAX_NAME, MAX_PATH, PathError, WorkspacePath};

fn parse(text: &str) -> Result<String, PathError> {
    WorkspacePath::parse(text).map(|path| path.as_str().to_string())
}

#[test]
fn paths_are_normalised_and_escapes_refused() {
    for (text, expected) in [
        ("a", Ok("a")),
        ("./a//b/./c/", Ok("a/b/c")),
        ("a/../b", Ok("b")),
        ("a/b/../..", Ok(".")),
        (".", Ok(".")),
        ("..x/~/$y/...", Ok("..x/~/$y/...")),
        ("a\\..\\..\\b", Ok("a\\..\\..\\b")),
        ("", Err(PathError::Empty)),
        ("/a", Err(PathError::Absolute)),
        ("..", Err(PathError::Escapes)),
        ("a/../../a", Err(PathError::Escapes)),
        ("a\0", Err(PathError::Nul)),
    ] {
        assert_eq!(parse(text), expected.map(String::from), "{text:?}");
    }
    assert_eq!(parse(&"n".repeat(MAX_NAME + 1)), Err(PathError::TooLong));
    assert_eq!(parse(&"n/".repeat(MAX_PATH / 2 + 1)), Err(PathError::TooLong));
}

#[test]
fn tools_may_write_absolute_paths_below_the_root_they_see() {
    for (text, root, expected) in [
        ("/workspace/a", "/home/me/project", Ok("a")),
        ("/home/me/project/a/b", "/home/me/project", Ok("a/b")),
        ("/home/me/project", "/home/me/project", Ok(".")),
        ("/workspace//", "/home/me/project", Ok(".")),
        ("/workspacex/a", "/home/me/project", Err(PathError::Absolute)),
        ("/home/me/projects/a", "/home/me/project", Err(PathError::Absolute)),
        ("/workspace/../etc", "/workspace", Err(PathError::Escapes)),
        ("a/b", "/workspace", Ok("a/b")),
    ] {
        let path = WorkspacePath::parse_for_tool(text, root).map(|path| path.as_str().to_string());
        assert_eq!(path, expected.map(String::from), "{text}");
    }
}

#[test]
fn a_path_has_a_name_a_parent_and_children() {
    let path = WorkspacePath::parse("a/b").expect("a path");
    assert_eq!((path.name(), path.parent().map(|parent| parent.to_string())), ("b", Some("a".into())));
    assert_eq!(path.parent().and_then(|parent| parent.parent()), Some(WorkspacePath::root()));
    assert_eq!(WorkspacePath::root().parent(), None);
    assert_eq!(path.join("c").map(|path| path.to_string()), Ok("a/b/c".into()));
    assert_eq!(WorkspacePath::root().join("c").map(|path| path.to_string()), Ok("c".into()));
    assert_eq!(WorkspacePath::root().join("../c"), Err(PathError::Escapes));
}

/// Texts that are likely to hit the rules: few different pieces, joined in any way.
fn path_like() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(String::from("..")),
        Just(String::from(".")),
        Just(String::new()),
        Just(String::from("/")),
        Just(String::from("\0")),
        "[a-c~$ .]{1,3}",
        "\\PC{1,4}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.join("/"))
}

proptest! {
    #[test]
    fn a_parsed_path_never_leads_up_and_parses_to_itself(text in path_like()) {
        if let Ok(path) = WorkspacePath::parse(&text) {
            let names: Vec<&str> = path.as_str().split('/').collect();
            if !path.is_root() {
                prop_assert!(names.iter().all(|name| !matches!(*name, "" | "." | "..")), "{path}");
            }
            prop_assert!(!path.as_str().contains('\0') && path.as_str().len() <= MAX_PATH);
            prop_assert!(names.iter().all(|name| name.len() <= MAX_NAME));
            prop_assert_eq!(WorkspacePath::parse(path.as_str()), Ok(path));
        }
    }

    #[test]
    fn parsing_agrees_with_walking_the_components(text in path_like()) {
        // The plain definition: follow each component, and never go above the root.
        let mut walked: Option<Vec<&str>> = Some(Vec::new());
        for component in text.split('/') {
            match component {
                "" | "." => {}
                ".." => walked = walked.and_then(|mut names| names.pop().map(|_| names)),
                name => {
                    if let Some(names) = &mut walked {
                        names.push(name);
                    }
                }
            }
        }
        let legal = !text.is_empty() && !text.starts_with('/') && !text.contains('\0');
        let expected = walked.filter(|_| legal).map(|names| if names.is_empty() { ".".into() } else { names.join("/") });
        prop_assert_eq!(parse(&text).ok(), expected);
    }

    #[test]
    fn joining_is_parsing_the_joined_text(text in path_like(), name in path_like()) {
        if let Ok(parent) = WorkspacePath::parse(&text) {
            let joined = if parent.is_root() { name.clone() } else { format!("{parent}/{name}") };
            // An empty name is no name; everything else is read as if it had been written in one piece.
            if !name.is_empty() {
                prop_assert_eq!(parent.join(&name), WorkspacePath::parse(&joined));
            }
        }
    }

    #[test]
    fn a_child_has_its_parent(text in path_like(), name in "[a-z~$.]{1,8}") {
        if let Ok(parent) = WorkspacePath::parse(&text)
            && !matches!(&*name, "." | "..")
            && let Ok(child) = parent.join(&name)
        {
            prop_assert_eq!(child.name(), &*name);
            prop_assert_eq!(child.parent(), Some(parent));
        }
    }
}
