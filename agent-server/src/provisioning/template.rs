//! The template: copied once into an empty workspace, whole or not at all.
//!
//! Owns that copy and its marker. The copy is made beside the workspace's content, in the server's own folder, synced, and
//! then moved into place name by name; nothing is ever overwritten. After a crash the next start finds either an unfinished
//! copy, which it throws away, or a finished one, which it goes on to move. Must not know where a template comes from.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirBuilder, DirBuilderExt as _, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use rustix::fs::{Mode, OFlags, RenameFlags, fchmod, openat, renameat_with, syncfs};
use rustix::io::Errno;
use serde_json::json;

use super::OWN_FOLDER;

/// In the server's own folder: what was done, the unfinished copy, the finished copy.
const MARKER: &str = ".boring-agent/provisioned";
const NEW_MARKER: &str = ".boring-agent/provisioned.new";
const UNFINISHED: &str = ".boring-agent/template-unfinished";
const FINISHED: &str = ".boring-agent/template-finished";
/// What may lie in a workspace that counts as empty: our folder, our temporary files, the file system's own folder.
const IGNORED_NAMES: [&str; 2] = [OWN_FOLDER, "lost+found"];
const TEMPORARY_PREFIX: &str = ".boring-agent-tmp-";
/// The link by which a Kubernetes volume swaps all of its files at once. Its files are links into the folder behind it.
const VOLUME_LINK: &str = "..data";
/// Bounds of one template: far above any, far below what fills a volume or a start's time unseen.
const MAX_ENTRIES: u64 = 100_000;
const MAX_BYTES: u64 = 4 << 30;
const MAX_DEPTH: usize = 64;
const MAX_TIME: Duration = Duration::from_secs(600);
/// Bytes copied between two looks at the bounds.
const PIECE: usize = 256 * 1024;

/// Why the template is not there. Paths are those inside the template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The folder.
    #[error("its folder cannot be opened: {0}")]
    Folder(io::ErrorKind),
    /// An entry that no workspace can hold.
    #[error("{0}: {1}")]
    Entry(String, &'static str),
    /// A bound was passed.
    #[error("it has more than {0}")]
    TooLarge(&'static str),
    /// No space left.
    #[error("no space is left in the workspace")]
    StorageFull,
    /// The process is ending.
    #[error("interrupted")]
    Interrupted,
    /// Anything else.
    #[error("input or output failed: {0}")]
    Io(io::ErrorKind),
}

impl From<io::Error> for TemplateError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::StorageFull,
            kind => Self::Io(kind),
        }
    }
}

