//! Rules of landlock: commands read named folders and write to named folders, without a few that are hidden.
//!
//! Owns the translation of "all below but" into landlock's allow rules, and their enforcement on the calling thread.
//! Must not know which folders those are.
//!
//! Landlock has no deny rule, so "everything but `/var/lib/state`" is written as: each entry of `/` but `var`, each
//! entry of `/var` but `lib`, each entry of `/var/lib` but `state`. Two things follow. The folders on the way (`/`, `/var`,
//! `/var/lib`) cannot be listed. Entries that appear in them after a command started are not seen by that command.
//! Symbolic links among the entries are skipped: a rule on a link would be a rule on its target, and landlock judges
//! targets by their own place in the tree anyway.
//!
//! A process under the layer can neither trace nor read memory, environment and descriptors of a process outside it
//! (landlock forbids `ptrace` access upwards, `/proc/<pid>/environ` included). Signals and abstract sockets are scoped
//! where the kernel can (landlock ABI 6, Linux 6.12).

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, fstat, open};
use serde::{Deserialize, Serialize};

/// File rights are those of ABI 5 (Linux 6.10: adds device ioctl); older kernels enforce the part they know.
const FILES: ABI = ABI::V5;
/// Signal and abstract-socket scoping came with ABI 6.
const SCOPES: ABI = ABI::V6;

/// Devices that ordinary programs write to; what is missing on a machine is skipped.
const WRITABLE_DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// What the layer hides and what it lets be written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerRules {
    /// Folders and files that commands may read and execute, minus what is hidden; `/` for everything.
    pub readable: Vec<PathBuf>,
    /// Files and folders that no command may read, write, list or execute. They need not exist.
    pub hidden: Vec<PathBuf>,
    /// Folders below which commands may write, minus what is hidden.
    pub writable: Vec<PathBuf>,
}

/// Why the layer is not in force.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The kernel enforces nothing of it.
    #[error("landlock is not enforced ({0})")]
    NotEnforced(&'static str),
    /// A folder could not be read while the rules were made.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a rule.
    #[error("landlock: {0}")]
    Rules(#[from] landlock::RulesetError),
}

/// What the kernel enforced of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// Files, ptrace, signals and abstract sockets.
    Full,
    /// The kernel is older: files and ptrace, but not all rights or scopes.
    Partial,
}

/// Whether the kernel guards truncation too (ABI 3). Without that a command could empty files that it may not even read.
pub(super) fn minimum_is_met() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V3))
        .and_then(Ruleset::create)
        .is_ok()
}

impl LayerRules {
    /// Writable folders in which something hidden lies: what is in them can be written, but nothing can be added.
    pub(super) fn narrowed(&self) -> impl Iterator<Item = &Path> {
        self.writable.iter().map(PathBuf::as_path).filter(|folder| {
            let folder = resolve(folder);
            self.hidden.iter().any(|hidden| resolve(hidden).starts_with(&folder))
        })
    }

    /// Restricts the calling thread and everything it starts from now on, for good. Also sets `no_new_privs`.
    ///
    /// Best effort towards older kernels, but an error if nothing is enforced.
    pub(super) fn restrict_this_thread(&self) -> Result<Enforcement, LayerError> {
        let hidden: Vec<PathBuf> = self.hidden.iter().map(|path| resolve(path)).collect();
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(FILES))?
            .scope(Scope::from_all(SCOPES))?
            .create()?;
        for folder in &self.readable {
            ruleset = allow(ruleset, &all_but(&resolve(folder), &hidden)?, AccessFs::from_read(FILES))?;
        }
        for folder in &self.writable {
            ruleset = allow(ruleset, &all_but(&resolve(folder), &hidden)?, AccessFs::from_all(FILES))?;
        }
        let devices = WRITABLE_DEVICES.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect::<Vec<_>>();
        ruleset = allow(ruleset, &devices, AccessFs::from_all(FILES))?;
        let status = ruleset.restrict_self()?;
        match status.ruleset {
            RulesetStatus::FullyEnforced => Ok(Enforcement::Full),
            RulesetStatus::PartiallyEnforced => Ok(Enforcement::Partial),
            RulesetStatus::NotEnforced => Err(LayerError::NotEnforced(match status.landlock {
                LandlockStatus::NotImplemented => "the kernel was built without it",
                LandlockStatus::NotEnabled => "it was not enabled when the kernel started",
                LandlockStatus::Available { .. } => "the kernel refused it",
            })),
        }
    }
}

