//! The tool `find`: paths by glob.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{one_line, optional_count, parse, path, schema};
use super::results::{Listing, failed};
use super::{Access, Tool, ToolContext, ToolDefinition, ToolFailure, ToolResult};
use crate::workspace::{Kind, WalkRequest, WorkspaceError};

const DEFAULT_LIMIT: u64 = 1000;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// Glob, such as *.rs, src/**/*.test.ts or **/Cargo.toml; without a / it matches names in every folder
    pattern: String,
    /// Folder to search (default: the workspace root)
    #[serde(default)]
    path: Option<String>,
    /// Most results (default 1000)
    #[serde(default, deserialize_with = "optional_count")]
    limit: Option<u64>,
}

/// Finds paths.
pub struct Find;

#[async_trait::async_trait]
impl Tool for Find {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "find".into(),
            description: "Find files and folders by glob. Respects ignore files such as .gitignore and skips .git. \
                          Results are relative to the workspace. At most 1000 results or 50 KiB unless limit says otherwise."
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
        let request = WalkRequest {
            include_hidden: true,
            glob: Some(arguments.pattern),
            ..WalkRequest::new(folder, usize::try_from(limit).unwrap_or(usize::MAX))
        };
        let found = match context.workspace.walk(request, context.cancel.clone()).await {
            Ok(found) => found,
            Err(WorkspaceError::Cancelled) => return Err(ToolFailure("stopped".into())),
            Err(error) => return Ok(failed(&error)),
        };
        let mut listing = Listing::default();
        for entry in &found.items {
            let mark = if entry.kind == Kind::Dir { "/" } else { "" };
            listing.push(&format!("{}{mark}", one_line(entry.path.as_str())));
        }
        if found.truncated {
            listing.notice(format!("the first {limit} results; narrow the pattern or use limit={}", limit * 2));
        }
        Ok(listing.result("nothing found", json!({"results": found.items.len(), "truncated": found.truncated})))
    }
}
