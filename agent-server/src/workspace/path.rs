//! The one path type. Owns path syntax; must not touch a file system.

use std::fmt;

/// A normalised path relative to the workspace root; empty components, `.` and inner `..` are resolved.
/// The root itself is `.`. Names that merely begin with `..`, `~` or `$` are legal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspacePath(String);

/// Longest path in bytes.
pub const MAX_PATH: usize = 4096;
/// Longest name in bytes (Linux `NAME_MAX`).
pub const MAX_NAME: usize = 255;

/// Why a text is no workspace path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Holds a NUL byte.
    #[error("path holds a NUL byte")]
    Nul,
    /// Empty.
    #[error("path is empty")]
    Empty,
    /// Over 4096 bytes, or a name over 255 bytes.
    #[error("path or one of its names is too long")]
    TooLong,
    /// Absolute.
    #[error("path is absolute; use a path relative to the workspace")]
    Absolute,
    /// `..` leads above the root.
    #[error("path leads outside the workspace")]
    Escapes,
}

impl WorkspacePath {
    /// The root.
    pub fn root() -> Self {
        Self(".".into())
    }

    /// Parses a `/`-separated relative path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.contains('\0') {
            return Err(PathError::Nul);
        }
        if text.len() > MAX_PATH {
            return Err(PathError::TooLong);
        }
        if text.starts_with('/') {
            return Err(PathError::Absolute);
        }
        let mut names: Vec<&str> = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    names.pop().ok_or(PathError::Escapes)?;
                }
                name if name.len() > MAX_NAME => return Err(PathError::TooLong),
                name => names.push(name),
            }
        }
        Ok(if names.is_empty() { Self::root() } else { Self(names.join("/")) })
    }

    /// Parses a path as a tool receives it: relative, or absolute under `shown_root` or under the alias `/workspace`.
    pub fn parse_for_tool(text: &str, shown_root: &str) -> Result<Self, PathError> {
        for root in [shown_root, "/workspace"] {
            match text.strip_prefix(root) {
                Some("") => return Ok(Self::root()),
                Some(rest) if rest.starts_with('/') => {
                    let rest = rest.trim_start_matches('/');
                    return if rest.is_empty() { Ok(Self::root()) } else { Self::parse(rest) };
                }
                _ => {}
            }
        }
        Self::parse(text)
    }

    /// The text, `.` for the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0 == "."
    }

    /// Last name; `.` for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Parent directory; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(self.0.rsplit_once('/').map_or_else(Self::root, |(parent, _)| Self(parent.into())))
    }

    /// Where this path is after `from` was renamed to `to`; `None` if it is neither `from` nor below it.
    pub fn moved(&self, from: &Self, to: &Self) -> Option<Self> {
        match self.0.strip_prefix(&*from.0)? {
            "" => Some(to.clone()),
            rest if rest.starts_with('/') => Some(Self([&*to.0, rest].concat())),
            _ => None,
        }
    }

    /// Child by a single name; the name is parsed like any path.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        // A plain name needs no normalisation: listings join thousands of them.
        let plain = !matches!(name, "" | "." | "..") && !name.bytes().any(|byte| matches!(byte, b'/' | 0));
        if plain && name.len() <= MAX_NAME {
            let path = if self.is_root() { name.to_string() } else { [&*self.0, "/", name].concat() };
            return if path.len() <= MAX_PATH { Ok(Self(path)) } else { Err(PathError::TooLong) };
        }
        if self.is_root() { Self::parse(name) } else { Self::parse(&format!("{}/{name}", self.0)) }
    }
}

impl serde::Serialize for WorkspacePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests;
