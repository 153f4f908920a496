//! Defaults of the workspace's settings, from a file of the form of `.boring/settings`.
//!
//! Owns what of that file is known. Must not know the route that shows settings.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::workspace::WorkspacePath;

/// What holds where the workspace's own settings say nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsDefaults {
    /// Folder of uploaded images, relative to the workspace.
    pub image_upload_dir: String,
}

impl Default for SettingsDefaults {
    fn default() -> Self {
        Self { image_upload_dir: "assets/images".into() }
    }
}

/// Other keys are for other programs.
#[derive(Debug, Default, Deserialize)]
struct File {
    markdown: Option<Markdown>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Markdown {
    image_upload_dir: Option<String>,
}

/// Reads the file; a wrong one is no reason to go on with other defaults.
pub(super) fn read(path: &Path) -> Result<SettingsDefaults, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    parse(&text)
}

fn parse(text: &str) -> Result<SettingsDefaults, String> {
    // First as a value, so that a list is not taken for the fields in order.
    let value: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    if !value.is_object() {
        return Err("is not a JSON object".into());
    }
    let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let Some(folder) = file.markdown.and_then(|markdown| markdown.image_upload_dir) else {
        return Ok(SettingsDefaults::default());
    };
    match WorkspacePath::parse(&folder) {
        Ok(path) => Ok(SettingsDefaults { image_upload_dir: path.as_str().into() }),
        Err(error) => Err(format!("markdown.imageUploadDir: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_the_known_keys_and_a_wrong_one_is_an_error() {
        let folder = |text: &str| parse(text).map(|defaults| defaults.image_upload_dir);
        assert_eq!(folder("{}"), Ok("assets/images".to_owned()));
        assert_eq!(folder(r#"{"theme": 1, "markdown": {"wrap": 80}}"#), Ok("assets/images".to_owned()));
        assert_eq!(folder(r#"{"markdown": {"imageUploadDir": "docs/./pictures"}}"#), Ok("docs/pictures".to_owned()));
        for wrong in ["", "[]", r#"{"markdown": 1}"#, r#"{"markdown": {"imageUploadDir": "../x"}}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
