//! The environment of commands: an allow-list, the credentials that are meant for commands, and a last filter by name.
//!
//! Owns which variable names a command may see. Must not read the process environment itself: it is handed in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names that pass from the server's environment.
const ALLOWED: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR"];
/// Prefixes that pass: locale, and git's settings that the pod carries (`safe.directory`).
const ALLOWED_PREFIXES: [&str; 2] = ["LC_", "GIT_CONFIG_"];
/// The server's variables with this prefix are for commands, without it: `sandbox.env` of a manifest.
const COMMAND_PREFIX: &str = "BORING_AGENT_COMMAND_VARIABLE_";
/// A name that ends like this is taken for a secret, in any case of letters, unless it was named on purpose.
const SECRET_SUFFIXES: [&str; 6] = ["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PRIVATE_KEY", "_CREDENTIALS"];
/// What a credential may not be called: names that steer the loader, the shell's start or the server.
const REFUSED_PREFIXES: [&str; 3] = ["LD_", "BORING_AGENT_", "BASH_FUNC_"];
const REFUSED_NAMES: [&str; 2] = ["BASH_ENV", "ENV"];
/// When the server itself has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where programs of Python libraries lie in a workspace that has any; provisioning makes both.
const PYTHON_FOLDERS: [&str; 2] = [".venv/bin", ".boring-agent/python/current/bin"];
/// The environment that `pip install` of a command installs into.
const PYTHON_OVERLAY: &str = ".venv";
/// Largest credential: the kernel takes at most 128 KiB for one variable, name and `=` included.
const MAX_CREDENTIAL_BYTES: usize = 120 * 1024;

/// Why the environment of a command could not be made. No message holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The folder of credentials cannot be read.
    #[error("credentials for commands cannot be read: {0}")]
    Folder(std::io::ErrorKind),
    /// A credential's file name is no usable variable name.
    #[error("credential {0:?} cannot become a variable of that name")]
    Name(String),
    /// A credential's value is no text, holds a NUL byte or is too long.
    #[error("credential {0:?} is not a text of at most 120 KiB without NUL bytes")]
    Value(String),
}

/// Where the environment of commands comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandEnvironment {
    allowed: BTreeMap<String, String>,
    named: BTreeMap<String, String>,
    credentials: Option<PathBuf>,
}

impl CommandEnvironment {
    /// Takes what the allow-list lets through of the server's environment. `home` replaces `HOME` when given;
    /// `credentials` is a folder with one file per variable, read anew for every command.
    pub fn new(
        server: impl IntoIterator<Item = (OsString, OsString)>,
        home: Option<&str>,
        credentials: Option<PathBuf>,
    ) -> Self {
        let server: Vec<(String, String)> = server
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let named = |(name, value): &(String, String)| Some((name.strip_prefix(COMMAND_PREFIX)?.into(), value.clone()));
        let named = server.iter().filter_map(named).collect();
        let mut allowed: BTreeMap<String, String> = server.into_iter().filter(|(name, _)| is_allowed(name)).collect();
        allowed.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        if let Some(home) = home {
            allowed.insert("HOME".into(), home.into());
        }
        Self { allowed, named, credentials }
    }

    /// Lets commands find Python libraries of the workspace whose root they see as `shown_root`: those installed by commands
    /// first, then those of the workspace's list, then the system's.
    #[must_use]
    pub fn with_python_libraries(mut self, shown_root: &str) -> Self {
        let system = self.allowed.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let folders = PYTHON_FOLDERS.map(|folder| format!("{shown_root}/{folder}:")).concat();
        let path = format!("{folders}{system}");
        self.allowed.insert("PATH".into(), path);
        self.allowed.insert("VIRTUAL_ENV".into(), format!("{shown_root}/{PYTHON_OVERLAY}"));
        self
    }

    /// With another folder for temporary files, where commands do not see the server's.
    #[must_use]
    pub fn with_temporary_folder(mut self, folder: &str) -> Self {
        self.allowed.insert("TMPDIR".into(), folder.into());
        self
    }

    /// With a `PATH` of only those folders that pass. A program that is found first and cannot be run would hide the one
    /// that can.
    #[must_use]
    pub fn with_path_where(mut self, passes: impl Fn(&Path) -> bool) -> Self {
        let path = self.allowed.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let folders: Vec<&str> = path.split(':').filter(|folder| passes(Path::new(folder))).collect();
        let path = if folders.is_empty() { DEFAULT_PATH.to_owned() } else { folders.join(":") };
        self.allowed.insert("PATH".into(), path);
        self
    }

    /// The environment of one command. Names on purpose (variables for commands and credentials) pass the last filter, all others must not
    /// look like secrets. The request's own variables win over the allow-list, credentials win over both.
    pub fn for_command(
        &self,
        request: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let mut variables = self.allowed.clone();
        variables.extend(request.iter().map(|(name, value)| (name.clone(), value.clone())));
        variables.retain(|name, value| is_variable_name(name) && !value.contains('\0') && !looks_secret(name));
        if let Some(name) = self.named.keys().find(|name| is_refused(name)) {
            return Err(EnvironmentError::Name(name.clone()));
        }
        variables.extend(self.named.clone());
        if let Some(folder) = &self.credentials {
            variables.extend(read_credentials(folder)?);
        }
        Ok(variables)
    }
}

