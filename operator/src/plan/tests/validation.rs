//! From the raw spec to what holds.

use super::*;
use crate::crd::{Phase, Reason};

fn refused(value: Value) -> (Reason, String) {
    let invalid = Valid::parse(&Config::default(), &fresh(value).workspace).expect_err("refused");
    (invalid.reason, invalid.message)
}

#[test]
fn an_empty_spec_has_the_built_in_values() {
    let valid = Valid::parse(&Config::default(), &fresh(json!({})).workspace).expect("valid");
    insta::assert_debug_snapshot!("built_in_values", valid);
}

#[test]
fn secrets_outside_of_the_prefix_are_refused() {
    let value = json!({"agent": {"credentials": [
        {"name": "key", "secretKeyRef": {"name": "database", "key": "password"}, "purpose": "File"}
    ]}});
    let (reason, message) = refused(value.clone());
    assert_eq!(reason, Reason::SecretNotAllowed);
    assert!(
        message.starts_with("credential key: secret database may not be used, its name must begin with \"agent-\""),
        "{message}"
    );
    let config = Config { allowed_secret_prefix: String::new(), ..Config::default() };
    Valid::parse(&config, &fresh(value).workspace).expect("every name is permitted");
}

#[test]
fn a_model_inside_the_cluster_is_refused_unless_its_namespace_is_permitted() {
    for (url, namespace) in [("http://model.fakes.svc:8080", "fakes"), ("http://database:5432", "team-a")] {
        let value = json!({"agent": {"model": {"baseUrl": url}}});
        let (reason, message) = refused(value.clone());
        assert_eq!(reason, Reason::ModelEndpointNotAllowed);
        assert!(message.contains(namespace) && message.contains("--model-namespaces"), "{message}");
        let observed = fresh(value);
        let found = |config: &Config| model_service(config, "team-a", &observed.workspace.spec);
        assert_eq!(found(&Config::default()), None, "it is not even read");
        Valid::parse(&permitting(namespace), &observed.workspace).expect("permitted");
        assert_eq!(found(&permitting(namespace)).expect("it is read").0, namespace);
    }
}

#[test]
fn config_maps_outside_of_the_prefix_are_refused() {
    for (value, field) in [
        (json!({"template": {"configMapName": "kube-root-ca.crt"}}), "spec.template"),
        (json!({"agent": {"settingsRef": {"name": "kube-root-ca.crt"}}}), "spec.agent.settingsRef"),
    ] {
        let (reason, message) = refused(value.clone());
        assert_eq!(reason, Reason::SecretNotAllowed);
        assert!(message.starts_with(&format!("{field}: config map kube-root-ca.crt may not be used")), "{message}");
        let config = Config { allowed_secret_prefix: String::new(), ..Config::default() };
        Valid::parse(&config, &fresh(value).workspace).expect("every name is permitted");
    }
}

#[test]
fn what_the_schema_refuses_is_refused_here_too() {
    let key = |name: &str, purpose: &str| json!({"name": name, "secretKeyRef": {"name": "agent-a", "key": "k"}, "purpose": purpose});
    let cases = [
        json!({"agent": {"credentials": [key("a", "ModelKey"), key("b", "ModelKey")]}}),
        json!({"agent": {"credentials": [key("not-a-variable", "Environment")]}}),
        json!({"agent": {"credentials": [key("../escape", "File")]}}),
        json!({"agent": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}),
        json!({"agent": {"env": [{"name": "https_proxy", "value": "x"}]}}),
        json!({"agent": {"env": [{"name": "BORING_AGENT_MODE", "value": "x"}]}}),
        json!({"agent": {"env": [{"name": "OPENAI_API_KEY_FILE", "value": "x"}]}}),
        json!({"agent": {"model": {"provider": "openai"}}}),
        json!({"agent": {"model": {"baseUrl": "http://user:secret@host/"}}}),
        json!({"template": {}}),
        json!({"template": {"image": "x"}}),
        json!({"template": {"image": "x", "path": "relative"}}),
        json!({"template": {"configMapName": "agent-a", "image": "x", "path": "/x"}}),
        json!({"libraries": {"python": ["a b"]}}),
        json!({"storage": {"size": "1Gi", "ephemeral": {}}}),
        json!({"storage": {"size": "a lot"}}),
        json!({"lifecycle": {"startTimeoutSeconds": 1}}),
        json!({"lifecycle": {"stopGracePeriodSeconds": -1}}),
        json!({"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}),
        json!({"resources": {"limits": {"memory": "much"}}}),
        json!({"scheduling": {"priorityClassName": "system-node-critical"}}),
        json!({"podMetadata": {"labels": {"app": "payments"}}}),
        json!({"podMetadata": {"labels": {"app.kubernetes.io/name": "payments"}}}),
        json!({"podMetadata": {"annotations": {"agents.boring.dev/keys": "mine"}}}),
        json!({"podMetadata": {"annotations": {"kustomize.toolkit.fluxcd.io/prune": "x"}}}),
    ];
    for value in cases {
        assert_eq!(refused(value.clone()).0, Reason::InvalidSpec, "{value}");
    }
}

#[test]
fn limits_and_requests_follow_each_other() {
    let resources = |value: Value| {
        let valid = Valid::parse(&Config::default(), &fresh(json!({"resources": value})).workspace).expect("valid");
        (valid.requests["memory"].0.clone(), valid.limits["memory"].0.clone())
    };
    assert_eq!(resources(json!({"limits": {"memory": "64Mi"}})), ("64Mi".to_owned(), "64Mi".to_owned()));
    assert_eq!(resources(json!({"requests": {"memory": "8Gi"}})), ("8Gi".to_owned(), "8Gi".to_owned()));
    assert_eq!(resources(json!({"limits": {"memory": "4Gi"}})), ("128Mi".to_owned(), "4Gi".to_owned()));
    assert_eq!(resources(json!({"limits": {"memory": 4_294_967_296_i64}})).1, "4294967296");
}

#[test]
fn a_refused_spec_starts_nothing_and_is_said_once() {
    let mut observed = fresh(json!({"scheduling": {"priorityClassName": "system-x"}}));
    let plan = step(&mut observed, at(0));
    assert_eq!(events(&plan), ["Warning InvalidSpec"]);
    assert_eq!(plan, Plan { status: plan.status.clone(), events: plan.events.clone(), ..Plan::default() });
    assert_eq!(observed.workspace.status.phase, Some(Phase::Pending));
    assert_eq!(decide(&observed, at(1)), Plan::default());
}

#[test]
fn a_spec_that_becomes_refused_leaves_the_running_pod() {
    let mut observed = running(json!({}));
    observed.workspace.spec = spec(json!({"scheduling": {"priorityClassName": "system-x"}}));
    observed.workspace.generation = 2;
    let plan = step(&mut observed, at(60));
    assert_eq!(plan.delete_pod, None);
    let status = &observed.workspace.status;
    assert_eq!(status.phase, Some(Phase::Running));
    assert!(conditions(status).contains(&"Running=True/Running".to_owned()));
    assert!(conditions(status).contains(&"Stalled=True/InvalidSpec".to_owned()));
    // and it can still be stopped
    observed.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    step(&mut observed, at(61));
    assert!(decide(&observed, at(61)).delete_pod.is_some());
}

#[test]
fn every_built_in_value_names_a_field_that_exists() {
    let definition = serde_json::to_value(crate::crd::agent_workspace_definition()).expect("plain data");
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for (path, _) in EFFECTIVE {
        let node = path.split('.').fold(root, |node, name| &node["properties"][name]);
        assert!(node.is_object(), "{path}");
    }
}
