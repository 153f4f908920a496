//! The tool `write`: creates or replaces a file.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{parse, required_path, schema};
use super::results::{failed, text};
use super::{Access, FileChange, Tool, ToolContext, ToolDefinition, ToolFailure, ToolProgress, ToolResult};
use crate::workspace::WriteOptions;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// File to write, relative to the workspace or absolute inside it
    path: String,
    /// The whole content
    content: String,
}

/// Writes a file.
pub struct Write;

#[async_trait::async_trait]
impl Tool for Write {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "write".into(),
            description: "Write a file: creates it, or replaces it completely. Missing folders are created. \
                          Use edit to change parts of a file."
                .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        let path = required_path(&arguments.path, &*context.workspace)?;
        let options = WriteOptions { create_dirs: true, ..WriteOptions::default() };
        let written = match context.workspace.write(&path, Bytes::from(arguments.content), options).await {
            Ok(written) => written,
            Err(error) => return Ok(failed(&error)),
        };
        let change = FileChange { op: "write", path: path.as_str().into(), old_path: None, size: Some(written.size) };
        // A closed channel is no error.
        let _ = context.progress.send(ToolProgress::FileChanged(change));
        let verb = if written.created { "Created" } else { "Replaced" };
        let details = json!({"created": written.created, "size": written.size, "etag": written.etag});
        Ok(text(format!("{verb} {path} ({} bytes)", written.size), Some(details)))
    }
}