impl From<Errno> for TemplateError {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateOutcome {
    /// The workspace has its template now.
    Copied {
        /// Files and links.
        files: u64,
        /// Bytes of files.
        bytes: u64,
    },
    /// A copy that an earlier start had finished was moved into place.
    Resumed,
    /// An earlier start has done it, or has found that there was nothing to do.
    DoneBefore,
    /// The workspace had files already and keeps them.
    NotEmpty,
}

/// Copies the template unless that was done before or the workspace has files.
pub fn copy_once(root: &Dir, template: &Path) -> Result<TemplateOutcome, TemplateError> {
    let outcome = attempt(root, template, &mut || Ok(()));
    if outcome.is_err() {
        // The next attempt does this as well; here it gives the space back early.
        let _again_later = remove_tree(root, UNFINISHED);
    }
    outcome
}

/// `step` is asked before each change of the workspace; a test lets it fail, as a crash would at that point.
fn attempt(
    root: &Dir,
    template: &Path,
    step: &mut dyn FnMut() -> io::Result<()>,
) -> Result<TemplateOutcome, TemplateError> {
    move_aside_what_is_not_ours(root)?;
    if root.try_exists(MARKER)? {
        remove_tree(root, FINISHED)?;
        return Ok(TemplateOutcome::DoneBefore);
    }
    let outcome = if root.try_exists(FINISHED)? {
        TemplateOutcome::Resumed
    } else if is_empty(root)? {
        step()?;
        make_own_folder(root)?;
        remove_tree(root, UNFINISHED)?;
        step()?;
        make_directory(root, UNFINISHED, 0o700)?;
        let source = Dir::open_ambient_dir(template, ambient_authority())
            .map_err(|error| TemplateError::Folder(error.kind()))?;
        let mut copy = Copy { entries: 0, bytes: 0, deadline: Instant::now() + MAX_TIME, step: &mut *step };
        copy.directory(&source, &root.open_dir(UNFINISHED)?, "", 0)?;
        let (files, bytes) = (copy.entries, copy.bytes);
        step()?;
        sync(root)?;
        root.rename(UNFINISHED, root, FINISHED)?;
        TemplateOutcome::Copied { files, bytes }
    } else {
        step()?;
        make_own_folder(root)?;
        TemplateOutcome::NotEmpty
    };
    if outcome != TemplateOutcome::NotEmpty {
        move_into_place(root, step)?;
    }
    step()?;
    mark(root, &outcome)?;
    step()?;
    remove_tree(root, FINISHED)?;
    Ok(outcome)
}

/// Commands can put anything in the place of our folder or of what is in it: a link, a file, a folder that cannot be entered.
/// That must not keep the workspace from its next start, so it is moved aside, where its owner finds it.
fn move_aside_what_is_not_ours(root: &Dir) -> Result<(), TemplateError> {
    let kinds = [(OWN_FOLDER, true), (MARKER, false), (FINISHED, true), (UNFINISHED, true)];
    for (name, is_folder) in kinds {
        let as_made = match root.symlink_metadata(name) {
            Ok(found) => found.is_dir() == is_folder && !found.is_symlink(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !as_made {
            let aside = format!("{OWN_FOLDER}-moved-{}", uuid::Uuid::now_v7().simple());
            root.rename(OWN_FOLDER, root, &aside)?;
            tracing::warn!(
                found = name,
                aside,
                "something else was in the place of the server's own folder; moved it aside"
            );
            return Ok(());
        }
    }
    Ok(())
}

fn is_empty(root: &Dir) -> io::Result<bool> {
    for entry in root.entries()? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if !IGNORED_NAMES.contains(&&*name) && !name.starts_with(TEMPORARY_PREFIX) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Our folder, hidden from git and from searches.
fn make_own_folder(root: &Dir) -> io::Result<()> {
    if !root.try_exists(OWN_FOLDER)? {
        make_directory(root, OWN_FOLDER, 0o755)?;
    }
    let ignore = format!("{OWN_FOLDER}/.gitignore");
    if root.try_exists(&ignore)? { Ok(()) } else { root.write(ignore, "*\n") }
}

fn make_directory(parent: &Dir, name: &str, mode: u32) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    parent.create_dir_with(name, builder.mode(mode))
}

fn remove_tree(root: &Dir, name: &str) -> io::Result<()> {
    match root.remove_dir_all(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Moves each name of the finished copy. What stands there already, put by somebody else, is kept.
fn move_into_place(root: &Dir, step: &mut dyn FnMut() -> io::Result<()>) -> Result<(), TemplateError> {
    let finished = root.open_dir(FINISHED)?;
    let names: Vec<_> = finished.entries()?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    for name in names {
        step()?;
        let moved = match renameat_with(&finished, &name, root, &name, RenameFlags::NOREPLACE) {
            // File systems without this kind of rename; nothing else uses the workspace yet.
            Err(Errno::INVAL | Errno::NOSYS) if !root.try_exists(&name)? => {
                finished.rename(&name, root, &name)?;
                Ok(())
            }
            moved => moved,
        };
        match moved {
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) => {
                tracing::warn!(name = %name.to_string_lossy(), "the workspace has this already; the template's is left out");
            }
            moved => moved?,
        }
    }
    Ok(())
}

fn mark(root: &Dir, outcome: &TemplateOutcome) -> Result<(), TemplateError> {
    let template = match outcome {
        TemplateOutcome::Copied { files, bytes } => json!({"state": "copied", "files": files, "bytes": bytes}),
        TemplateOutcome::Resumed => json!({"state": "copied"}),
        TemplateOutcome::DoneBefore | TemplateOutcome::NotEmpty => json!({"state": "notEmpty"}),
    };
    let mut options = OpenOptions::new();
    let mut file = root.open_with(NEW_MARKER, options.write(true).create(true).truncate(true).mode(0o644))?;
    file.write_all(format!("{}\n", json!({"version": 1, "template": template})).as_bytes())?;
    file.sync_all()?;
    root.rename(NEW_MARKER, root, MARKER)?;
    sync(root)
}

/// Everything on the workspace's file system. The root itself is open for paths only, which is not enough for this call.
fn sync(root: &Dir) -> Result<(), TemplateError> {
    let folder = openat(root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(syncfs(&folder)?)
}

/// A copy on its way.
struct Copy<'a> {
    entries: u64,
    bytes: u64,
    deadline: Instant,
    step: &'a mut dyn FnMut() -> io::Result<()>,
}

impl Copy<'_> {
    fn directory(&mut self, from: &Dir, to: &Dir, place: &str, depth: usize) -> Result<(), TemplateError> {
        if depth > MAX_DEPTH {
            return Err(TemplateError::TooLarge("64 levels of folders"));
        }
        let is_volume = depth == 0 && from.symlink_metadata(VOLUME_LINK).is_ok();
        for entry in from.entries()? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else {
                let shown = name.to_string_lossy();
                return Err(TemplateError::Entry(format!("{place}{shown}"), "the name is not UTF-8"));
            };
            if is_volume && name.starts_with("..") {
                continue;
            }
            if depth == 0 && name == OWN_FOLDER {
                return Err(TemplateError::Entry(name.to_owned(), "this name is the server's own"));
            }
            self.entry(from, to, name, &format!("{place}{name}"), is_volume, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: &Dir,
        to: &Dir,
        name: &str,
        place: &str,
        follow: bool,
        depth: usize,
    ) -> Result<(), TemplateError> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(TemplateError::TooLarge("100,000 entries"));
        }
        self.look_at_the_clock()?;
        (self.step)()?;
        let metadata = if follow { from.metadata(name)? } else { from.symlink_metadata(name)? };
        let mode = metadata.mode() & 0o777;
        if metadata.is_dir() {
            make_directory(to, name, mode | 0o700)?;
            self.directory(&from.open_dir(name)?, &to.open_dir(name)?, &format!("{place}/"), depth + 1)
        } else if metadata.is_file() {
            self.file(from, to, name, mode | 0o600)
        } else if metadata.is_symlink() {
            let target = from.read_link_contents(name)?;
            if !stays_inside(&target, depth) {
                return Err(TemplateError::Entry(place.to_owned(), "the link leads outside of the template"));
            }
            Ok(to.symlink_contents(target, name)?)
        } else {
            Err(TemplateError::Entry(place.to_owned(), "neither a file, a folder nor a link"))
        }
    }

    fn file(&mut self, from: &Dir, to: &Dir, name: &str, mode: u32) -> Result<(), TemplateError> {
        let mut source = from.open(name)?;
        let mut options = OpenOptions::new();
        let mut target = to.open_with(name, options.write(true).create_new(true).mode(mode))?;
        let mut piece = vec![0; PIECE];
        loop {
            let read = source.read(&mut piece)?;
            if read == 0 {
                break;
            }
            self.bytes += read as u64;
            if self.bytes > MAX_BYTES {
                return Err(TemplateError::TooLarge("4 GiB"));
            }
            self.look_at_the_clock()?;
            target.write_all(&piece[..read])?;
        }
        // The process's mask may have taken bits away.
        Ok(fchmod(&target, Mode::from_raw_mode(mode))?)
    }

    fn look_at_the_clock(&self) -> Result<(), TemplateError> {
        if Instant::now() > self.deadline { Err(TemplateError::TooLarge("600 s of work")) } else { Ok(()) }
    }
}

/// Whether a link in a folder so many levels down leads to a place below the top.
fn stays_inside(target: &Path, depth: usize) -> bool {
    let mut level = depth;
    target.components().all(|component| match component {
        std::path::Component::Normal(_) => {
            level += 1;
            true
        }
        std::path::Component::CurDir => true,
        std::path::Component::ParentDir => {
            let above = level.checked_sub(1);
            level = above.unwrap_or(0);
            above.is_some()
        }
        std::path::Component::RootDir | std::path::Component::Prefix(_) => false,
    })
}

#[cfg(test)]
mod tests;
