//! From texts to a checked [`Config`]; every fault is collected.
//!
//! `resolve` is pure but for looking at folders (they must exist and be real paths); `load` adds the environment.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{
    Arguments, AuthenticationConfig, CommandConfig, Config, ConfigError, ConfigFault, LogConfig, LogFormat,
    ProvisioningConfig, Requirement, SignedTokens, commands, file, interface, model, parse_requirements,
    requirement::MAX_REQUIREMENTS, settings,
};

/// Port of the HTTP interface, the same in a pod.
const DEFAULT_PORT: u16 = 8787;
/// Longest stop grace, one day: keeps instants in range.
const MAX_STOP_GRACE_SECONDS: u64 = 86_400;

/// What the process finds around itself.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The current folder.
    pub current_dir: PathBuf,
    /// The environment.
    pub variables: BTreeMap<String, String>,
}

impl Surroundings {
    /// Of this process. Variables that are not UTF-8 are left out; none of ours may be.
    pub fn of_process() -> Self {
        let current_dir = std::env::current_dir().unwrap_or_default();
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { current_dir, variables }
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn base_dir(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        self.variable(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| self.variable("HOME").map(|home| Path::new(home).join(below_home)))
    }
}

/// Reads the configuration file and resolves everything.
pub fn load(mut arguments: Arguments, surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let named = arguments.config.clone();
    let path = named.clone().or_else(|| {
        Some(surroundings.base_dir("XDG_CONFIG_HOME", ".config")?.join("boring-agent").join("config.toml"))
    });
    let mut faults = Vec::new();
    if let Some(path) = path {
        match std::fs::read_to_string(&path) {
            Ok(text) => faults.extend(file::fill(&mut arguments, &path, &text).err()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {}
            Err(error) => faults.push(fault("--config", format!("{} cannot be read: {error}", path.display()))),
        }
    }
    match resolve(&arguments, surroundings) {
        Ok(config) if faults.is_empty() => Ok(config),
        Ok(_) => Err(ConfigError(faults)),
        Err(ConfigError(more)) => {
            faults.extend(more);
            Err(ConfigError(faults))
        }
    }
}

fn fault(name: &str, message: impl Into<String>) -> ConfigFault {
    ConfigFault { name: name.into(), message: message.into() }
}

/// Collects faults, so that all of them are told at once.
pub(super) struct Check<'a> {
    pub(super) surroundings: &'a Surroundings,
    faults: Vec<ConfigFault>,
}

impl Check<'_> {
    pub(super) fn fail(&mut self, name: &str, message: impl Into<String>) {
        self.faults.push(fault(name, message));
    }

    pub(super) fn parse<T: FromStr>(&mut self, name: &str, text: Option<&String>, expected: &str) -> Option<T> {
        let text = text?;
        let parsed = text.trim().parse().ok();
        if parsed.is_none() {
            self.fail(name, format!("`{text}` is not {expected}"));
        }
        parsed
    }

    pub(super) fn choice<T: Copy>(&mut self, name: &str, text: Option<&String>, choices: &[(&str, T)]) -> Option<T> {
        let text = text?;
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            self.fail(name, format!("`{text}` is not one of {}", words.join(", ")));
        }
        found
    }

    fn take<T: Default>(&mut self, name: &str, outcome: Result<T, String>) -> T {
        outcome.unwrap_or_else(|message| {
            self.fail(name, message);
            T::default()
        })
    }

    pub(super) fn path(&self, text: Option<&String>) -> Option<PathBuf> {
        text.filter(|text| !text.is_empty()).map(|text| self.surroundings.current_dir.join(text))
    }

    fn folder(&mut self, name: &str, text: Option<&String>) -> Option<PathBuf> {
        let path = self.path(text)?;
        if !path.is_dir() {
            self.fail(name, format!("{} is not a folder", path.display()));
        }
        Some(path)
    }

    fn file(&mut self, name: &str, text: Option<&String>) -> Option<PathBuf> {
        let path = self.path(text)?;
        if !path.is_file() {
            self.fail(name, format!("{} is not a file", path.display()));
        }
        Some(path)
    }
}

