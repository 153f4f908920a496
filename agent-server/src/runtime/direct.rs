//! Direct mode: a folder of this machine, and plain processes behind the landlock layer.
//!
//! Owns what commands of this mode may not see and where they may write. Must not know how that is enforced.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{RuntimeBundle, RuntimeError};
use crate::sandbox::SandboxError;
use crate::sandbox::direct::{DirectSandbox, DirectSettings};
use crate::sandbox::environment::CommandEnvironment;
use crate::sandbox::limits::CommandLimits;
use crate::workspace::LocalWorkspace;

/// Where Kubernetes puts a pod's own API token, should somebody mount it against the operator's setting.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io";
/// The link by which a Kubernetes volume swaps all of its files at once.
const VOLUME_LINK: &str = "..data";

/// What the mode is made of.
#[derive(Debug, Clone)]
pub struct DirectRuntime {
    /// The workspace folder.
    pub root: PathBuf,
    /// The server's own folder: sessions, logs, artifacts, its token.
    pub state_dir: PathBuf,
    /// Files with keys and tokens that are the server's alone.
    pub secret_files: Vec<PathBuf>,
    /// Folder with one file per variable for commands.
    pub command_environment_dir: Option<PathBuf>,
    /// Environment of the server, for the allow-list.
    pub server_environment: Vec<(OsString, OsString)>,
    /// The server runs in a pod: the workspace is the home of commands, and nothing outside it and `/tmp` is written.
    pub in_pod: bool,
    /// Commands get the Python libraries of the workspace.
    pub python_libraries: bool,
    /// Program with the subcommand `sandbox-exec`; `DirectSettings::THIS_PROGRAM` but in tests.
    pub supervisor: PathBuf,
}

impl DirectRuntime {
    /// Opens the folder and starts the sandbox over it.
    pub async fn build(self) -> Result<RuntimeBundle, RuntimeError> {
        // The real path: rules and the root that commands see must name the same folder.
        let root = std::fs::canonicalize(&self.root).map_err(RuntimeError::Workspace)?;
        let shown_root = root.to_str().ok_or_else(|| {
            RuntimeError::Sandbox(SandboxError::Unavailable("the path of the workspace is not UTF-8".into()))
        })?;
        let workspace = LocalWorkspace::open(&root, shown_root).map_err(RuntimeError::Workspace)?;
        let home = if self.in_pod { Some(shown_root) } else { None };
        let mut environment =
            CommandEnvironment::new(self.server_environment.clone(), home, self.command_environment_dir.clone());
        if self.python_libraries {
            environment = environment.with_python_libraries(shown_root);
        }
        let settings = DirectSettings {
            root: root.clone(),
            supervisor: self.supervisor.clone(),
            hidden: self.hidden(),
            writable: self.writable(),
            use_landlock: true,
            environment,
            limits: CommandLimits::detect(),
        };
        let sandbox = DirectSandbox::start(settings).await?;
        Ok(RuntimeBundle { workspace: Arc::new(workspace), sandbox: Arc::new(sandbox) })
    }

    fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden = vec![self.state_dir.clone()];
        hidden.extend(self.secret_files.iter().map(|file| volume_of(file).unwrap_or(file).to_path_buf()));
        if self.in_pod {
            hidden.push(SERVICE_ACCOUNT.into());
        }
        hidden
    }

    /// On a machine the user's home too: package managers, compilers and git keep caches and settings there, and direct
    /// mode does not claim to protect the user's own files.
    fn writable(&self) -> Vec<PathBuf> {
        let mut writable = vec![std::env::temp_dir()];
        let home = self.server_environment.iter().find(|(name, _)| name == "HOME").map(|(_, value)| value);
        if let Some(home) = home.filter(|_| !self.in_pod) {
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

    fn runtime(in_pod: bool, secret_files: Vec<PathBuf>) -> DirectRuntime {
        DirectRuntime {
            root: "/workspace".into(),
            state_dir: "/state".into(),
            secret_files,
            command_environment_dir: None,
            server_environment: vec![("HOME".into(), "/home/someone".into())],
            in_pod,
            python_libraries: false,
            supervisor: DirectSettings::THIS_PROGRAM.into(),
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
    fn only_on_a_machine_the_home_is_writable() {
        assert_eq!(runtime(true, Vec::new()).writable(), [std::env::temp_dir()]);
        assert_eq!(runtime(false, Vec::new()).writable(), [std::env::temp_dir(), "/home/someone".into()]);
    }

    #[tokio::test]
    async fn a_missing_folder_has_its_reason() {
        let missing = DirectRuntime { root: "/does/not/exist".into(), ..runtime(false, Vec::new()) };
        assert_eq!(missing.build().await.err().map(|error| error.reason()), Some("WorkspaceUnavailable"));
    }
}
