//! Whole, once, never over anything, and safe to be cut off anywhere.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::*;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        fs::create_dir(folder.path().join("work")).expect("folder");
        let place = Self { folder };
        place.put("README.md", "hello\n", 0o644);
        place.put("bin/run", "#!/bin/sh\n", 0o755);
        place.put("src/deep/er/file", "x", 0o400);
        fs::create_dir(place.template().join("empty")).expect("folder");
        symlink("../README.md", place.template().join("src/link")).expect("link");
        place
    }

    fn template(&self) -> PathBuf {
        self.folder.path().join("template")
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn put(&self, path: &str, content: &str, mode: u32) {
        let path = self.template().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    fn root(&self) -> Dir {
        Dir::open_ambient_dir(self.work(), ambient_authority()).expect("opened")
    }

    fn copy(&self) -> Result<TemplateOutcome, TemplateError> {
        copy_once(&self.root(), &self.template())
    }

    /// Path, mode and content of everything in the workspace but the server's own folder.
    fn tree(&self) -> BTreeMap<String, (u32, String)> {
        let mut found = BTreeMap::new();
        walk(&self.work(), "", &mut found);
        found.retain(|path, _| !path.starts_with(OWN_FOLDER));
        found
    }

    /// Names in the server's own folder.
    fn own(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.work().join(OWN_FOLDER))
            .expect("the own folder")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

fn walk(folder: &Path, place: &str, found: &mut BTreeMap<String, (u32, String)>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let entry = entry.expect("entry");
        let path = format!("{place}{}", entry.file_name().to_string_lossy());
        let metadata = entry.path().symlink_metadata().expect("metadata");
        let content = if metadata.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).expect("link").display())
        } else if metadata.is_dir() {
            walk(&entry.path(), &format!("{path}/"), found);
            "folder".to_owned()
        } else {
            fs::read_to_string(entry.path()).expect("readable")
        };
        found.insert(path, (metadata.permissions().mode() & 0o777, content));
    }
}

fn whole() -> BTreeMap<String, (u32, String)> {
    [
        ("README.md", 0o644, "hello\n"),
        ("bin", 0o755, "folder"),
        ("bin/run", 0o755, "#!/bin/sh\n"),
        ("empty", 0o755, "folder"),
        ("src", 0o755, "folder"),
        ("src/deep", 0o755, "folder"),
        ("src/deep/er", 0o755, "folder"),
        ("src/deep/er/file", 0o600, "x"),
        ("src/link", 0o777, "-> ../README.md"),
    ]
    .map(|(path, mode, content)| (path.to_owned(), (mode, content.to_owned())))
    .into()
}

#[test]
fn a_fresh_workspace_gets_it_once() {
    let place = Place::new();
    fs::create_dir(place.work().join("lost+found")).expect("folder");
    fs::write(place.work().join(".boring-agent-tmp-probe-1"), "").expect("written");
    assert_eq!(place.copy().expect("copied"), TemplateOutcome::Copied { files: 9, bytes: 17 });
    fs::remove_dir(place.work().join("lost+found")).expect("removed");
    fs::remove_file(place.work().join(".boring-agent-tmp-probe-1")).expect("removed");
    assert_eq!(place.tree(), whole());
    assert_eq!(place.own(), [".gitignore", "provisioned"]);
    fs::remove_dir_all(place.work().join("src")).expect("removed");
    fs::write(place.work().join("README.md"), "mine").expect("written");
    let before = place.tree();
    assert_eq!(place.copy().expect("done"), TemplateOutcome::DoneBefore);
    assert_eq!(place.tree(), before, "a second start changes nothing");
}

#[test]
fn what_commands_put_in_the_place_of_the_servers_folder_does_not_keep_the_workspace_from_its_start() {
    type Spoil = fn(&std::path::Path);
    let spoils: [Spoil; 5] = [
        |own| symlink("/", own).expect("link"),
        |own| fs::write(own, "a file").expect("written"),
        |own| {
            fs::create_dir(own).expect("folder");
            symlink("/etc/passwd", own.join("provisioned")).expect("link");
        },
        |own| {
            fs::create_dir(own).expect("folder");
            fs::write(own.join("template-finished"), "a file").expect("written");
        },
        |own| fs::create_dir_all(own.join("provisioned")).expect("folders"),
    ];
    for spoil in spoils {
        let place = Place::new();
        fs::write(place.work().join("mine"), "mine").expect("written");
        spoil(&place.work().join(OWN_FOLDER));
        assert_eq!(place.copy().expect("fine"), TemplateOutcome::NotEmpty);
        assert_eq!(place.own(), [".gitignore", "provisioned"]);
        assert_eq!(place.copy().expect("fine"), TemplateOutcome::DoneBefore);
        let names = fs::read_dir(place.work()).expect("listed").flatten().map(|entry| entry.file_name());
        let aside = names.filter(|name| name.to_string_lossy().starts_with(".boring-agent-moved-")).count();
        assert_eq!(aside, 1, "it is kept beside");
    }
}

#[test]
fn a_workspace_with_files_keeps_them_and_gets_nothing_even_when_it_is_emptied_later() {
    let place = Place::new();
    fs::write(place.work().join("mine"), "mine").expect("written");
    assert_eq!(place.copy().expect("fine"), TemplateOutcome::NotEmpty);
    assert_eq!(place.tree().keys().collect::<Vec<_>>(), ["mine"]);
    fs::remove_file(place.work().join("mine")).expect("removed");
    assert_eq!(place.copy().expect("fine"), TemplateOutcome::DoneBefore);
    assert_eq!(place.tree(), BTreeMap::new());
}