/// Checks every option; a fault of one does not hide the others.
pub fn resolve(arguments: &Arguments, surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let mut check = Check { surroundings, faults: Vec::new() };
    let mode = commands::mode(&mut check, arguments);
    let network = commands::network(&mut check, arguments, mode);
    let on_unavailable = commands::on_unavailable(&mut check, arguments, mode);
    let command_timeout = commands::timeout(&mut check, arguments);
    let limits = commands::limits(&mut check, arguments);
    let host = host(&mut check, arguments);
    let port = check.parse("--port", arguments.port.as_ref(), "a port number from 0 to 65535").unwrap_or(DEFAULT_PORT);
    let metrics_port = check.parse("--metrics-port", arguments.metrics_port.as_ref(), "a port number from 0 to 65535");
    if metrics_port.is_some_and(|metrics| metrics == port && metrics != 0) {
        check.fail("--metrics-port", "is the same as --port");
    }
    let workspace_root = workspace_root(&mut check, arguments);
    let workspace_id = workspace_id(&mut check, arguments, &workspace_root);
    let state_dir = state_dir(&mut check, arguments, &workspace_root, &workspace_id);
    let authentication = authentication(&mut check, arguments, host, &state_dir);
    let stop_grace = stop_grace(&mut check, arguments);
    let model = model::model(&mut check, arguments);
    let system_prompt_file = check.file("--system-prompt-file", arguments.system_prompt_file.as_ref());
    let commands = CommandConfig {
        environment_dir: check.folder("--command-environment-dir", arguments.command_environment_dir.as_ref()),
        files_dir: check.folder("--command-files-dir", arguments.command_files_dir.as_ref()),
        git: git_variables(surroundings),
    };
    let allowed_origins =
        check.take("--allowed-origins", interface::allowed_origins(arguments.allowed_origins.as_deref()));
    let ui_kinds = check.take("--ui-kinds", interface::ui_kinds(arguments.ui_kinds.as_deref()));
    let provisioning = ProvisioningConfig {
        template_path: template_path(&mut check, arguments, &workspace_root),
        python_packages: python_packages(&mut check, arguments),
    };
    let settings = check
        .file("--settings-file", arguments.settings_file.as_ref())
        .map(|path| check.take("--settings-file", settings::read(&path)))
        .unwrap_or_default();
    let log = log(&mut check, arguments);
    if !check.faults.is_empty() {
        return Err(ConfigError(check.faults));
    }
    Ok(Config {
        mode,
        network,
        on_unavailable,
        command_timeout,
        limits,
        host,
        port,
        metrics_port,
        public_hosts: public_hosts(arguments),
        allowed_origins,
        workspace_root,
        workspace_id,
        state_dir,
        pod_uid: arguments.pod_uid.clone().filter(|uid| !uid.is_empty()),
        authentication,
        stop_grace,
        model,
        system_prompt_file,
        commands,
        ui_kinds,
        provisioning,
        settings,
        log,
    })
}

fn host(check: &mut Check, arguments: &Arguments) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if arguments.host.as_deref() == Some("localhost") {
        return loopback;
    }
    check.parse("--host", arguments.host.as_ref(), "an IP address to listen on").unwrap_or(loopback)
}

fn public_hosts(arguments: &Arguments) -> Vec<String> {
    let names = arguments.public_hosts.as_deref().unwrap_or_default().split(',');
    names.map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect()
}

fn workspace_root(check: &mut Check, arguments: &Arguments) -> PathBuf {
    let named = arguments.folder.as_ref().or(arguments.workspace_root.as_ref());
    let path = check.path(named).unwrap_or_else(|| check.surroundings.current_dir.clone());
    match std::fs::canonicalize(&path) {
        Ok(real) if real.is_dir() && real != Path::new("/") => real,
        Ok(real) if real == Path::new("/") => {
            check.fail("--workspace-root", "the root of the file system cannot be a workspace");
            path
        }
        _ => {
            check.fail("--workspace-root", format!("{} is not a folder", path.display()));
            path
        }
    }
}

fn workspace_id(check: &mut Check, arguments: &Arguments, root: &Path) -> String {
    let Some(id) = arguments.workspace_id.as_ref().filter(|id| !id.is_empty()) else {
        let digest = Sha256::digest(root.as_os_str().as_encoded_bytes());
        return digest.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    };
    let sound = id.len() <= 128
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if !sound {
        check.fail("--workspace-id", "needs 1 to 128 letters, digits, `-`, `_` or `.`, not beginning with `.`");
    }
    id.clone()
}

