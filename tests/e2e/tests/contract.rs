//! What operator and agent server agree on (docs/contract.md): the rendered pod against the server's own definition.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use agent_server::config::CommandLine;
use clap::CommandFactory;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use operator::crd::AgentWorkspaceSpec;
use operator::plan::{Config, LookUp, Observed, WorkspaceView, plan};
use serde_json::json;

/// A workspace that uses every field that reaches the container.
fn full_spec() -> AgentWorkspaceSpec {
    serde_json::from_value(json!({
        "owner": {"user": "alice@example.com"},
        "agent": {
            "model": {"provider": "anthropic", "id": "a-model", "baseUrl": "https://models.example.com"},
            "systemPrompt": "Be brief.",
            "credentials": [
                {"name": "model-key", "secretKeyRef": {"name": "agent-a", "key": "token"}, "purpose": "ModelKey"},
                {"name": "DATABASE_URL", "secretKeyRef": {"name": "agent-b", "key": "url"}, "purpose": "Environment"},
                {"name": "netrc", "secretKeyRef": {"name": "agent-c", "key": "netrc"}, "purpose": "File"},
            ],
            "env": [{"name": "EXTRA", "value": "1"}],
            "settingsRef": {"name": "agent-settings"},
        },
        "sandbox": {
            "mode": "Bubblewrap", "network": "Isolated", "onUnavailable": "Degrade", "procMount": "Full",
            "env": [{"name": "GREETING", "value": "hello"}],
            "limits": {
                "memory": "1Gi", "processes": 100, "fileSize": "1Gi", "outputBytes": 100_000, "timeoutSeconds": 60,
                "workspaceMemory": "1Gi", "workspaceProcesses": 200,
            },
        },
        "storage": {"ephemeral": {"sizeLimit": "1Gi"}},
        "template": {"configMapName": "agent-template"},
        "libraries": {"python": ["pandas", "numpy>=2,<3"]},
    }))
    .unwrap()
}

