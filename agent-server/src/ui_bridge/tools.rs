//! The tools `get_ui_state` and `exec_ui`.
//!
//! Owns what the model reads and gets. Paths are taken as other tools take them, and handed on relative to the workspace.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::command::path_member;
use super::{KNOWN_KINDS, UiBridge};
use crate::catalog::{
    Access, Tool, ToolContent, ToolContext, ToolDefinition, ToolFailure, ToolProgress, ToolResult, UiCommand,
};
use crate::workspace::WorkspacePath;

/// Both tools.
pub fn tools(bridge: &Arc<UiBridge>) -> [Arc<dyn Tool>; 2] {
    [Arc::new(GetUiState(bridge.clone())), Arc::new(ExecUi(bridge.clone()))]
}

struct GetUiState(Arc<UiBridge>);

#[async_trait::async_trait]
impl Tool for GetUiState {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "get_ui_state".into(),
            description: "What the user interface shows now, as it told last: open panels, files and the panels that \
                          can be opened. Look before you send commands, and after them to see what they did."
                .into(),
            input_schema: json!({"type": "object", "properties": {}}),
        }
    }

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run(&self, _arguments: Value, _context: ToolContext) -> Result<ToolResult, ToolFailure> {
        Ok(match self.0.state() {
            Some(state) => text(Value::Object(state.value).to_string(), false),
            None => text("no user interface has told its state yet".into(), false),
        })
    }
}

struct ExecUi(Arc<UiBridge>);

#[async_trait::async_trait]
impl Tool for ExecUi {
    fn definition(&self) -> ToolDefinition {
        let known: Vec<String> = KNOWN_KINDS.iter().map(|(kind, params)| format!("{kind} {params}")).collect();
        ToolDefinition {
            name: "exec_ui".into(),
            description: "Send a command to the user interface: open a file or a panel, go to a line, show a message. \
                          `ok` means that it was handed on, not that it is done; get_ui_state shows what is open."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "enum": self.0.kinds(), "description": "What to do"},
                    "params": {
                        "type": "object",
                        "description": format!("Parameters of the kind: {}", known.join("; ")),
                    },
                },
                "required": ["kind", "params"],
            }),
        }
    }

    // It changes what the user sees, so the order of calls counts.
    fn access(&self) -> Access {
        Access::Write
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let (kind, params) = parts(arguments, context.workspace.shown_root())?;
        let (bridge, posted) = (self.0.clone(), (kind.clone(), params.clone()));
        let outcome = tokio::task::spawn_blocking(move || bridge.post(&posted.0, posted.1))
            .await
            .map_err(|error| ToolFailure(format!("the command could not be handed on: {error}")))?;
        match outcome {
            Ok(Ok(seq)) => {
                let progress = ToolProgress::UiCommand(UiCommand { seq, kind, params });
                // A closed channel is no error.
                let _ = context.progress.send(progress);
                Ok(ToolResult {
                    content: vec![ToolContent::Text(format!("ok, command {seq} was handed to the user interface"))],
                    details: Some(json!({"seq": seq, "status": "ok"})),
                    is_error: false,
                })
            }
            Ok(Err(error)) => Ok(text(error.to_string(), true)),
            Err(error) => Ok(text(error.to_string(), true)),
        }
    }
}

fn text(text: String, is_error: bool) -> ToolResult {
    ToolResult { content: vec![ToolContent::Text(text)], details: None, is_error }
}

/// Kind and parameters; a JSON object inside a string is taken for the object, and a path as commands see it becomes
/// relative.
fn parts(arguments: Value, shown_root: &str) -> Result<(String, Value), ToolFailure> {
    let mut arguments = as_object(arguments).ok_or_else(|| ToolFailure("arguments are no JSON object".into()))?;
    let Some(Value::String(kind)) = arguments.remove("kind") else {
        return Err(ToolFailure("arguments do not fit: `kind` is missing or no text".into()));
    };
    let params = arguments.remove("params").unwrap_or(Value::Null);
    let mut params = if params.is_null() {
        Map::new()
    } else {
        as_object(params).ok_or_else(|| ToolFailure("arguments do not fit: `params` is no JSON object".into()))?
    };
    if let Some(Value::String(path)) = path_member(&kind).and_then(|member| params.get_mut(member))
        && let Ok(parsed) = WorkspacePath::parse_for_tool(path, shown_root)
    {
        *path = parsed.as_str().into();
    }
    Ok((kind, Value::Object(params)))
}

fn as_object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object),
        Value::String(text) => serde_json::from_str(&text).ok(),
        _ => None,
    }
}