fn is_allowed(name: &str) -> bool {
    ALLOWED.contains(&name) || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Names that no credential and no variable for commands may have.
fn is_refused(name: &str) -> bool {
    REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || REFUSED_NAMES.contains(&name)
        || !is_variable_name(name)
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// One variable per file. Names that begin with a dot are the volume's own bookkeeping (`..data`). One line end at the
/// end of a value is dropped: it is the editor's, not the credential's.
fn read_credentials(folder: &Path) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let folder_failed = |error: std::io::Error| EnvironmentError::Folder(error.kind());
    let mut variables = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(folder_failed)? {
        let entry = entry.map_err(folder_failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if is_refused(&name) {
            return Err(EnvironmentError::Name(name));
        }
        let bytes = std::fs::read(entry.path()).map_err(folder_failed)?;
        let value = String::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_CREDENTIAL_BYTES);
        let Some(value) = value.filter(|text| !text.contains('\0')) else {
            return Err(EnvironmentError::Value(name));
        };
        let value = value.strip_suffix('\n').map_or(value.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        variables.insert(name, value.to_owned());
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Vec<(OsString, OsString)> {
        [
            ("PATH", "/bin"),
            ("HOME", "/home/someone"),
            ("LC_ALL", "C.UTF-8"),
            ("LC_API_KEY", "secret"),
            ("ANTHROPIC_API_KEY", "secret"),
            ("GIT_CONFIG_COUNT", "1"),
            ("LD_PRELOAD", "/x.so"),
            ("BORING_AGENT_TOKEN_FILE", "/x"),
            ("EDITOR", "vi"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec()
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn only_the_allow_list_passes_and_secret_names_do_not() {
        let environment = CommandEnvironment::new(server(), Some("/workspace"), None);
        let request = map(&[("EXTRA", "1"), ("MY_TOKEN", "secret"), ("my_password", "secret"), ("BAD NAME", "x")]);
        let expected = [
            ("EXTRA", "1"),
            ("GIT_CONFIG_COUNT", "1"),
            ("HOME", "/workspace"),
            ("LC_ALL", "C.UTF-8"),
            ("PATH", "/bin"),
        ];
        assert_eq!(environment.for_command(&request), Ok(map(&expected)));
    }

    #[test]
    fn python_libraries_come_before_the_system_and_a_request_still_wins() {
        let environment = CommandEnvironment::new(server(), None, None).with_python_libraries("/workspace");
        let variables = environment.for_command(&BTreeMap::new()).unwrap();
        assert_eq!(variables["PATH"], "/workspace/.venv/bin:/workspace/.boring-agent/python/current/bin:/bin");
        assert_eq!(variables["VIRTUAL_ENV"], "/workspace/.venv");
        assert_eq!(environment.for_command(&map(&[("PATH", "/x")])).unwrap()["PATH"], "/x");
    }

    #[test]
    fn variables_for_commands_pass_by_their_own_name() {
        let variable = |name: &str| vec![(format!("{COMMAND_PREFIX}{name}").into(), "value".into())];
        let environment = CommandEnvironment::new(variable("MY_TOKEN"), None, None).with_temporary_folder("/tmp");
        let expected = map(&[("MY_TOKEN", "value"), ("PATH", DEFAULT_PATH), ("TMPDIR", "/tmp")]);
        assert_eq!(environment.for_command(&BTreeMap::new()), Ok(expected));
        let refused = CommandEnvironment::new(variable("LD_PRELOAD"), None, None).for_command(&BTreeMap::new());
        assert_eq!(refused, Err(EnvironmentError::Name("LD_PRELOAD".into())));
    }

    #[test]
    fn a_path_keeps_the_folders_that_pass() {
        let path = |text: &str| {
            let environment = CommandEnvironment::new([("PATH".into(), text.into())], None, None);
            let kept = environment.with_path_where(|folder| folder.starts_with("/usr"));
            kept.for_command(&BTreeMap::new()).unwrap()["PATH"].clone()
        };
        assert_eq!(path("/home/a/bin:/usr/local/bin::/usr/bin"), "/usr/local/bin:/usr/bin");
        assert_eq!(path("/home/a/bin"), DEFAULT_PATH);
    }

    #[test]
    fn credentials_named_on_purpose_pass_and_follow_their_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("GITHUB_TOKEN"), "one\n").unwrap();
        std::fs::create_dir(folder.path().join("..data")).unwrap();
        let environment = CommandEnvironment::new([], None, Some(folder.path().into()));
        let variables = |value| Ok(map(&[("GITHUB_TOKEN", value), ("PATH", DEFAULT_PATH)]));
        assert_eq!(environment.for_command(&BTreeMap::new()), variables("one"));
        std::fs::write(folder.path().join("GITHUB_TOKEN"), "two").unwrap();
        assert_eq!(environment.for_command(&BTreeMap::new()), variables("two"));
    }

    #[test]
    fn a_credential_that_cannot_be_a_variable_is_an_error_without_its_value() {
        for (name, value, error) in [
            ("LD_PRELOAD", "x", EnvironmentError::Name("LD_PRELOAD".into())),
            ("BASH_ENV", "x", EnvironmentError::Name("BASH_ENV".into())),
            ("with-dash", "x", EnvironmentError::Name("with-dash".into())),
            ("KEY", "a\0b", EnvironmentError::Value("KEY".into())),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(name), value).unwrap();
            let environment = CommandEnvironment::new([], None, Some(folder.path().into()));
            assert_eq!(environment.for_command(&BTreeMap::new()), Err(error));
        }
    }
}
