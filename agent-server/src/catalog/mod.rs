//! Named, typed tools: the trait and its values.
//!
//! Owns what a tool is. Must not know HTTP, sessions, the model's wire or a concrete workspace or sandbox.

mod arguments;
pub mod artifacts;
mod background;
mod bash;
mod edit;
mod edit_text;
mod find;
mod grep;
mod line_window;
mod ls;
mod output_tail;
mod processes;
mod read;
mod results;
mod standard;
mod truncation;
mod write;

pub use standard::{StandardTools, standard};

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::sandbox::Sandbox;
use crate::workspace::Workspace;

/// Whether calls of one step may overlap: readers run together, a writer runs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Changes nothing.
    Read,
    /// May change the workspace.
    Write,
}

/// Name, text and schema as the model sees them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDefinition {
    /// Name.
    pub name: String,
    /// What the model reads.
    pub description: String,
    /// JSON schema of the arguments.
    pub input_schema: Value,
}

/// A piece of a tool's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolContent {
    /// Text.
    Text(String),
    /// Image.
    Image {
        /// Media type, such as `image/png`.
        media_type: String,
        /// Standard base64.
        data: String,
    },
}

/// The result of a tool that ran, well or not.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// For the model.
    pub content: Vec<ToolContent>,
    /// For user interfaces only.
    pub details: Option<Value>,
    /// The tool ran and failed.
    pub is_error: bool,
}

/// The tool did not run to a result: bad arguments, or stopped. The message goes to the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolFailure(pub String);

/// What a tool did to a file, shown as `data-file-changed` and kept with the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// `write`, `unlink`, `rename` or `mkdir`.
    pub op: &'static str,
    /// Path.
    pub path: String,
    /// Former path of a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// A command that a tool gave to the user interface, shown as `data-ui-command`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UiCommand {
    /// Number of the command.
    pub seq: u64,
    /// Kind.
    pub kind: String,
    /// Parameters.
    pub params: Value,
}

/// What a running tool reports.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolProgress {
    /// The whole preliminary view so far, at most the last 8 KiB; it replaces the one before.
    Preliminary(String),
    /// A file changed.
    FileChanged(FileChange),
    /// A command went to the user interface.
    UiCommand(UiCommand),
}

/// What a tool gets to work with.
#[derive(Clone)]
pub struct ToolContext {
    /// Id of the call.
    pub tool_call_id: String,
    /// Files.
    pub workspace: Arc<dyn Workspace>,
    /// Commands.
    pub sandbox: Arc<dyn Sandbox>,
    /// Progress; the receiver throttles. A closed channel is no error.
    pub progress: mpsc::UnboundedSender<ToolProgress>,
    /// Cancelled on stop.
    pub cancel: CancellationToken,
}

/// A named, typed tool.
#[async_trait::async_trait]
pub trait Tool: Send + Sync {
    /// Definition.
    fn definition(&self) -> ToolDefinition;
    /// Access.
    fn access(&self) -> Access;
    /// Runs. `arguments` is whatever JSON the model sent; what does not fit is a `ToolFailure` that names the fault.
    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure>;
}

/// The tools by name, in a fixed order.
#[derive(Clone, Default)]
pub struct Catalog {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Catalog {
    /// Collects tools; a later one of the same name replaces an earlier one.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        Self { tools: tools.into_iter().map(|tool| (tool.definition().name, tool)).collect() }
    }

    /// With more tools; one of the same name replaces an earlier one.
    #[must_use]
    pub fn with(mut self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        self.tools.extend(tools.into_iter().map(|tool| (tool.definition().name, tool)));
        self
    }

    /// Looks a tool up.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// All definitions, sorted by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.tools.values().map(|tool| tool.definition()).collect()
    }
}
