//! Tests of the bridge without HTTP.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{CausedBy, MAX_COMMANDS, MAX_STATE, UiBridge, UiBridgeError, tools};
use crate::catalog::{Tool, ToolContent, ToolContext, ToolProgress, ToolResult, UiCommand};
use crate::event_log::Lost;
use crate::sandbox::{ExecEvent, ExecRequest, Isolation, IsolationKind, Network, Sandbox, SandboxError};
use crate::workspace::LocalWorkspace;

fn bridge(folder: &std::path::Path) -> UiBridge {
    UiBridge::open(folder.join("ui"), vec!["openChart".into()]).expect("opened")
}

fn object(value: &Value) -> serde_json::Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

fn post(bridge: &UiBridge, message: &str) -> u64 {
    bridge.post("showNotification", json!({"msg": message})).expect("stored").expect("fits")
}

#[test]
fn state_and_last_number_outlive_the_process() {
    let place = tempfile::tempdir().expect("folder");
    let first = bridge(place.path());
    assert_eq!((first.state(), first.last()), (None, 0));
    let told = first.set_state(object(&json!({"open": ["a.rs"]})), CausedBy::User, None).expect("stored");
    assert_eq!((post(&first, "one"), post(&first, "two")), (1, 2));
    drop(first);
    let second = bridge(place.path());
    assert_eq!(second.state(), Some(told));
    assert_eq!(second.after(second.undelivered()), Ok(vec![]), "commands of a former process are gone");
    assert_eq!(second.after(1), Err(Lost), "and whoever missed some is told so");
    assert_eq!(post(&second, "three"), 3);
}

#[test]
fn damaged_files_are_dropped_and_the_bridge_works() {
    let place = tempfile::tempdir().expect("folder");
    drop(bridge(place.path()));
    std::fs::write(place.path().join("ui/state.json"), "{\"state\":{\"a\"").expect("written");
    std::fs::write(place.path().join("ui/last-command"), "\u{0}\u{0}").expect("written");
    let bridge = bridge(place.path());
    assert_eq!((bridge.state(), bridge.last()), (None, 0));
    assert_eq!(post(&bridge, "one"), 1);
}

#[test]
fn a_state_is_replaced_only_if_it_is_the_expected_one_and_not_too_large() {
    let place = tempfile::tempdir().expect("folder");
    let bridge = bridge(place.path());
    let set = |value: Value, expected: Option<&str>| bridge.set_state(object(&value), CausedBy::Agent, expected);
    assert!(matches!(set(json!({}), Some("*")), Err(UiBridgeError::Conflict { current: None })));
    let first = set(json!({"n": 1}), None).expect("stored");
    let second = set(json!({"n": 2}), Some(&first.etag)).expect("stored");
    let Err(UiBridgeError::Conflict { current }) = set(json!({"n": 3}), Some(&first.etag)) else {
        panic!("a stale writer wins");
    };
    assert_eq!(current.as_ref(), Some(&second.etag));
    set(json!({"n": 3}), Some("*")).expect("there is one");
    let large = json!({"text": "x".repeat(MAX_STATE)});
    assert!(matches!(set(large, None), Err(UiBridgeError::TooLarge)));
    assert_eq!(bridge.state().expect("kept").value, object(&json!({"n": 3})));
}

#[test]
fn an_interface_without_a_place_gets_what_nobody_took_and_one_with_a_place_gets_it_again() {
    let place = tempfile::tempdir().expect("folder");
    let bridge = bridge(place.path());
    post(&bridge, "one");
    let numbers =
        |after: u64| bridge.after(after).map(|commands| commands.iter().map(|(number, _)| *number).collect::<Vec<_>>());
    assert_eq!(numbers(bridge.undelivered()), Ok(vec![1]));
    assert_eq!(numbers(bridge.undelivered()), Ok(vec![]));
    assert_eq!(numbers(0), Ok(vec![1]));
    for _ in 0..MAX_COMMANDS {
        post(&bridge, "more");
    }
    assert_eq!(numbers(0), Err(Lost), "the oldest went");
    assert_eq!(numbers(1).map(|numbers| numbers.len()), Ok(MAX_COMMANDS));
}

struct NoCommands;

#[async_trait::async_trait]
impl Sandbox for NoCommands {
    fn isolation(&self) -> Isolation {
        Isolation { kind: IsolationKind::None, network: Network::Inherit, probes: vec![] }
    }

    async fn exec(&self, _request: ExecRequest) -> Result<mpsc::Receiver<ExecEvent>, SandboxError> {
        Err(SandboxError::Unavailable("no commands in this test".into()))
    }

    fn running(&self) -> usize {
        0
    }

    async fn stop_all(&self) {}
}

async fn run(
    place: &std::path::Path,
    tool: &Arc<dyn Tool>,
    arguments: Value,
) -> (Result<ToolResult, String>, Vec<ToolProgress>) {
    let (progress, mut reports) = mpsc::unbounded_channel();
    let context = ToolContext {
        tool_call_id: "call".into(),
        workspace: Arc::new(LocalWorkspace::open(place, "/shown").expect("opened")),
        sandbox: Arc::new(NoCommands),
        progress,
        cancel: CancellationToken::new(),
    };
    let result = tool.run(arguments, context).await.map_err(|failure| failure.0);
    let mut told = Vec::new();
    while let Ok(report) = reports.try_recv() {
        told.push(report);
    }
    (result, told)
}

#[tokio::test]
async fn the_tools_read_the_state_and_send_commands_with_paths_as_commands_see_them() {
    let place = tempfile::tempdir().expect("folder");
    let bridge = Arc::new(bridge(place.path()));
    let [get, exec] = tools::tools(&bridge);
    assert_eq!(exec.definition().input_schema["properties"]["kind"]["enum"][8], "openChart");
    let said = |result: Result<ToolResult, String>| {
        let result = result.expect("a result");
        let [ToolContent::Text(text)] = &result.content[..] else { panic!("one text") };
        (text.clone(), result.is_error)
    };
    let (result, _) = run(place.path(), &get, json!({})).await;
    assert_eq!(said(result), ("no user interface has told its state yet".into(), false));
    bridge.set_state(object(&json!({"panels": []})), CausedBy::User, None).expect("stored");
    assert_eq!(said(run(place.path(), &get, json!({})).await.0), ("{\"panels\":[]}".into(), false));

    for given in ["/shown/src/a.rs", "/workspace/src/a.rs", "src/a.rs"] {
        let (result, told) = run(place.path(), &exec, json!({"kind": "openFile", "params": {"path": given}})).await;
        let seq = bridge.last();
        assert_eq!(result.expect("a result").details, Some(json!({"seq": seq, "status": "ok"})));
        let params = json!({"path": "src/a.rs"});
        assert_eq!(told, [ToolProgress::UiCommand(UiCommand { seq, kind: "openFile".into(), params })]);
    }
    let text_params = json!({"kind": "openChart", "params": "{\"id\": 1}"});
    assert!(!run(place.path(), &exec, text_params).await.0.expect("a result").is_error);

    let last = bridge.last();
    let (text, is_error) = said(run(place.path(), &exec, json!({"kind": "openFil", "params": {}})).await.0);
    assert!(is_error && text.contains("openChart"), "{text}");
    let (_, is_error) =
        said(run(place.path(), &exec, json!({"kind": "openFile", "params": {"path": "/etc/x"}})).await.0);
    assert!(is_error);
    assert!(run(place.path(), &exec, json!([])).await.0.is_err());
    assert_eq!(bridge.last(), last, "what is refused takes no number");
}