/// Plans with empty answers to every question until the pod is created.
fn rendered_pod() -> Pod {
    let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
    let workspace = WorkspaceView::new("team-a", "alice", "11111111-1111-4111-8111-111111111111", full_spec());
    let mut observed = Observed::alone(workspace, r#"{"keys":[]}"#.into());
    for _ in 0..4 {
        let plan = plan(&Config { allow_degrade: true, ..Config::default() }, &observed, now);
        assert_eq!(plan.look_up, Vec::<LookUp>::new());
        if let Some(pod) = plan.create_pod {
            return pod;
        }
        observed.workspace.status = plan.status.expect("no pod and no status: nothing would ever happen").status;
    }
    panic!("no pod after four decisions");
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

#[test]
fn every_variable_that_the_operator_renders_is_one_that_the_server_knows() {
    let pod = rendered_pod();
    let rendered: BTreeSet<&str> =
        container(&pod).env.as_ref().unwrap().iter().map(|variable| variable.name.as_str()).collect();
    let command = CommandLine::command();
    let known: BTreeSet<&str> =
        command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).chain(["EXTRA"]).collect();
    // Handed on to commands, by name and by prefix.
    let handed_on =
        ["BORING_AGENT_COMMAND_VARIABLE_GREETING", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"];
    let unknown: Vec<_> = rendered.iter().filter(|name| !known.contains(*name) && !handed_on.contains(name)).collect();
    assert_eq!(unknown, Vec::<&&str>::new());
    let expected: BTreeSet<&str> = [
        "ANTHROPIC_API_KEY_FILE",
        "BORING_AGENT_COMMAND_ENVIRONMENT_DIR",
        "BORING_AGENT_COMMAND_FILES_DIR",
        "BORING_AGENT_HOST",
        "BORING_AGENT_LIMIT_FILE_SIZE_BYTES",
        "BORING_AGENT_LIMIT_MEMORY_BYTES",
        "BORING_AGENT_LIMIT_OUTPUT_BYTES",
        "BORING_AGENT_LIMIT_PROCESSES",
        "BORING_AGENT_LIMIT_TIMEOUT_SECONDS",
        "BORING_AGENT_LIMIT_WORKSPACE_MEMORY_BYTES",
        "BORING_AGENT_LIMIT_WORKSPACE_PROCESSES",
        "BORING_AGENT_METRICS_PORT",
        "BORING_AGENT_MODE",
        "BORING_AGENT_MODEL",
        "BORING_AGENT_MODEL_BASE_URL",
        "BORING_AGENT_MODEL_PROVIDER",
        "BORING_AGENT_POD_UID",
        "BORING_AGENT_PORT",
        "BORING_AGENT_PYTHON_PACKAGES",
        "BORING_AGENT_SANDBOX_NETWORK",
        "BORING_AGENT_SANDBOX_ON_UNAVAILABLE",
        "BORING_AGENT_SETTINGS_FILE",
        "BORING_AGENT_STATE_DIR",
        "BORING_AGENT_STOP_GRACE_SECONDS",
        "BORING_AGENT_SYSTEM_PROMPT_FILE",
        "BORING_AGENT_TEMPLATE_PATH",
        "BORING_AGENT_TOKEN_AUDIENCE",
        "BORING_AGENT_TOKEN_KEYS_FILE",
        "BORING_AGENT_WORKSPACE_ID",
        "BORING_AGENT_WORKSPACE_ROOT",
        "EXTRA",
    ]
    .into_iter()
    .chain(handed_on)
    .collect();
    assert_eq!(rendered, expected);
}

#[test]
fn ports_and_probe_are_the_contracts() {
    let pod = rendered_pod();
    let ports: Vec<_> = container(&pod)
        .ports
        .as_ref()
        .unwrap()
        .iter()
        .map(|port| (port.name.clone().unwrap(), port.container_port))
        .collect();
    assert_eq!(ports, [("http".to_owned(), 8787), ("metrics".to_owned(), 9464)]);
    let probe = container(&pod).readiness_probe.as_ref().unwrap();
    assert_eq!(probe.http_get.as_ref().unwrap().path.as_deref(), Some("/ready"));
    assert_eq!((container(&pod).liveness_probe.clone(), container(&pod).startup_probe.clone()), (None, None));
}

#[test]
fn every_folder_that_a_variable_names_is_mounted() {
    let pod = rendered_pod();
    let mounts: Vec<String> =
        container(&pod).volume_mounts.as_ref().unwrap().iter().map(|mount| mount.mount_path.clone()).collect();
    for variable in container(&pod).env.as_ref().unwrap() {
        let Some(path) = variable.value.as_deref().filter(|value| value.starts_with('/')) else { continue };
        let covered = mounts.iter().any(|mount| path == mount || path.starts_with(&format!("{mount}/")));
        assert!(covered, "{} = {path} lies below none of {mounts:?}", variable.name);
    }
}

#[test]
fn no_secret_is_in_the_containers_environment() {
    let pod = rendered_pod();
    for variable in container(&pod).env.as_ref().unwrap() {
        let from_secret = variable.value_from.as_ref().is_some_and(|source| source.secret_key_ref.is_some());
        assert!(!from_secret, "{}", variable.name);
    }
    assert_eq!(container(&pod).env_from, None);
}

#[test]
fn libraries_mean_the_same_to_the_definition_and_to_the_server() {
    let pattern = regex::Regex::new(operator::crd::PYTHON_LIBRARY).unwrap();
    for entry in [
        "pandas",
        "numpy>=2,<3",
        "uvicorn[standard]==0.30.*",
        "a",
        "a-",
        "-r",
        "a==",
        "a[",
        "a[]",
        "a@https://x",
        "./a",
        "a;b",
        "a'b",
        "a~=1.0",
        "a===1",
        "a=1",
        "zope.interface!=5",
    ] {
        let taken = agent_server::config::parse_requirements(entry).is_ok();
        assert_eq!(pattern.is_match(entry), taken, "{entry}");
    }
}
