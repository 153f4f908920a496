//! How commands are run: what is rendered for each mode, and what the status says of it.

use super::*;
use crate::crd::{Reason, SandboxMode};

fn config() -> Config {
    Config { allow_degrade: true, ..Config::default() }
}

fn sandbox(value: &Value) -> Sandbox {
    Valid::parse(&config(), &fresh(json!({"sandbox": value})).workspace).expect("a valid spec").sandbox
}

/// Seccomp profile, hostUsers, procMount and the server's variables about commands.
fn rendered(value: &Value) -> Value {
    let valid = Valid::parse(&config(), &fresh(json!({"sandbox": value})).workspace).expect("a valid spec");
    let spec = children::pod(&valid, "KEYS").spec.expect("a spec");
    let container = &spec.containers[0];
    let environment: serde_json::Map<String, Value> = container
        .env
        .iter()
        .flatten()
        .filter(|variable| ["MODE", "SANDBOX_", "LIMIT_", "COMMAND_V"].iter().any(|part| variable.name.contains(part)))
        .filter_map(|variable| Some((variable.name.replace("BORING_AGENT_", ""), json!(variable.value.as_ref()?))))
        .collect();
    json!({
        "seccomp": spec.security_context.expect("a context").seccomp_profile,
        "hostUsers": spec.host_users,
        "procMount": container.security_context.as_ref().expect("a context").proc_mount,
        "environment": environment,
    })
}

#[test]
fn each_mode_renders_what_it_needs_and_nothing_else() {
    let default = json!({"type": "RuntimeDefault"});
    let plain =
        |mode: &str| json!({"seccomp": default, "hostUsers": null, "procMount": null, "environment": {"MODE": mode}});
    assert_eq!(rendered(&json!({})), plain("direct"));
    assert_eq!(rendered(&json!({"mode": "Landlock"})), plain("landlock"));
    let own = json!({"type": "Localhost", "localhostProfile": "agent-workspace-operator/bubblewrap.json"});
    assert_eq!(
        rendered(&json!({"mode": "Bubblewrap", "network": "Isolated"})),
        json!({
            "seccomp": own, "hostUsers": null, "procMount": null,
            "environment": {"MODE": "bubblewrap", "SANDBOX_NETWORK": "isolated"},
        })
    );
    assert_eq!(
        rendered(&json!({
            "mode": "Bubblewrap", "procMount": "Full", "onUnavailable": "Degrade",
            "env": [{"name": "PRICE", "value": "$5"}],
            "limits": {
                "memory": "1Gi", "processes": 100, "fileSize": "1M", "outputBytes": 100_000, "timeoutSeconds": 60,
                "workspaceMemory": "1536Mi", "workspaceProcesses": 200,
            },
        })),
        json!({
            "seccomp": own, "hostUsers": false, "procMount": "Unmasked",
            "environment": {
                "MODE": "bubblewrap", "SANDBOX_ON_UNAVAILABLE": "degrade", "COMMAND_VARIABLE_PRICE": "$$5",
                "LIMIT_MEMORY_BYTES": "1073741824", "LIMIT_PROCESSES": "100", "LIMIT_FILE_SIZE_BYTES": "1000000",
                "LIMIT_OUTPUT_BYTES": "100000", "LIMIT_TIMEOUT_SECONDS": "60",
                "LIMIT_WORKSPACE_MEMORY_BYTES": "1610612736", "LIMIT_WORKSPACE_PROCESSES": "200",
            },
        })
    );
    let unconfined = Config { bubblewrap_seccomp: BubblewrapSeccomp::Unconfined, ..config() };
    let workspace = fresh(json!({"sandbox": {"mode": "Bubblewrap"}})).workspace;
    let valid = Valid::parse(&unconfined, &workspace).expect("a valid spec");
    assert_eq!(valid.sandbox.seccomp_profile().type_, "Unconfined");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let cases = [
        json!({"network": "Isolated"}),
        json!({"mode": "Direct", "network": "Isolated"}),
        json!({"mode": "Landlock", "procMount": "Empty"}),
        json!({"mode": "Landlock", "onUnavailable": "Degrade"}),
        json!({"env": [{"name": "LD_PRELOAD", "value": "x"}]}),
        json!({"env": [{"name": "BASH_ENV", "value": "x"}]}),
        json!({"limits": {"memory": "1Mi"}}),
        json!({"limits": {"fileSize": "much"}}),
        json!({"limits": {"processes": 1}}),
        json!({"limits": {"workspaceMemory": "1Mi"}}),
        json!({"limits": {"workspaceProcesses": 1}}),
    ];
    for value in cases {
        let parsed = Valid::parse(&config(), &fresh(json!({"sandbox": value})).workspace);
        assert_eq!(parsed.expect_err("refused").reason, Reason::InvalidSpec, "{value}");
    }
}

#[test]
fn libraries_that_no_command_could_fetch_are_refused() {
    let parsed = |network: &str, template: &Value| {
        let mut spec = json!({
            "sandbox": {"mode": "Landlock", "network": network}, "libraries": {"python": ["pandas"]},
        });
        if !template.is_null() {
            spec["template"] = template.clone();
        }
        Valid::parse(&config(), &fresh(spec).workspace)
    };
    let refused = parsed("Isolated", &Value::Null).expect_err("refused");
    assert_eq!(refused.reason, Reason::InvalidSpec);
    assert!(refused.message.contains("spec.sandbox.network: Isolated"), "{refused}");
    parsed("Inherit", &Value::Null).expect("fetched");
    parsed("Isolated", &json!({"configMapName": "agent-wheels"})).expect("brought along");
}

