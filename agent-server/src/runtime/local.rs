//! What the modes on this machine are made of.
//!
//! Owns which files commands must not see and where they may write. Must not know how that is enforced.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::RuntimeError;
use crate::sandbox::SandboxError;
use crate::sandbox::environment::CommandEnvironment;
use crate::sandbox::limits::Limits;
use crate::sandbox::local::LocalSettings;
use crate::workspace::LocalWorkspace;

/// Where Kubernetes puts a pod's own API token, should somebody mount it against the operator's setting.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io";
/// The link by which a Kubernetes volume swaps all of its files at once.
const VOLUME_LINK: &str = "..data";

/// What a mode is made of.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    /// The workspace folder.
    pub root: PathBuf,
    /// The server's own folder: sessions, logs, artifacts, its token.
    pub state_dir: PathBuf,
    /// Files with keys and tokens that are the server's alone.
    pub secret_files: Vec<PathBuf>,
    /// Folder with one file per variable for commands.
    pub command_environment_dir: Option<PathBuf>,
    /// Folder with files that commands may read.
    pub command_files_dir: Option<PathBuf>,
    /// Environment of the server, for the allow-list.
    pub server_environment: Vec<(OsString, OsString)>,
    /// The server runs in a pod: the workspace is the home of commands, and nothing outside it and `/tmp` is written.
    pub in_pod: bool,
    /// Commands get the Python libraries of the workspace.
    pub python_libraries: bool,
    /// Program with the hidden subcommands of the sandbox; `sandbox::local::THIS_PROGRAM` but in tests.
    pub program: PathBuf,
    /// Limits of commands.
    pub limits: Limits,
}

/// How a mode shows the machine to commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Everything where it is, and the home is the user's own.
    Machine,
    /// The workspace where it is; it is the home too.
    OwnHome,
    /// The workspace at this path; it is the home too.
    At(&'static str),
}

impl LocalRuntime {
    /// Opens the workspace and describes the sandbox over it.
    pub(super) fn open(&self, view: View) -> Result<(LocalWorkspace, LocalSettings), RuntimeError> {
        // The real path: rules and the root that commands see must name the same folder.
        let root = std::fs::canonicalize(&self.root).map_err(RuntimeError::Workspace)?;
        let not_utf8 = || SandboxError::Unavailable("the path of the workspace is not UTF-8".into());
        let shown = match view {
            View::At(path) => path,
            View::Machine | View::OwnHome => root.to_str().ok_or_else(not_utf8)?,
        };
        let workspace = LocalWorkspace::open(&root, shown).map_err(RuntimeError::Workspace)?;
        let keeps_home = view == View::Machine && !self.in_pod;
        let home = if keeps_home { None } else { Some(shown) };
        let mut environment =
            CommandEnvironment::new(self.server_environment.clone(), home, self.command_environment_dir.clone());
        if self.python_libraries {
            environment = environment.with_python_libraries(shown);
        }
        let settings = LocalSettings {
            root: root.clone(),
            program: self.program.clone(),
            hidden: self.hidden(),
            readable: self.command_files_dir.iter().cloned().collect(),
            writable: self.writable(keeps_home),
            environment: if matches!(view, View::At(_)) {
                environment.with_temporary_folder("/tmp")
            } else {
                environment
            },
            limits: self.limits,
        };
        Ok((workspace, settings))
    }

    fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden = vec![self.state_dir.clone()];
        hidden.extend(self.secret_files.iter().map(|file| volume_of(file).unwrap_or(file).to_path_buf()));
        if self.in_pod {
            hidden.push(SERVICE_ACCOUNT.into());
        }
        hidden
    }

    /// In direct mode on a machine the user's home too: package managers, compilers and git keep caches and settings
    /// there, and direct mode does not claim to protect the user's own files.
    fn writable(&self, keeps_home: bool) -> Vec<PathBuf> {
        let mut writable = vec![std::env::temp_dir()];
        let home = self.server_environment.iter().find(|(name, _)| name == "HOME").map(|(_, value)| value);
        if let Some(home) = home.filter(|_| keeps_home) {
            writable.push(home.into());
        }
        writable
    }
}

/// The folder of a Kubernetes volume that the file is in. All of it is hidden, since a file of a volume is a link into
/// a folder that is replaced whenever the volume changes.
fn volume_of(file: &Path) -> Option<&Path> {
    file.parent().filter(|folder| folder.join(VOLUME_LINK).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(in_pod: bool, secret_files: Vec<PathBuf>) -> LocalRuntime {
        LocalRuntime {
            root: "/workspace".into(),
            state_dir: "/state".into(),
            secret_files,
            command_environment_dir: None,
            command_files_dir: None,
            server_environment: vec![("HOME".into(), "/home/someone".into())],
            in_pod,
            python_libraries: false,
            program: crate::sandbox::local::THIS_PROGRAM.into(),
            limits: crate::sandbox::limits::WantedLimits::default().with_defaults(),
        }
    }

    #[test]
    fn a_secret_in_a_volume_hides_the_volume_and_any_other_hides_itself() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("model-key");
        std::fs::create_dir_all(volume.join("..2026")).unwrap();
        std::os::unix::fs::symlink("..2026", volume.join(VOLUME_LINK)).unwrap();
        let plain = folder.path().join("token");
        let files = vec![volume.join("anthropic"), plain.clone()];
        assert_eq!(runtime(false, files.clone()).hidden(), [PathBuf::from("/state"), volume.clone(), plain.clone()]);
        let in_pod = runtime(true, files).hidden();
        assert_eq!(in_pod, [PathBuf::from("/state"), volume, plain, SERVICE_ACCOUNT.into()]);
    }

    #[test]
    fn only_direct_mode_on_a_machine_keeps_the_users_home() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let seen = |in_pod, view| {
            let runtime = LocalRuntime { root: root.clone(), ..runtime(in_pod, Vec::new()) };
            let (workspace, settings) = runtime.open(view).unwrap();
            let variables = settings.environment.for_command(&std::collections::BTreeMap::new()).unwrap();
            (
                crate::workspace::Workspace::shown_root(&workspace).to_owned(),
                variables["HOME"].clone(),
                settings.writable,
            )
        };
        let (shown, temporary) = (root.display().to_string(), std::env::temp_dir());
        let home = "/home/someone".to_owned();
        let machine = (shown.clone(), home.clone(), vec![temporary.clone(), home.into()]);
        assert_eq!(seen(false, View::Machine), machine);
        let own = (shown.clone(), shown, vec![temporary.clone()]);
        assert_eq!((seen(true, View::Machine), seen(false, View::OwnHome)), (own.clone(), own));
        let at = "/workspace".to_owned();
        assert_eq!(seen(false, View::At("/workspace")), (at.clone(), at, vec![temporary]));
    }

    #[tokio::test]
    async fn a_missing_folder_has_its_reason() {
        let missing = LocalRuntime { root: "/does/not/exist".into(), ..runtime(false, Vec::new()) };
        let outcome = super::super::direct::build(&missing).await;
        assert_eq!(outcome.err().map(|error| error.reason()), Some("WorkspaceUnavailable"));
    }
}
