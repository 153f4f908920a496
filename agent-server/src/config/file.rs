//! `config.toml`: the same options as the command line, by name, below flags and environment.
//!
//! Owns the file's syntax. Must not know defaults or checks.

use std::path::Path;

use serde::Deserialize;

use super::{Arguments, ConfigFault};

/// A value of the file; numbers are written without quotes there.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Number(i64),
    List(Vec<String>),
}

impl Scalar {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
            Self::List(list) => list.join(", "),
        }
    }
}

macro_rules! file_options {
    ($($name:ident),* $(,)?) => {
        /// The options that may stand in the file. The key of a provider never does.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct FileOptions { $($name: Option<Scalar>,)* }

        impl FileOptions {
            fn fill(self, arguments: &mut Arguments) {
                $(if arguments.$name.is_none() {
                    arguments.$name = self.$name.map(Scalar::into_text);
                })*
            }
        }
    };
}

file_options!(
    mode,
    sandbox_network,
    sandbox_on_unavailable,
    limit_timeout_seconds,
    limit_processes,
    limit_memory_bytes,
    limit_file_size_bytes,
    limit_output_bytes,
    limit_workspace_processes,
    limit_workspace_memory_bytes,
    host,
    port,
    metrics_port,
    public_hosts,
    allowed_origins,
    workspace_root,
    workspace_id,
    state_dir,
    pod_uid,
    token_keys_file,
    token_audience,
    token_file,
    stop_grace_seconds,
    model_provider,
    model,
    model_base_url,
    model_prices,
    system_prompt_file,
    command_environment_dir,
    command_files_dir,
    ui_kinds,
    template_path,
    python_packages,
    settings_file,
    log,
    log_format,
    anthropic_api_key_file,
    openai_api_key_file,
);

/// Fills what flags and environment left open from the text of a configuration file.
pub fn fill(arguments: &mut Arguments, path: &Path, text: &str) -> Result<(), ConfigFault> {
    let options: FileOptions = toml::from_str(text).map_err(|error| ConfigFault {
        name: path.display().to_string(),
        message: error.to_string().trim().replace('\n', " "),
    })?;
    options.fill(arguments);
    Ok(())
}