#[test]
fn degrading_needs_the_operators_permission() {
    let value = json!({"sandbox": {"mode": "Bubblewrap", "onUnavailable": "Degrade"}});
    let refused = Valid::parse(&Config::default(), &fresh(value.clone()).workspace).expect_err("refused");
    assert!(refused.message.contains("--allow-sandbox-degrade"), "{refused}");
    assert!(Valid::parse(&config(), &fresh(value).workspace).expect("permitted").sandbox.degrade);
    assert_eq!(sandbox(&json!({})).mode, SandboxMode::Direct);
}

/// SandboxReady as `status/reason`, `status.isolation`, and the events, after the pod became Ready with this report.
fn reported(value: &Value, isolation: Option<AgentIsolation>) -> (String, Option<String>, Vec<String>) {
    let mut observed = fresh(json!({"sandbox": value}));
    let take = |observed: &mut Observed, seconds| {
        let plan = plan(&config(), observed, at(seconds));
        observed.workspace.status = round_trip(&plan.status.clone().expect("a status patch").status);
        plan
    };
    take(&mut observed, 0);
    let valid = Valid::parse(&config(), &observed.workspace).expect("a valid spec");
    let mut pod = ready(
        PodView { revision: Some(children::revision(&valid)), ..pending_pod(&fresh(json!({})), "pod-1", at(0)) },
        at(2),
    );
    pod.keys = Some(observed.token_keys.clone());
    observed.pod = Seen::Ours(pod);
    observed.agent_readiness = Some(AgentReadiness { isolation, ..healthy("pod-1", at(2)) });
    let plan = take(&mut observed, 2);
    let status = &observed.workspace.status;
    let told = status::condition(status, ConditionType::SandboxReady).expect("SandboxReady");
    (format!("{}/{}", told.status, told.reason), status.isolation.clone(), events(&plan))
}

fn isolation(kind: &str, isolated: bool, degraded: Option<&str>) -> AgentIsolation {
    AgentIsolation { kind: kind.to_owned(), isolated, degraded: degraded.map(str::to_owned) }
}

#[test]
fn the_status_says_what_the_server_reports() {
    let told = |value: &Value, report| reported(value, Some(report));
    let started = || vec!["Normal Running".to_owned()];
    let with = |event: &str| vec!["Normal Running".to_owned(), event.to_owned()];
    let ok = |kind: &str| ("True/Available".to_owned(), Some(kind.to_owned()), started());
    assert_eq!(told(&json!({}), isolation("DirectWithLandlockLayer", false, None)), ok("DirectWithLandlockLayer"));
    assert_eq!(told(&json!({"mode": "Bubblewrap"}), isolation("Bubblewrap", false, None)), ok("Bubblewrap"));
    let isolated = json!({"mode": "Landlock", "network": "Isolated"});
    assert_eq!(told(&isolated, isolation("Landlock", true, None)), ok("Landlock"));
    assert_eq!(
        told(&json!({}), isolation("None", false, None)),
        ("True/SecretsReadable".to_owned(), Some("None".to_owned()), with("Warning SecretsReadable"))
    );
    let degrade = json!({"mode": "Bubblewrap", "onUnavailable": "Degrade"});
    assert_eq!(
        told(&degrade, isolation("Landlock", false, Some("no namespaces"))),
        ("True/Degraded".to_owned(), Some("Landlock".to_owned()), with("Warning Degraded"))
    );
    for (value, report) in [
        (json!({"mode": "Bubblewrap"}), isolation("Landlock", false, None)),
        (isolated, isolation("Landlock", false, None)),
        (json!({"mode": "Landlock"}), isolation("None", false, None)),
    ] {
        let (condition, _, events) = told(&value, report);
        assert_eq!((condition.as_str(), events), ("False/SandboxUnavailable", with("Warning SandboxUnavailable")));
    }
    assert_eq!(reported(&json!({}), None), ("Unknown/Pending".to_owned(), None, started()));
}

#[test]
fn a_volume_that_cannot_be_mapped_ends_the_start_with_growing_pauses() {
    let mut observed = running(json!({"sandbox": {"mode": "Bubblewrap", "procMount": "Full"}}));
    let sentence = "failed to start: mount_setattr MOUNT_ATTR_IDMAP: invalid argument";
    let pod = ended(pod_mut(&mut observed).clone(), 128, "StartError", sentence);
    observed.pod = Seen::Ours(pod);
    let plan = step(&mut observed, at(10));
    assert_eq!((plan.create_pod.is_none(), plan.requeue_at.is_some()), (true, true));
    let conditions = conditions(&observed.workspace.status);
    for expected in [
        "Ready=False/VolumeNotIdmappable",
        "SandboxReady=False/VolumeNotIdmappable",
        "Stalled=True/VolumeNotIdmappable",
    ] {
        assert!(conditions.contains(&expected.to_owned()), "{conditions:?}");
    }
    assert_eq!(observed.workspace.status.isolation, None);
}
