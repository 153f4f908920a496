//! The tool `grep`: lines by pattern.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{one_line, optional_count, parse, path, schema};
use super::results::{Listing, failed};
use super::{Access, Tool, ToolContext, ToolDefinition, ToolFailure, ToolResult};
use crate::workspace::{Found, GrepLine, GrepRequest, WorkspaceError};

const DEFAULT_LIMIT: u64 = 100;
/// More context than this is better read with `read`.
const MAX_CONTEXT: u64 = 50;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    /// Regular expression, or plain text with literal
    pattern: String,
    /// File or folder to search (default: the workspace root)
    #[serde(default)]
    path: Option<String>,
    /// Only files that match this glob, such as *.ts
    #[serde(default)]
    glob: Option<String>,
    /// Ignore case (default false)
    #[serde(default)]
    ignore_case: Option<bool>,
    /// Take the pattern literally (default false)
    #[serde(default)]
    literal: Option<bool>,
    /// Lines to show around each match (default 0, at most 50)
    #[serde(default, deserialize_with = "context_lines")]
    context: Option<u64>,
    /// Most matches (default 100)
    #[serde(default, deserialize_with = "optional_count")]
    limit: Option<u64>,
}

/// Unlike other counts, zero lines of context is a sensible thing to ask for.
fn context_lines<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    if value.as_ref().is_some_and(|value| *value == json!(0) || *value == json!("0")) {
        return Ok(None);
    }
    optional_count(value.unwrap_or_default()).map_err(serde::de::Error::custom)
}

/// Searches contents.
pub struct Grep;

#[async_trait::async_trait]
impl Tool for Grep {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "grep".into(),
            description: "Search file contents. Prints path:line: text, and path-line- text for context. Respects \
                          ignore files, skips .git and binary files. At most 100 matches or 50 KiB unless limit says \
                          otherwise; lines are cut at 500 characters."
                .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        let limit = arguments.limit.unwrap_or(DEFAULT_LIMIT);
        let request = GrepRequest {
            path: path(arguments.path.as_deref(), &*context.workspace)?,
            pattern: arguments.pattern,
            literal: arguments.literal.unwrap_or(false),
            ignore_case: arguments.ignore_case.unwrap_or(false),
            glob: arguments.glob,
            context: usize::try_from(arguments.context.unwrap_or(0).min(MAX_CONTEXT)).unwrap_or_default(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        };
        match context.workspace.grep(request, context.cancel.clone()).await {
            Ok(found) => Ok(shown(&found, limit)),
            Err(WorkspaceError::Cancelled) => Err(ToolFailure("stopped".into())),
            Err(error) => Ok(failed(&error)),
        }
    }
}

fn shown(found: &Found<GrepLine>, limit: u64) -> ToolResult {
    let mut listing = Listing::default();
    let mut before: Option<&GrepLine> = None;
    for line in &found.items {
        let follows = before.is_some_and(|before| before.path == line.path && before.line + 1 == line.line);
        let has_context = found.items.iter().any(|line| !line.is_match);
        if has_context && before.is_some() && !follows {
            listing.push("--");
        }
        let mark = if line.is_match { ':' } else { '-' };
        listing.push(&format!("{}{mark}{}{mark} {}", one_line(line.path.as_str()), line.line, line.text));
        before = Some(line);
    }
    if found.truncated {
        listing.notice(format!("the first {limit} matches; narrow the search or use limit={}", limit * 2));
    }
    let matches = found.items.iter().filter(|line| line.is_match).count();
    listing.result("no matches", json!({"matches": matches, "truncated": found.truncated}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::ToolContent;
    use crate::workspace::WorkspacePath;

    fn line(path: &str, line: u64, is_match: bool) -> GrepLine {
        GrepLine { path: WorkspacePath::parse(path).unwrap(), line, text: format!("text {line}"), is_match }
    }

    #[test]
    fn groups_of_context_are_kept_apart() {
        let items = vec![line("a", 1, false), line("a", 2, true), line("a", 9, true), line("b", 10, true)];
        let expected = "a-1- text 1\na:2: text 2\n--\na:9: text 9\n--\nb:10: text 10";
        let result = shown(&Found { items, truncated: false }, 100);
        assert_eq!(result.content, [ToolContent::Text(expected.into())]);
    }

    #[test]
    fn zero_lines_of_context_is_no_fault() {
        let arguments: Arguments = parse(json!({"pattern": "x", "context": 0})).unwrap();
        assert_eq!(arguments.context, None);
        let arguments: Arguments = parse(json!({"pattern": "x", "context": 2})).unwrap();
        assert_eq!(arguments.context, Some(2));
    }
}
