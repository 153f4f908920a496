//! Flags and environment variables: the definition that `--help`, the reference page and the contract test read.
//!
//! Owns names and help texts. Every value is text here; `resolve` parses them, so that all faults are told at once.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Chat, files and sandboxed commands for one folder.
#[derive(Debug, Parser)]
#[command(name = "agent-server", version, args_conflicts_with_subcommands = true)]
pub struct CommandLine {
    /// What to do; `serve` when absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of `serve`.
    #[command(flatten)]
    pub serve: Arguments,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves one workspace (the default)
    Serve(Box<Arguments>),
    /// Builds the configured sandbox, attacks it from inside and tells how each attack ended. Not where others work:
    /// the attacks use up processor and memory for a minute
    CheckSandbox {
        /// The configuration that is checked, as for `serve`
        #[command(flatten)]
        serve: Box<Arguments>,
        /// Process that attacks are aimed at [default: this one]
        #[arg(long)]
        server_pid: Option<u32>,
        /// Folder outside of workspace and system for what an attack must not reach
        #[arg(long, default_value = "/run")]
        outside: PathBuf,
    },
    /// Prints a generated document
    Gen {
        /// Which one
        #[arg(value_enum)]
        document: Document,
    },
}

/// Generated documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Document {
    /// The OpenAPI document of the HTTP interface (JSON)
    Openapi,
    /// The configuration reference (Markdown)
    Configuration,
    /// The tables of `docs/security.md`: attacks, attacks on the network, refused system calls (Markdown)
    Attacks,
}

