//! A workbench: folder, sandbox, catalog, and one call of a tool.

use std::path::PathBuf;
use std::sync::Arc;

use agent_server::catalog::artifacts::{ArtifactLimits, Artifacts};
use agent_server::catalog::{
    Catalog, StandardTools, ToolContent, ToolContext, ToolFailure, ToolProgress, ToolResult, standard,
};
use agent_server::runtime::direct;
use agent_server::runtime::local::LocalRuntime;
use agent_server::sandbox::Sandbox;
use agent_server::workspace::Workspace;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub catalog: Catalog,
    pub workspace: Arc<dyn Workspace>,
    pub sandbox: Arc<dyn Sandbox>,
    pub cancel: CancellationToken,
}

impl Bench {
    pub async fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("tools-test-").tempdir_in("/var/tmp").unwrap();
        let root = folder.path().join("workspace");
        std::fs::create_dir(&root).unwrap();
        let state = folder.path().join("state");
        let artifacts = Artifacts::open(&state.join("artifacts"), ArtifactLimits::default()).unwrap();
        let runtime = LocalRuntime {
            root,
            state_dir: state,
            secret_files: Vec::new(),
            command_environment_dir: None,
            command_files_dir: None,
            server_environment: std::env::vars_os().collect(),
            in_pod: true,
            python_libraries: false,
            program: env!("CARGO_BIN_EXE_agent-server").into(),
            limits: agent_server::sandbox::limits::WantedLimits::default().with_defaults(),
        };
        let pair = direct::build(&runtime).await.unwrap();
        Self {
            catalog: standard(StandardTools::new(artifacts)),
            workspace: pair.workspace(),
            sandbox: pair.sandbox(),
            folder,
            cancel: CancellationToken::new(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub fn content(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Calls a tool and gives its result with everything that it reported.
    pub async fn call(&self, tool: &str, arguments: Value) -> (Result<ToolResult, ToolFailure>, Vec<ToolProgress>) {
        let (progress, mut reports) = mpsc::unbounded_channel();
        let context = ToolContext {
            tool_call_id: "call".into(),
            workspace: Arc::clone(&self.workspace),
            sandbox: Arc::clone(&self.sandbox),
            progress,
            cancel: self.cancel.clone(),
        };
        let result = self.catalog.get(tool).unwrap().run(arguments, context).await;
        let mut reported = Vec::new();
        while let Some(report) = reports.recv().await {
            reported.push(report);
        }
        (result, reported)
    }

    /// The text of a call's result and whether it is an error.
    pub async fn text(&self, tool: &str, arguments: Value) -> (String, bool) {
        let result = self.call(tool, arguments).await.0.unwrap();
        (text_of(&result), result.is_error)
    }

    /// The message of a call that did not run.
    pub async fn failure(&self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments).await.0.unwrap_err().0
    }
}

pub fn text_of(result: &ToolResult) -> String {
    match result.content.as_slice() {
        [ToolContent::Text(text)] => text.clone(),
        other => panic!("one text was expected: {other:?}"),
    }
}

pub fn fine(text: &str) -> (String, bool) {
    (text.into(), false)
}

pub fn refused(text: &str) -> (String, bool) {
    (text.into(), true)
}
