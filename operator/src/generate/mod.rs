//! Writes the files that are made from code: definitions, roles, the schema of the chart's values, the field reference.
//!
//! One table, [`files`]; `operator gen` writes them, `operator gen --check` compares. Knows nothing of a cluster.

mod reference;
mod values;
mod yaml;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{cluster::rbac, crd};

/// Where the chart keeps what it includes.
const CHART: &str = "charts/agent-workspace-operator";

/// Why files could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Reading or writing a file failed.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `--check` found files that differ from what would be written.
    #[error("generated files differ, run `make gen`: {}", paths.join(", "))]
    Differs {
        /// Paths relative to the root.
        paths: Vec<String>,
    },
}

impl GenerateError {
    /// Stable word for logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::File { .. } => "FileFailed",
            Self::Differs { .. } => "GeneratedFilesDiffer",
        }
    }
}

/// Every generated file: path below the repository's root, and content.
pub fn files() -> Vec<(String, String)> {
    let definition = crd::agent_workspace_definition();
    let wake = crd::agent_workspace_wake_definition();
    let mut files = vec![
        (format!("{CHART}/values.schema.json"), values::schema()),
        ("docs/api.md".to_owned(), reference::markdown(&definition, &wake)),
    ];
    for (kind, definition) in [("agentworkspaces", definition), ("agentworkspacewakes", wake)] {
        let (name, text) = (format!("agents.boring.dev_{kind}.yaml"), yaml::document(&definition));
        files.push((format!("crds/{name}"), text.clone()));
        files.push((format!("{CHART}/files/crds/{name}"), text));
    }
    let roles = [
        ("operator-cluster", rbac::operator_cluster()),
        ("operator-namespace", rbac::operator_namespace()),
        ("gateway-cluster", rbac::gateway_cluster()),
        ("gateway-namespace", rbac::gateway_namespace()),
        ("view", rbac::view()),
        ("edit", rbac::edit()),
        ("admin", rbac::admin()),
    ];
    files.extend(roles.map(|(name, rules)| (format!("{CHART}/files/rbac/{name}.yaml"), yaml::document(&rules))));
    files
}

/// Writes every generated file below `root`, or with `check` compares them.
pub fn run(check: bool, root: &Path) -> Result<(), GenerateError> {
    let mut differing = Vec::new();
    for (name, content) in files() {
        let path = root.join(&name);
        if current(&path)?.as_deref() == Some(content.as_str()) {
            continue;
        }
        if check {
            differing.push(name);
            continue;
        }
        write(&path, &content).map_err(|source| GenerateError::File { path, source })?;
    }
    if differing.is_empty() { Ok(()) } else { Err(GenerateError::Differs { paths: differing }) }
}

fn current(path: &Path) -> Result<Option<String>, GenerateError> {
    match fs::read_to_string(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(GenerateError::File { path: path.to_owned(), source }),
    }
}

fn write(path: &Path, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

#[cfg(test)]
mod tests;
