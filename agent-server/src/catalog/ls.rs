//! The tool `ls`: direct children of a folder.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{one_line, optional_count, parse, path, schema};
use super::results::{Listing, failed};
use super::{Access, Tool, ToolContext, ToolDefinition, ToolFailure, ToolResult};
use crate::workspace::Kind;

const DEFAULT_LIMIT: u64 = 500;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// Folder to list (default: the workspace root)
    #[serde(default)]
    path: Option<String>,
    /// Most entries (default 500)
    #[serde(default, deserialize_with = "optional_count")]
    limit: Option<u64>,
}

/// Lists a folder.
pub struct Ls;

#[async_trait::async_trait]
impl Tool for Ls {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "ls".into(),
            description: "List a folder: folders first (with a trailing /), then by name, hidden names included. \
                          At most 500 entries or 50 KiB unless limit says otherwise."
                .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        let folder = path(arguments.path.as_deref(), &*context.workspace)?;
        let limit = arguments.limit.unwrap_or(DEFAULT_LIMIT);
        let entries = match context.workspace.list(&folder).await {
            Ok(entries) => entries,
            Err(error) => return Ok(failed(&error)),
        };
        let total = entries.len();
        let shown = usize::try_from(limit).unwrap_or(usize::MAX).min(total);
        let mut listing = Listing::default();
        for entry in &entries[..shown] {
            let mark = match entry.kind {
                Kind::Dir => "/",
                Kind::Symlink => "@",
                Kind::File | Kind::Other => "",
            };
            listing.push(&format!("{}{mark}", one_line(entry.path.name())));
        }
        if total > shown {
            listing.notice(format!("{shown} of {total} entries; use limit={total} for all"));
        }
        Ok(listing.result("(empty folder)", json!({"entries": total})))
    }
}
