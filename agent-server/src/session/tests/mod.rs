//! Whole turns over a scripted model, without network: what clients see, what is stored, what survives.

mod compactions;
mod counts;
mod damage;
mod follow_ups;
mod forks;
mod invariants;
mod recovery;
mod rules;
mod turns;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::in_use::ActiveTurn;
use super::submit::{Choice, Submission, Trigger};
use super::user_message::UserMessage;
use super::{BeginTurn, SessionSettings, Sessions};
use crate::catalog::{
    Access, Catalog, FileChange, Tool, ToolContent, ToolContext, ToolDefinition, ToolFailure, ToolProgress, ToolResult,
};
use crate::harness::TurnLoop;
use crate::harness::prompt::PromptSettings;
use crate::llm::models::Models;
use crate::llm::{KeyState, Llm, LlmError, ModelEvent, ModelRequest, StopReason, ThinkingLevel, Usage};
use crate::sandbox::{ExecEvent, ExecRequest, Isolation, IsolationKind, Network, Sandbox, SandboxError};
use crate::workspace::{LocalWorkspace, WriteOptions};

/// What the scripted model does next.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Event(ModelEvent),
    Fail(LlmError),
    Wait(Duration),
    Until(Arc<tokio::sync::Notify>),
    Hang,
}

/// A model that plays a script, one list for each call, and keeps what it was asked.
#[derive(Default)]
pub(crate) struct Script {
    pub calls: Mutex<VecDeque<Vec<Act>>>,
    pub asked: Mutex<Vec<ModelRequest>>,
    pub key_missing: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl Llm for Script {
    fn provider(&self) -> &'static str {
        "anthropic"
    }

    fn api(&self) -> &'static str {
        "anthropic-messages"
    }

    fn key_state(&self) -> KeyState {
        if self.key_missing.load(std::sync::atomic::Ordering::SeqCst) { KeyState::Missing } else { KeyState::Present }
    }

    async fn stream(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, LlmError>>, LlmError> {
        self.asked.lock().expect("no panic").push(request);
        let acts = self.calls.lock().expect("no panic").pop_front().unwrap_or_default();
        Ok(futures::stream::iter(acts)
            .then(|act| async move {
                match act {
                    Act::Event(event) => Some(Ok(event)),
                    Act::Fail(error) => Some(Err(error)),
                    Act::Wait(pause) => {
                        tokio::time::sleep(pause).await;
                        None
                    }
                    Act::Until(told) => {
                        told.notified().await;
                        None
                    }
                    Act::Hang => std::future::pending().await,
                }
            })
            .filter_map(|item| async move { item })
            .boxed())
    }
}

pub(crate) fn text(text: &str) -> Vec<Act> {
    [ModelEvent::TextStart, ModelEvent::TextDelta(text.into()), ModelEvent::TextEnd].map(Act::Event).into()
}

pub(crate) fn thinking(text: &str) -> Vec<Act> {
    let end = ModelEvent::ThinkingEnd { signature: Some("SIG".into()), redacted: false };
    [ModelEvent::ThinkingStart, ModelEvent::ThinkingDelta(text.into()), end].map(Act::Event).into()
}

pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Vec<Act> {
    let start = ModelEvent::ToolCallStart { id: id.into(), name: name.into() };
    [start, ModelEvent::ToolCallDelta(arguments.into()), ModelEvent::ToolCallEnd].map(Act::Event).into()
}

pub(crate) fn done(reason: StopReason, input: u64, output: u64) -> Vec<Act> {
    let usage = Usage { input, output, cache_read: 0, cache_write: 0 };
    vec![Act::Event(ModelEvent::Done { reason, usage })]
}

/// The answer `text` as one call.
pub(crate) fn answer(words: &str) -> Vec<Act> {
    [text(words), done(StopReason::Stop, 10, 2)].concat()
}

pub(crate) struct NoCommands;

#[async_trait::async_trait]
impl Sandbox for NoCommands {
    fn isolation(&self) -> Isolation {
        Isolation { kind: IsolationKind::None, network: Network::Inherit, probes: Vec::new() }
    }

    async fn exec(&self, _: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError> {
        Err(SandboxError::Unavailable("none in this test".into()))
    }

    fn running(&self) -> usize {
        0
    }

    async fn stop_all(&self) {}
}

/// `echo` returns its arguments; `make` reports progress and a changed file; `hang` waits until stopped; `break` panics;
/// `fail` runs and fails; `leave` leaves something running that writes the file `ended` when it is told to end.
struct TestTool(&'static str, Access);

#[async_trait::async_trait]
impl Tool for TestTool {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.0.into(),
            description: "For tests.".into(),
            input_schema: json!({"type": "object"}),
        }
    }

    fn access(&self) -> Access {
        self.1
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let result = |text: String, is_error| {
            Ok(ToolResult { content: vec![ToolContent::Text(text)], details: Some(json!({"ran": self.0})), is_error })
        };
        match self.0 {
            "make" => {
                let _nobody_listens = context.progress.send(ToolProgress::Preliminary("half".into()));
                tokio::time::sleep(Duration::from_millis(5)).await;
                let change = FileChange { op: "write", path: "a.txt".into(), old_path: None, size: Some(3) };
                let _nobody_listens = context.progress.send(ToolProgress::FileChanged(change));
                result("whole".into(), false)
            }
            "hang" => {
                context.cancel.cancelled().await;
                Err(ToolFailure("was stopped".into()))
            }
            "leave" => {
                tokio::spawn(async move {
                    context.cancel.cancelled().await;
                    let path = crate::workspace::WorkspacePath::parse("ended").expect("path");
                    context.workspace.write(&path, "yes".into(), WriteOptions::default()).await.expect("written");
                });
                result("left".into(), false)
            }
            "break" => unreachable!("this tool is broken on purpose"),
            "fail" => result("it failed".into(), true),
            _ => result(arguments.to_string(), false),
        }
    }
}

