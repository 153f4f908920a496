//! What a fresh workspace gets: the parts `template` and `libraries` of a spec. Types only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files that are copied once into an empty workspace, never over existing ones: those of a ConfigMap, or of a folder of an
/// image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Name of a ConfigMap in the workspace's namespace; each key becomes a file of that name in the workspace's root. The name
    /// must begin with the prefix that the operator permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub config_map_name: Option<String>,
    /// Container image that holds the files, and the program `cp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^\S+$"))]
    pub image: Option<String>,
    /// Folder in the image whose content is copied; needed with image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$"))]
    pub path: Option<String>,
}

/// Libraries that commands find without installing them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Libraries {
    /// Python libraries with extras and version bounds as pip takes them, such as `pandas` or `numpy>=2,<3`; no options, no
    /// addresses. A `pip.conf` in the workspace's root says where they come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 200), regex(pattern = PYTHON_LIBRARY)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub python: Vec<String>,
}

/// The grammar of the agent server (docs/contract.md).
pub const PYTHON_LIBRARY: &str = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?((===?|!=|~=|<=?|>=?)[A-Za-z0-9][A-Za-z0-9.*+!_-]*(,(===?|!=|~=|<=?|>=?)[A-Za-z0-9][A-Za-z0-9.*+!_-]*)*)?$";