/// Options of `serve`. Precedence: flag, environment, `config.toml`, default.
#[derive(Debug, Clone, Default, Args)]
pub struct Arguments {
    /// Folder of the workspace [default: the current folder]
    #[arg(value_name = "FOLDER", conflicts_with = "workspace_root")]
    pub folder: Option<String>,
    /// Configuration file; it must exist when named [default: $XDG_CONFIG_HOME/boring-agent/config.toml if present]
    #[arg(long, env = "BORING_AGENT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Prints the configuration in effect, secrets redacted, and exits
    #[arg(long)]
    pub print_config: bool,
    /// How commands run: bubblewrap (or local), landlock, direct [default: the first of these that works here]
    #[arg(long, env = "BORING_AGENT_MODE", value_name = "MODE")]
    pub mode: Option<String>,
    /// Network of commands: inherit or isolated, which needs mode bubblewrap or landlock [default: inherit]
    #[arg(long, env = "BORING_AGENT_SANDBOX_NETWORK", value_name = "NETWORK")]
    pub sandbox_network: Option<String>,
    /// When bubblewrap mode is named and cannot be had: fail, or degrade to landlock mode and report it [default: fail]
    #[arg(long, env = "BORING_AGENT_SANDBOX_ON_UNAVAILABLE", value_name = "ACTION")]
    pub sandbox_on_unavailable: Option<String>,
    /// Seconds that a command may ask for [default: 3600]
    #[arg(long, env = "BORING_AGENT_LIMIT_TIMEOUT_SECONDS", value_name = "SECONDS")]
    pub limit_timeout_seconds: Option<String>,
    /// Processes of one command [default: 512]
    #[arg(long, env = "BORING_AGENT_LIMIT_PROCESSES", value_name = "COUNT")]
    pub limit_processes: Option<String>,
    /// Memory of one command in bytes [default: that of all commands]
    #[arg(long, env = "BORING_AGENT_LIMIT_MEMORY_BYTES", value_name = "BYTES")]
    pub limit_memory_bytes: Option<String>,
    /// Largest file that a command may write, in bytes [default: 16 GiB]
    #[arg(long, env = "BORING_AGENT_LIMIT_FILE_SIZE_BYTES", value_name = "BYTES")]
    pub limit_file_size_bytes: Option<String>,
    /// Output of one command in bytes; more ends it [default: 8 GiB]
    #[arg(long, env = "BORING_AGENT_LIMIT_OUTPUT_BYTES", value_name = "BYTES")]
    pub limit_output_bytes: Option<String>,
    /// Processes of all commands together [default: 4 times those of one]
    #[arg(long, env = "BORING_AGENT_LIMIT_WORKSPACE_PROCESSES", value_name = "COUNT")]
    pub limit_workspace_processes: Option<String>,
    /// Memory of all commands together in bytes [default: 75 % of the container's or machine's]
    #[arg(long, env = "BORING_AGENT_LIMIT_WORKSPACE_MEMORY_BYTES", value_name = "BYTES")]
    pub limit_workspace_memory_bytes: Option<String>,
    /// Address to listen on; anything but loopback needs a token source [default: 127.0.0.1]
    #[arg(long, env = "BORING_AGENT_HOST", value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port to listen on; 0 takes a free one [default: 8787]
    #[arg(long, env = "BORING_AGENT_PORT", value_name = "PORT")]
    pub port: Option<String>,
    /// Port of `GET /metrics`, which needs no token; 0 takes a free one [default: no metrics port]
    #[arg(long, env = "BORING_AGENT_METRICS_PORT", value_name = "PORT")]
    pub metrics_port: Option<String>,
    /// Host names, separated by commas, under which browsers reach a server with a static token, beside loopback
    #[arg(long, env = "BORING_AGENT_PUBLIC_HOSTS", value_name = "NAMES")]
    pub public_hosts: Option<String>,
    /// Origins, separated by commas, whose pages may call the server, such as https://app.example
    #[arg(long, env = "BORING_AGENT_ALLOWED_ORIGINS", value_name = "ORIGINS")]
    pub allowed_origins: Option<String>,
    /// Folder of the workspace, as an alternative to FOLDER
    #[arg(long, visible_alias = "workspace", env = "BORING_AGENT_WORKSPACE_ROOT", value_name = "FOLDER")]
    pub workspace_root: Option<String>,
    /// Id of the workspace [default: 16 hexadecimal digits of the SHA-256 of the folder's real path]
    #[arg(long, env = "BORING_AGENT_WORKSPACE_ID", value_name = "ID")]
    pub workspace_id: Option<String>,
    /// Folder for sessions and logs, never inside the workspace [default: $XDG_STATE_HOME/boring-agent/<id>]
    #[arg(long, env = "BORING_AGENT_STATE_DIR", value_name = "FOLDER")]
    pub state_dir: Option<String>,
    /// UID of the pod, told by `GET /health`
    #[arg(long, env = "BORING_AGENT_POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,
    /// JWKS file with the keys that sign tokens; read again when it changes
    #[arg(long, env = "BORING_AGENT_TOKEN_KEYS_FILE", value_name = "FILE")]
    pub token_keys_file: Option<String>,
    /// Audience that signed tokens must name; required with the keys file
    #[arg(long, env = "BORING_AGENT_TOKEN_AUDIENCE", value_name = "TEXT")]
    pub token_audience: Option<String>,
    /// File with the static token [default on loopback: a random token kept in the state folder]
    #[arg(long, env = "BORING_AGENT_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<String>,
    /// Seconds between SIGTERM and SIGKILL; the server ends 5 s before [default: end within 5 s]
    #[arg(long, env = "BORING_AGENT_STOP_GRACE_SECONDS", value_name = "SECONDS")]
    pub stop_grace_seconds: Option<String>,
    /// Wire of the model provider: anthropic, or openai for any server with chat completions [default: anthropic]
    #[arg(long, env = "BORING_AGENT_MODEL_PROVIDER", value_name = "PROVIDER")]
    pub model_provider: Option<String>,
    /// Model id; needed with the provider openai [default: claude-sonnet-5-5]
    #[arg(long, env = "BORING_AGENT_MODEL", value_name = "ID")]
    pub model: Option<String>,
    /// Base URL of the model provider; openai's is what stands before `/chat/completions` [default: the provider's own]
    #[arg(long, env = "BORING_AGENT_MODEL_BASE_URL", value_name = "URL")]
    pub model_base_url: Option<String>,
    /// Prices in US dollars per million tokens, separated by commas: `MODEL=INPUT/OUTPUT[/CACHE_READ[/CACHE_WRITE]]` [default: those of known models]
    #[arg(long, env = "BORING_AGENT_MODEL_PRICES", value_name = "PRICES")]
    pub model_prices: Option<String>,
    /// Text appended to the system prompt
    #[arg(long, env = "BORING_AGENT_SYSTEM_PROMPT_FILE", value_name = "FILE")]
    pub system_prompt_file: Option<String>,
    /// Folder with one file per variable that commands get
    #[arg(long, env = "BORING_AGENT_COMMAND_ENVIRONMENT_DIR", value_name = "FOLDER")]
    pub command_environment_dir: Option<String>,
    /// Folder with files that commands may read
    #[arg(long, env = "BORING_AGENT_COMMAND_FILES_DIR", value_name = "FOLDER")]
    pub command_files_dir: Option<String>,
    /// Kinds of commands for the user interface, separated by commas, beside the built-in ones; the tool `exec_ui` lists
    /// them
    #[arg(long, env = "BORING_AGENT_UI_KINDS", value_name = "NAMES")]
    pub ui_kinds: Option<String>,
    /// Folder whose content is copied once into an empty workspace [default: none]
    #[arg(long, env = "BORING_AGENT_TEMPLATE_PATH", value_name = "FOLDER")]
    pub template_path: Option<String>,
    /// Python libraries for commands, separated by blanks, such as `pandas numpy>=2,<3` [default: none]
    #[arg(long, env = "BORING_AGENT_PYTHON_PACKAGES", value_name = "LIST")]
    pub python_packages: Option<String>,
    /// File of the form of `.boring/settings` with the defaults of the workspace's settings
    #[arg(long, env = "BORING_AGENT_SETTINGS_FILE", value_name = "FILE")]
    pub settings_file: Option<String>,
    /// Log filter, such as `info` or `agent_server=debug` [default: `RUST_LOG`, else info]
    #[arg(long, env = "BORING_AGENT_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Log format: text or json [default: json in a pod, else text]
    #[arg(long, env = "BORING_AGENT_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// File with the key of Anthropic; read again after a rejected call
    #[arg(long, env = "ANTHROPIC_API_KEY_FILE", value_name = "FILE")]
    pub anthropic_api_key_file: Option<String>,
    /// File with the key of the OpenAI-compatible provider; a server over plain http needs none
    #[arg(long, env = "OPENAI_API_KEY_FILE", value_name = "FILE")]
    pub openai_api_key_file: Option<String>,
}

/// The configuration reference: one table row per option, made from the definition above.
pub fn reference() -> String {
    use std::fmt::Write as _;

    use clap::CommandFactory as _;

    let mut text = String::from(concat!(
        "# Configuration of the agent server\n\n",
        "Generated by `agent-server gen configuration`. Precedence: flag, environment variable, `config.toml`, default.\n",
        "In `config.toml` every option has the flag's name with `_` for `-`, at the top level; unknown names are refused.\n",
        "`ANTHROPIC_API_KEY` and `OPENAI_API_KEY` are read from the environment only.\n\n",
        "| flag | variable | meaning |\n| --- | --- | --- |\n",
    ));
    for argument in CommandLine::command().get_arguments() {
        if matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let flag = argument.get_long().map_or_else(|| "`FOLDER`".into(), |long| format!("`--{long}`"));
        let variable = argument.get_env().map_or_else(String::new, |name| format!("`{}`", name.to_string_lossy()));
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
        let _infallible = writeln!(text, "| {flag} | {variable} | {help} |");
    }
    text
}