#[test]
fn cut_off_at_any_change_it_is_whole_after_the_next_start_and_never_half_in_between() {
    let tops: Vec<String> = whole().into_keys().filter(|path| !path.contains('/')).collect();
    let mut at = 0;
    loop {
        let place = Place::new();
        let mut count = 0;
        let cut = attempt(&place.root(), &place.template(), &mut || {
            count += 1;
            if count > at { Err(io::Error::other("cut off")) } else { Ok(()) }
        });
        // What is visible is whole name by name.
        let visible = place.tree();
        for top in tops.iter().filter(|top| visible.contains_key(*top)) {
            let below = |tree: &BTreeMap<String, (u32, String)>| {
                let below = tree.iter().filter(|(path, _)| *path == top || path.starts_with(&format!("{top}/")));
                below.map(|(path, what)| (path.clone(), what.clone())).collect::<Vec<_>>()
            };
            assert_eq!(below(&visible), below(&whole()), "cut after {at} changes");
        }
        if cut.is_ok() {
            break;
        }
        place.copy().expect("the next start");
        assert_eq!(place.tree(), whole(), "cut after {at} changes");
        assert_eq!(place.own(), [".gitignore", "provisioned"], "cut after {at} changes");
        at += 1;
    }
    assert!(at > 15, "only {at} places to be cut off");
}

#[test]
fn what_others_put_there_meanwhile_is_kept() {
    let place = Place::new();
    let mut moved = false;
    let cut = attempt(&place.root(), &place.template(), &mut || {
        let begun = place.work().join(FINISHED).exists();
        let cut = begun && moved;
        moved = begun;
        if cut { Err(io::Error::other("cut off")) } else { Ok(()) }
    });
    assert!(cut.is_err());
    let names = ["README.md", "bin", "empty", "src"];
    let left: Vec<_> = names.into_iter().filter(|name| !place.work().join(name).exists()).collect();
    assert_eq!(left.len(), 3);
    fs::write(place.work().join(left[0]), "mine").expect("written");
    assert_eq!(place.copy().expect("goes on"), TemplateOutcome::Resumed);
    let tree = place.tree();
    assert_eq!(tree[left[0]].1, "mine");
    assert!(names.iter().all(|name| tree.contains_key(*name)), "{tree:?}");
}

#[test]
fn what_no_workspace_can_hold_is_an_error_and_leaves_nothing() {
    let refused = |spoil: &dyn Fn(&Path)| {
        let place = Place::new();
        spoil(&place.template());
        let error = place.copy().expect_err("refused");
        assert_eq!(place.tree(), BTreeMap::new());
        assert_eq!(place.own(), [".gitignore"]);
        assert!(!error.to_string().contains("/tmp"), "no host path: {error}");
        error.to_string()
    };
    let fifo = |template: &Path| {
        let status = std::process::Command::new("mkfifo").arg(template.join("src/pipe")).status().expect("mkfifo");
        assert!(status.success());
    };
    assert_eq!(refused(&fifo), "src/pipe: neither a file, a folder nor a link");
    for target in ["/etc/passwd", "../outside", "x/../../../y"] {
        let link = |template: &Path| symlink(target, template.join("bad")).expect("link");
        assert_eq!(refused(&link), "bad: the link leads outside of the template");
    }
    let own = |template: &Path| fs::create_dir(template.join(OWN_FOLDER)).expect("folder");
    assert_eq!(refused(&own), ".boring-agent: this name is the server's own");
    let gone = |template: &Path| fs::remove_dir_all(template).expect("removed");
    assert_eq!(refused(&gone), "its folder cannot be opened: entity not found");
    let deep = |template: &Path| {
        let path = (0..70).fold(template.to_path_buf(), |path, _| path.join("d"));
        fs::create_dir_all(path).expect("folders");
    };
    assert_eq!(refused(&deep), "it has more than 64 levels of folders");
}

#[test]
fn a_kubernetes_volume_gives_its_files_and_none_of_its_bookkeeping() {
    let place = Place::new();
    fs::remove_dir_all(place.template()).expect("removed");
    place.put("..2026_11/pip.conf", "[global]\n", 0o644);
    place.put("..2026_11/AGENTS.md", "Be kind.\n", 0o644);
    symlink("..2026_11", place.template().join("..data")).expect("link");
    for name in ["pip.conf", "AGENTS.md"] {
        symlink(format!("..data/{name}"), place.template().join(name)).expect("link");
    }
    assert_eq!(place.copy().expect("copied"), TemplateOutcome::Copied { files: 2, bytes: 18 });
    let expected = [("AGENTS.md", "Be kind.\n"), ("pip.conf", "[global]\n")];
    assert_eq!(place.tree(), expected.map(|(name, content)| (name.to_owned(), (0o644, content.to_owned()))).into());
}

#[test]
fn links_are_judged_by_where_they_lead() {
    for (target, depth, inside) in [
        ("a", 0, true),
        ("./a/../b", 0, true),
        ("..", 0, false),
        ("../a", 1, true),
        ("../../a", 1, false),
        ("a/../../b", 1, true),
        ("/a", 3, false),
        ("..data/x", 0, true),
    ] {
        assert_eq!(stays_inside(Path::new(target), depth), inside, "{target} at {depth}");
    }
}
