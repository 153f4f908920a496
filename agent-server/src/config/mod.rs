//! Configuration: flags over environment over `config.toml` over defaults, validated as a whole.
//!
//! Owns every setting and its check. Reads the environment and the configuration file once, at start; must not be
//! asked again later. Secrets are held as `SecretString` and printed redacted.

mod arguments;
mod commands;
mod file;
mod interface;
mod model;
mod requirement;
mod resolve;
mod settings;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Serialize;

use crate::sandbox::Network;
use crate::sandbox::limits::WantedLimits;

pub use arguments::{Arguments, Command, CommandLine, Document, reference};
pub use requirement::{Requirement, parse_requirements};
pub use resolve::{Surroundings, load, resolve};
pub use settings::SettingsDefaults;

/// Runtime mode: which pair of workspace and sandbox serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeMode {
    /// Files on this machine, commands as plain processes.
    Direct,
    /// Files on this machine, commands behind landlock rules and a filter of system calls.
    Landlock,
    /// Files on this machine, commands in namespaces of their own.
    Bubblewrap,
}

impl RuntimeMode {
    /// The word of the configuration and of `GET /api/v1/runtime`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Landlock => "landlock",
            Self::Bubblewrap => "bubblewrap",
        }
    }
}

/// What happens when the named mode cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnavailable {
    /// The server is not ready and says why.
    Fail,
    /// Landlock mode serves in place of bubblewrap mode, and the runtime report says so.
    Degrade,
}

/// Model provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelProvider {
    /// Anthropic Messages API.
    Anthropic,
    /// OpenAI-compatible chat completions.
    Openai,
}

impl ModelProvider {
    /// The word of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Openai => "openai",
        }
    }
}

/// Where a model key comes from.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum KeySource {
    /// None configured.
    Missing,
    /// None configured, and the server is one that needs none unless it says so.
    NotNeeded,
    /// A file; read at the first use and again after the provider rejected the key.
    File(PathBuf),
    /// A value of the environment.
    #[serde(serialize_with = "redacted")]
    Value(SecretString),
}

fn redacted<S: serde::Serializer>(_: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("[redacted]")
}

/// The model.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelConfig {
    /// Provider.
    pub provider: ModelProvider,
    /// Model id; `None` means the provider's default.
    pub id: Option<String>,
    /// Base URL without a slash at the end; `None` means the provider's own.
    pub base_url: Option<String>,
    /// Key of the configured provider.
    pub key: KeySource,
    /// Prices by model id.
    pub prices: BTreeMap<String, ModelPrice>,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPrice {
    /// Input outside the cache.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Read from the cache.
    pub cache_read: f64,
    /// Written to the cache.
    pub cache_write: f64,
}

/// How callers prove who they are. At least one source is set.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationConfig {
    /// Signed tokens, as in a cluster.
    pub signed: Option<SignedTokens>,
    /// File with the static token.
    pub static_token_file: Option<PathBuf>,
    /// The static token file is the server's own and is made when missing.
    pub generated: bool,
}

/// Source of signed tokens.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignedTokens {
    /// JWKS file.
    pub keys_file: PathBuf,
    /// Audience that a token must name.
    pub audience: String,
}

/// What commands get on purpose.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandConfig {
    /// Folder with one file per variable.
    pub environment_dir: Option<PathBuf>,
    /// Folder with files that commands may read.
    pub files_dir: Option<PathBuf>,
    /// `GIT_CONFIG_COUNT`, `GIT_CONFIG_KEY_n` and `GIT_CONFIG_VALUE_n` of the server, handed on to commands.
    pub git: BTreeMap<String, String>,
}

/// What a fresh workspace gets.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningConfig {
    /// Real path of the folder that is copied into it.
    pub template_path: Option<PathBuf>,
    /// Libraries for Python commands, sorted.
    pub python_packages: Vec<Requirement>,
}

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Logs.
#[derive(Debug, Clone, Serialize)]
pub struct LogConfig {
    /// Filter directives.
    pub filter: String,
    /// Format.
    pub format: LogFormat,
}

/// Everything the server is told. Paths are absolute.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Runtime mode; `None` lets the server choose the strongest that works.
    pub mode: Option<RuntimeMode>,
    /// Network of commands.
    pub network: Network,
    /// What happens when the named mode cannot be had.
    pub on_unavailable: OnUnavailable,
    /// Longest time that a command may ask for.
    pub command_timeout: Duration,
    /// Limits of commands that were set.
    pub limits: WantedLimits,
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Port of `GET /metrics`; `None` opens none.
    pub metrics_port: Option<u16>,
    /// Host names accepted beside loopback and literal addresses, for static tokens only.
    pub public_hosts: Vec<String>,
    /// Origins whose pages may call, in lower case.
    pub allowed_origins: Vec<String>,
    /// Real path of the workspace folder.
    pub workspace_root: PathBuf,
    /// Id of the workspace.
    pub workspace_id: String,
    /// Folder for sessions and logs, outside the workspace.
    pub state_dir: PathBuf,
    /// UID of the pod.
    pub pod_uid: Option<String>,
    /// Authentication.
    pub authentication: AuthenticationConfig,
    /// Seconds between SIGTERM and SIGKILL in a pod.
    pub stop_grace: Option<Duration>,
    /// Model.
    pub model: ModelConfig,
    /// Text appended to the system prompt.
    pub system_prompt_file: Option<PathBuf>,
    /// What commands get.
    pub commands: CommandConfig,
    /// Kinds of commands for the user interface beside the built-in ones.
    pub ui_kinds: Vec<String>,
    /// What a fresh workspace gets.
    pub provisioning: ProvisioningConfig,
    /// What holds where the workspace's own settings say nothing.
    pub settings: SettingsDefaults,
    /// Logs.
    pub log: LogConfig,
}

/// One fault of the configuration; `name` is the flag or variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct ConfigFault {
    /// Flag or variable.
    pub name: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// All faults found, in the order of the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub Vec<ConfigFault>);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the configuration does not validate:")?;
        for fault in &self.0 {
            write!(formatter, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests;