/// A context so small that tests can fill it.
pub(crate) const CONTEXT_TOKENS: u64 = 40_000;

/// Sessions over a script in folders of their own.
pub(crate) struct Bench {
    pub script: Arc<Script>,
    pub sessions: Arc<Sessions>,
    pub folder: tempfile::TempDir,
}

impl Bench {
    pub fn new(calls: Vec<Vec<Act>>) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir(folder.path().join("workspace")).expect("folder");
        let script = Arc::new(Script { calls: Mutex::new(calls.into()), ..Script::default() });
        let sessions = open(&folder.path().join("state"), &folder.path().join("workspace"), &script, uncounted());
        Self { script, sessions, folder }
    }

    /// The same files seen by a new process.
    pub fn reopened(&self, state: &Path) -> Arc<Sessions> {
        open(state, &self.folder.path().join("workspace"), &self.script, uncounted())
    }

    pub fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    pub async fn start(&self, submission: Submission) -> Arc<ActiveTurn> {
        self.sessions.submit(submission).await.expect("starts")
    }

    /// Submits a text and returns the chunks of the whole turn.
    pub async fn ask(&self, session: &str, id: &str, words: &str) -> Vec<Value> {
        chunks(self.start(submission(session, id, words)).await.as_ref()).await
    }

    pub async fn messages(&self, session: &str) -> Vec<Value> {
        self.sessions.messages(session, false).await.expect("messages")
    }
}

/// For sessions that no activity counts.
fn uncounted() -> BeginTurn {
    Box::new(|| Ok(Box::new(())))
}

/// Sessions over a script with the test tools.
pub(crate) fn open(state: &Path, workspace: &Path, script: &Arc<Script>, begin_turn: BeginTurn) -> Arc<Sessions> {
    let tools: Vec<Arc<dyn Tool>> = [
        ("echo", Access::Read),
        ("make", Access::Write),
        ("hang", Access::Read),
        ("break", Access::Read),
        ("fail", Access::Write),
        ("leave", Access::Write),
    ]
    .map(|(name, access)| Arc::new(TestTool(name, access)) as Arc<dyn Tool>)
    .into();
    let harness = TurnLoop {
        models: Models::new("anthropic", "claude-x".into(), std::collections::BTreeMap::new()),
        llm: script.clone(),
        catalog: Arc::new(Catalog::new(tools)),
        workspace: Arc::new(LocalWorkspace::open(workspace, "/workspace").expect("workspace")),
        sandbox: Arc::new(NoCommands),
        prompt: PromptSettings::default(),
        context_tokens: CONTEXT_TOKENS,
        metrics: Arc::default(),
    };
    let settings = SessionSettings {
        state_dir: state.to_path_buf(),
        shown_root: "/workspace".into(),
        default_model: "claude-x".into(),
    };
    Sessions::open(settings, Arc::new(harness), begin_turn).expect("opens")
}

pub(crate) fn submission(session: &str, id: &str, words: &str) -> Submission {
    let message = json!({"id": id, "role": "user", "parts": [{"type": "text", "text": words}]});
    Submission {
        session_id: session.into(),
        message: UserMessage::parse(message, Vec::new()).expect("fits"),
        trigger: Trigger::Submit,
        replaces: None,
        choice: Choice::Named { model: None, thinking: ThinkingLevel::Off },
        system_prompt: None,
    }
}

/// All chunks of a turn from its first, up to its end.
pub(crate) async fn chunks(turn: &ActiveTurn) -> Vec<Value> {
    let frames = tokio::time::timeout(Duration::from_secs(60), turn.log.follow(0).collect::<Vec<_>>()).await;
    let mut chunks = Vec::new();
    let mut last = 0;
    for frame in frames.expect("the turn ends") {
        let frame = String::from_utf8(frame.expect("whole").to_vec()).expect("text");
        let Some(rest) = frame.strip_prefix(&format!("id: {}:", turn.turn_id)) else {
            assert!(frame.starts_with(": ") || frame == "data: [DONE]\n\n", "{frame:?}");
            continue;
        };
        let (number, data) = rest.split_once("\ndata: ").expect("data");
        let number: u64 = number.parse().expect("number");
        assert!(number > last, "numbers grow");
        last = number;
        let data = data.strip_suffix("\n\n").expect("one line");
        assert!(!data.contains('\n'));
        chunks.push(serde_json::from_str(data).expect("json"));
    }
    chunks
}

/// The message that clients assemble from these chunks.
pub(crate) fn assembled(chunks: &[Value]) -> Value {
    let mut fold = super::fold::Fold::default();
    for chunk in chunks {
        fold.apply(&serde_json::from_value(chunk.clone()).expect("chunk"));
    }
    fold.message()
}

/// The kinds of persistent chunks, neighbours of one kind once.
pub(crate) fn kinds(chunks: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = chunks
        .iter()
        .filter(|chunk| chunk.get("transient").is_none() && chunk.get("preliminary").is_none())
        .map(|chunk| chunk["type"].as_str().expect("type"))
        .collect();
    kinds.dedup_by(|a, b| a == b && a.ends_with("-delta"));
    kinds
}

/// A session file's entries after its header.
pub(crate) fn lines(state: &Path, session: &str) -> Vec<Value> {
    let mut files = std::fs::read_dir(state.join("sessions")).expect("folder");
    let path = files
        .find_map(|entry| {
            let path = entry.expect("entry").path();
            path.to_string_lossy().ends_with(&format!("_{session}.jsonl")).then_some(path)
        })
        .expect("file");
    let text = std::fs::read_to_string(path).expect("read");
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}
