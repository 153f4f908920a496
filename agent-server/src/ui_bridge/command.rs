//! Commands for the user interface: which there are and what they take.
//!
//! Owns the known kinds and their checks.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::workspace::WorkspacePath;

/// Bytes of one command's parameters at most: 1,000 kept commands are 64 MiB at worst.
const MAX_PARAMS: usize = 64 * 1024;
/// Characters of an unknown kind that are shown.
const MAX_SHOWN: usize = 64;

/// The known kinds with what they take, as the model reads it.
pub const KNOWN_KINDS: &[(&str, &str)] = &[
    ("openFile", "{path, mode?: view|edit|diff}"),
    ("openPanel", "{id, component, params?: object}"),
    ("openSurface", "{kind, target}"),
    ("closePanel", "{id}"),
    ("closeWorkbenchLeftPane", "{}"),
    ("navigateToLine", "{file, line}"),
    ("expandToFile", "{path}"),
    ("showNotification", "{msg, level?: info|warn|error}"),
];

/// A command that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Kind.
    pub kind: String,
    /// Parameters.
    pub params: Value,
}

/// Why a command is not taken; the message is for people and models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// Stable word: `validation_error`, `invalid_path` or `path_rejected`.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
}

fn invalid(message: impl Into<String>) -> CommandError {
    CommandError { code: "validation_error", message: message.into() }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    View,
    Edit,
    Diff,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Info,
    Warn,
    Error,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenFile {
    path: String,
    #[serde(rename = "mode")]
    _mode: Option<Mode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenPanel {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "component")]
    _component: String,
    #[serde(rename = "params")]
    _params: Option<serde_json::Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenSurface {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "target")]
    _target: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosePanel {
    #[serde(rename = "id")]
    _id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NavigateToLine {
    file: String,
    #[serde(rename = "line")]
    _line: std::num::NonZeroU32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpandToFile {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowNotification {
    #[serde(rename = "msg")]
    _msg: String,
    #[serde(rename = "level")]
    _level: Option<Level>,
}

/// The member of a known kind's parameters that is a path of the workspace.
pub fn path_member(kind: &str) -> Option<&'static str> {
    match kind {
        "openFile" | "expandToFile" => Some("path"),
        "navigateToLine" => Some("file"),
        _ => None,
    }
}

impl Command {
    /// Checks kind and parameters. Of a configured kind nothing more is known than that the parameters are an object.
    pub fn parse(kind: &str, params: Value, configured: &[String]) -> Result<Self, CommandError> {
        let params = if params.is_null() { Value::Object(serde_json::Map::new()) } else { params };
        if !params.is_object() {
            return Err(invalid("params: is not an object"));
        }
        if params.to_string().len() > MAX_PARAMS {
            return Err(invalid(format!("params: are larger than {MAX_PARAMS} bytes")));
        }
        match kind {
            "openFile" => path(&fits::<OpenFile>(&params)?.path)?,
            "openPanel" => check::<OpenPanel>(&params)?,
            "openSurface" => check::<OpenSurface>(&params)?,
            "closePanel" => check::<ClosePanel>(&params)?,
            "closeWorkbenchLeftPane" => check::<Nothing>(&params)?,
            "navigateToLine" => path(&fits::<NavigateToLine>(&params)?.file)?,
            "expandToFile" => path(&fits::<ExpandToFile>(&params)?.path)?,
            "showNotification" => check::<ShowNotification>(&params)?,
            kind if configured.iter().any(|known| known == kind) => {}
            kind => {
                let known = KNOWN_KINDS.iter().map(|(kind, _)| *kind).chain(configured.iter().map(String::as_str));
                let known = known.collect::<Vec<_>>().join(", ");
                let shown: String = kind.chars().take(MAX_SHOWN).collect();
                return Err(invalid(format!("kind: `{shown}` is not one of {known}")));
            }
        }
        Ok(Self { kind: kind.into(), params })
    }
}

fn fits<T: DeserializeOwned>(params: &Value) -> Result<T, CommandError> {
    T::deserialize(params).map_err(|error| invalid(format!("params: {error}")))
}

fn check<T: DeserializeOwned>(params: &Value) -> Result<(), CommandError> {
    fits::<T>(params).map(|_fits| ())
}

fn path(text: &str) -> Result<(), CommandError> {
    use crate::workspace::PathError;

    WorkspacePath::parse(text).map(drop).map_err(|error| CommandError {
        code: match error {
            PathError::Absolute | PathError::Escapes => "path_rejected",
            PathError::Nul | PathError::Empty | PathError::TooLong => "invalid_path",
        },
        message: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kinds() -> Vec<String> {
        vec!["openChart".into()]
    }

    #[test]
    fn every_known_kind_takes_what_it_says() {
        for (kind, params) in [
            ("openFile", json!({"path": "a/b.rs"})),
            ("openFile", json!({"path": "a", "mode": "diff"})),
            ("openPanel", json!({"id": "p", "component": "chart", "params": {"x": [1]}})),
            ("openSurface", json!({"kind": "terminal", "target": "main"})),
            ("closePanel", json!({"id": "p"})),
            ("closeWorkbenchLeftPane", json!({})),
            ("navigateToLine", json!({"file": "a.rs", "line": 1})),
            ("expandToFile", json!({"path": "a"})),
            ("showNotification", json!({"msg": "hello", "level": "warn"})),
            ("openChart", json!({"anything": true})),
        ] {
            let command = Command::parse(kind, params.clone(), &kinds()).expect(kind);
            assert_eq!(command, Command { kind: kind.into(), params });
        }
        let bare = Command::parse("closeWorkbenchLeftPane", Value::Null, &[]).expect("nothing is needed");
        assert_eq!(bare.params, json!({}));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_fault() {
        for (kind, params, code, part) in [
            ("openfile", json!({"path": "a"}), "validation_error", "`openfile` is not one of openFile, openPanel"),
            ("openFile", json!({}), "validation_error", "missing field `path`"),
            ("openFile", json!({"path": "a", "mode": "hex"}), "validation_error", "unknown variant `hex`"),
            ("openFile", json!({"path": "a", "line": 1}), "validation_error", "unknown field `line`"),
            ("openFile", json!({"path": "../a"}), "path_rejected", "outside"),
            ("expandToFile", json!({"path": ""}), "invalid_path", "empty"),
            ("navigateToLine", json!({"file": "a", "line": 0}), "validation_error", "zero"),
            ("openPanel", json!({"id": "p", "component": "c", "params": []}), "validation_error", "sequence"),
            ("openChart", json!([]), "validation_error", "not an object"),
            ("openChart", json!({"x": "y".repeat(MAX_PARAMS)}), "validation_error", "larger than"),
        ] {
            let error = Command::parse(kind, params, &kinds()).expect_err(part);
            assert!(error.message.contains(part), "{error} does not say {part}");
            assert_eq!(error.code, code, "{error}");
        }
    }
}
