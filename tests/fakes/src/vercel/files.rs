//! File calls of a VM: archives in their three forms of names, reading, making folders.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use axum::body::Body;
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::json;

use super::check::Asked;
use super::store::CWD;
use super::wire::{Answer, Refusal, body_response, json_answer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    path: String,
    cwd: Option<String>,
}

/// The real path of a VM's path; what climbs above `/` stays there.
pub fn real(root: &Path, cwd: &str, path: &str) -> PathBuf {
    let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
    let whole = Path::new("/").join(cwd).join(path);
    for component in whole.components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    let mut real = root.to_owned();
    real.extend(parts);
    real
}

impl Place {
    fn real(&self, root: &Path) -> PathBuf {
        real(root, self.cwd.as_deref().unwrap_or(CWD), &self.path)
    }
}

/// Unpacks an archive.
pub fn write(asked: &Asked<'_>, root: &Path) -> Answer {
    let Some(cwd) = asked.headers.get("x-cwd").and_then(|value| value.to_str().ok()) else {
        return Err(Refusal::bad("Invalid request: header x-cwd is missing"));
    };
    let broken = |error: std::io::Error| Refusal::bad(format!("Invalid archive: {error}"));
    let mut archive = tar::Archive::new(GzDecoder::new(asked.body));
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            return Err(Refusal::bad("Invalid archive: only regular files are taken"));
        }
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| Refusal::bad("Invalid archive: a name is not UTF-8"))?;
        let target = real(root, cwd, name.trim_start_matches('/'));
        let mode = entry.header().mode().map_err(broken)?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&target, content)?;
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode & 0o7777))?;
    }
    json_answer(&json!({}))
}

/// A file's bytes.
pub fn read(asked: &Asked<'_>, root: &Path) -> Answer {
    let place: Place = asked.json()?;
    match std::fs::read(place.real(root)) {
        Ok(content) => Ok(body_response(200, "application/octet-stream", Body::from(content))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Refusal::absent("File not found.")),
        Err(error) => Err(Refusal::bad(error.to_string())),
    }
}

/// One new folder.
pub fn make_folder(asked: &Asked<'_>, root: &Path) -> Answer {
    let place: Place = asked.json()?;
    std::fs::create_dir(place.real(root)).map_err(|error| Refusal::bad(error.to_string()))?;
    json_answer(&json!({}))
}
