//! The folders that make up a system: programs, libraries and their settings.
//!
//! Owns the list that commands of isolated modes may read. Must not know how that is enforced.

use std::path::{Path, PathBuf};

use super::local::LocalSettings;

/// What is missing on a machine is skipped. Homes, `/var`, `/srv` and `/run` hold people's and services' own things.
const FOLDERS: [&str; 11] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    // The target of `/etc/resolv.conf` on many machines.
    "/run/systemd/resolve",
];

/// Those of the list that exist here.
pub fn existing() -> impl Iterator<Item = &'static Path> {
    FOLDERS.iter().map(Path::new).filter(|folder| folder.symlink_metadata().is_ok())
}

/// Whether a path, with all links resolved, lies in one of them.
pub fn contains(path: &Path) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    existing().any(|folder| real.starts_with(std::fs::canonicalize(folder).unwrap_or_else(|_| PathBuf::from(folder))))
}

/// The settings with a `PATH` of folders that commands of isolated modes can see, who see the workspace at `root`.
pub(super) fn with_visible_path(mut settings: LocalSettings, root: PathBuf) -> LocalSettings {
    let own = [root].into_iter().chain(settings.readable.clone()).collect::<Vec<_>>();
    let environment = settings.environment;
    settings.environment =
        environment.with_path_where(|folder| contains(folder) || own.iter().any(|visible| folder.starts_with(visible)));
    settings
}
