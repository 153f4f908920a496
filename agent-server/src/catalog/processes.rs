//! The tool `processes`: lists and ends what `bash` started in the background.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{parse, schema};
use super::background::{Background, Process};
use super::results::refused;
use super::{Access, Tool, ToolContent, ToolContext, ToolDefinition, ToolFailure, ToolResult};

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// Id of a process to end with everything that it started, such as p1; without it nothing is ended
    #[serde(default)]
    end: Option<String>,
}

/// Lists and ends background processes.
pub struct Processes {
    background: Background,
}

impl Processes {
    /// Those of this registry.
    pub fn new(background: Background) -> Self {
        Self { background }
    }
}

#[async_trait::async_trait]
impl Tool for Processes {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "processes".into(),
            description: "List the processes that bash started with background: true, with the artifact of each one's \
                          output, or end one of them."
                .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run(&self, arguments: Value, _context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(arguments)?;
        if let Some(id) = arguments.end.filter(|id| !id.is_empty()) {
            return Ok(match self.background.end(&id).await {
                None => refused(format!("there is no background process {id}")),
                Some(process) if process.end.is_none() => {
                    refused(format!("{id} does not end; it is still being ended"))
                }
                Some(process) => result(&[process]),
            });
        }
        Ok(result(&self.background.list()))
    }
}

fn result(processes: &[Process]) -> ToolResult {
    let lines: Vec<String> = processes.iter().map(line).collect();
    let text = if lines.is_empty() { "(no background processes)".to_owned() } else { lines.join("\n") };
    let details: Vec<Value> = processes
        .iter()
        .map(|process| {
            json!({"id": process.id, "command": process.command, "artifact": process.artifact,
                   "running": process.end.is_none(), "end": process.end})
        })
        .collect();
    ToolResult {
        content: vec![ToolContent::Text(text)],
        details: Some(json!({ "processes": details })),
        is_error: false,
    }
}

fn line(process: &Process) -> String {
    let state = process.end.as_deref().unwrap_or("running");
    let Process { id, command, artifact, age, .. } = process;
    format!("{id}: {state}; started {} s ago; output {artifact}; command: {command}", age.as_secs())
}