fn state_dir(check: &mut Check, arguments: &Arguments, root: &Path, id: &str) -> PathBuf {
    let named = check.path(arguments.state_dir.as_ref());
    let default = || Some(check.surroundings.base_dir("XDG_STATE_HOME", ".local/state")?.join("boring-agent").join(id));
    let Some(path) = named.or_else(default) else {
        check.fail("--state-dir", "is needed where neither XDG_STATE_HOME nor HOME is set");
        return PathBuf::new();
    };
    let real = real_path(&path);
    if real.starts_with(root) {
        check.fail("--state-dir", format!("{} is inside the workspace; commands could read sessions", path.display()));
    } else if root.starts_with(&real) {
        check.fail("--state-dir", format!("{} holds the workspace; name a folder beside it", path.display()));
    }
    real
}

/// The real path of a folder that may not exist yet: the existing part is resolved, the rest appended.
fn real_path(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (std::fs::canonicalize(ancestor), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_path_buf()
}

fn authentication(check: &mut Check, arguments: &Arguments, host: IpAddr, state_dir: &Path) -> AuthenticationConfig {
    let keys_file = check.path(arguments.token_keys_file.as_ref());
    let audience = arguments.token_audience.clone().filter(|audience| !audience.is_empty());
    let signed = match (keys_file, audience) {
        (Some(keys_file), Some(audience)) => Some(SignedTokens { keys_file, audience }),
        (Some(_), None) => {
            check.fail("--token-audience", "is needed with --token-keys-file");
            return AuthenticationConfig { signed: None, static_token_file: None, generated: false };
        }
        (None, _) => None,
    };
    let static_token_file = check.file("--token-file", arguments.token_file.as_ref());
    if signed.is_none() && static_token_file.is_none() {
        if !host.is_loopback() {
            check.fail(
                "--host",
                format!("{host} is reachable from outside and needs --token-keys-file or --token-file"),
            );
        }
        return AuthenticationConfig {
            signed: None,
            static_token_file: Some(state_dir.join("token")),
            generated: true,
        };
    }
    AuthenticationConfig { signed, static_token_file, generated: false }
}

fn stop_grace(check: &mut Check, arguments: &Arguments) -> Option<Duration> {
    let name = "--stop-grace-seconds";
    let seconds: u64 = check.parse(name, arguments.stop_grace_seconds.as_ref(), "a number of seconds")?;
    if seconds > MAX_STOP_GRACE_SECONDS {
        check.fail(name, format!("{seconds} is more than a day"));
    }
    Some(Duration::from_secs(seconds.min(MAX_STOP_GRACE_SECONDS)))
}

/// The real path; a template in the workspace would be copied into itself.
fn template_path(check: &mut Check, arguments: &Arguments, root: &Path) -> Option<PathBuf> {
    let path = check.folder("--template-path", arguments.template_path.as_ref())?;
    let real = real_path(&path);
    if real.starts_with(root) || root.starts_with(&real) {
        check.fail("--template-path", format!("{} and the workspace lie in each other", path.display()));
    }
    Some(real)
}

fn python_packages(check: &mut Check, arguments: &Arguments) -> Vec<Requirement> {
    let name = "--python-packages";
    let requirements = parse_requirements(arguments.python_packages.as_deref().unwrap_or_default());
    let requirements = requirements.unwrap_or_else(|wrong| {
        for entry in wrong {
            check.fail(name, format!("`{entry}` is no library such as `pandas`, `numpy>=2,<3` or `uvicorn[standard]`"));
        }
        Vec::new()
    });
    if requirements.len() > MAX_REQUIREMENTS {
        check.fail(name, format!("names more than {MAX_REQUIREMENTS} libraries"));
    }
    requirements
}

fn git_variables(surroundings: &Surroundings) -> BTreeMap<String, String> {
    let wanted = |name: &str| {
        name == "GIT_CONFIG_COUNT" || name.starts_with("GIT_CONFIG_KEY_") || name.starts_with("GIT_CONFIG_VALUE_")
    };
    surroundings.variables.iter().filter(|(name, _)| wanted(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

fn log(check: &mut Check, arguments: &Arguments) -> LogConfig {
    let choices = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let default = if arguments.pod_uid.is_some() { LogFormat::Json } else { LogFormat::Text };
    let format = check.choice("--log-format", arguments.log_format.as_ref(), &choices).unwrap_or(default);
    let common = || check.surroundings.variable("RUST_LOG").map(str::to_string);
    let filter = arguments.log.clone().filter(|filter| !filter.is_empty()).or_else(common);
    let filter = filter.unwrap_or_else(|| "info".into());
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&filter) {
        check.fail("--log", format!("`{filter}` is not a log filter: {error}"));
    }
    LogConfig { filter, format }
}