/// Adds one rule per path. A path that is gone by now needs no rule; rights that do not apply to files are left out.
/// Links are not followed, so an entry that is swapped for a link meanwhile opens nothing.
fn allow(
    mut ruleset: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, LayerError> {
    for path in paths {
        let Ok(descriptor) = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        let is_folder = fstat(&descriptor).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        let access = if is_folder { access } else { access & AccessFs::from_file(FILES) };
        ruleset = ruleset.add_rule(PathBeneath::new(descriptor, access))?;
    }
    Ok(ruleset)
}

/// The paths that together cover everything at or below `folder` but the hidden paths. `hidden` holds resolved paths.
fn all_but(folder: &Path, hidden: &[PathBuf]) -> Result<Vec<PathBuf>, LayerError> {
    if hidden.iter().any(|path| folder.starts_with(path)) {
        return Ok(Vec::new());
    }
    if !hidden.iter().any(|path| path.starts_with(folder)) {
        return Ok(vec![folder.to_path_buf()]);
    }
    let failed = |source: io::Error| LayerError::Path { path: folder.to_path_buf(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // What the server itself cannot list it cannot allow; commands of the same user could not list it either.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut allowed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(can_carry_a_rule) {
            allowed.extend(all_but(&entry.path(), hidden)?);
        }
    }
    Ok(allowed)
}

/// Links are judged by their target; sockets and FIFOs next to hidden files stay closed.
fn can_carry_a_rule(kind: FileType) -> bool {
    kind.is_dir() || kind.is_file() || kind.is_char_device() || kind.is_block_device()
}

/// Resolves links in the longest part of the path that exists; the rest is kept as written.
pub(super) fn resolve(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut existing = path;
    loop {
        if let Ok(real) = std::fs::canonicalize(existing) {
            return missing.iter().rev().fold(real, |path, name| path.join(name));
        }
        match (existing.parent(), existing.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name.to_owned());
                existing = parent;
            }
            _ => return path.to_path_buf(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a/secret/inner", "a/open", "b"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join("a/file"), "").unwrap();
        std::os::unix::fs::symlink(root.path().join("a"), root.path().join("link")).unwrap();
        root
    }

    fn covered(root: &Path, hidden: &[&str]) -> Vec<String> {
        let hidden: Vec<PathBuf> = hidden.iter().map(|path| resolve(&root.join(path))).collect();
        let mut paths: Vec<String> = all_but(root, &hidden)
            .unwrap()
            .iter()
            .map(|path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned())
            .collect();
        paths.sort();
        paths
    }

    #[test]
    fn everything_but_a_hidden_folder_is_covered_and_links_are_not() {
        let root = tree();
        assert_eq!(covered(root.path(), &["a/secret"]), ["a/file", "a/open", "b"]);
    }

    #[test]
    fn a_folder_without_hidden_paths_is_one_rule() {
        let root = tree();
        assert_eq!(covered(root.path(), &[]), [""]);
    }

    #[test]
    fn a_hidden_path_is_found_through_a_link_and_need_not_exist() {
        let root = tree();
        assert_eq!(covered(root.path(), &["link/secret"]), ["a/file", "a/open", "b"]);
        assert_eq!(covered(root.path(), &["b/later/key"]), ["a"]);
    }

    #[test]
    fn a_folder_inside_a_hidden_one_is_not_covered() {
        let root = tree();
        let hidden = [resolve(&root.path().join("a"))];
        assert_eq!(all_but(&resolve(&root.path().join("a/open")), &hidden).unwrap(), Vec::<PathBuf>::new());
    }
}
