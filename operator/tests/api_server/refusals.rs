//! What is refused at creation, with a message that names the rule.

use operator::crd::{root_rules, sandbox_rules, spec_rules};
use serde_json::{Value, json};

use crate::support::{Space, assert_refused};

fn key(name: &str, purpose: &str) -> Value {
    json!({"name": name, "secretKeyRef": {"name": "agent-a", "key": "token"}, "purpose": purpose})
}

/// The published message that begins like this, so that the words stand in one place.
fn rule(beginning: &str) -> &'static str {
    let mut found = root_rules()
        .iter()
        .chain(spec_rules())
        .chain(sandbox_rules())
        .filter(|rule| rule.message.starts_with(beginning));
    found.next().map_or_else(|| panic!("no rule begins with {beginning}"), |rule| rule.message)
}

#[tokio::test]
async fn names_that_cannot_become_children_or_hosts_are_refused() {
    let space = Space::new(json!({})).await;
    let workspaces = space.workspaces();
    let longest = format!("a{}", "b".repeat(51));
    for name in ["abc", "a-1", longest.as_str()] {
        workspaces.create(name, &json!({})).await.expect(name);
    }
    let too_long = format!("a{}", "b".repeat(52));
    for name in ["ab", "1ab", "a--b", "a.b", too_long.as_str()] {
        assert_refused(&workspaces.create(name, &json!({})).await, rule("metadata.name"), &json!(name));
    }
    space.remove().await;
}

#[tokio::test]
async fn each_rule_refuses_what_it_is_for_with_its_message() {
    let space = Space::new(json!({})).await;
    let cases = [
        (json!({"storage": {"ephemeral": {}, "size": "1Gi"}}), "spec.storage.ephemeral excludes"),
        (
            json!({"storage": {"ephemeral": {}, "retention": {"whenDeleted": "Delete"}}}),
            "spec.storage.ephemeral excludes",
        ),
        (json!({"storage": {"ephemeral": {}, "accessMode": "ReadWriteOnce"}}), "spec.storage.ephemeral excludes"),
        (json!({"storage": {"ephemeral": {}, "storageClassName": "fast"}}), "spec.storage.ephemeral excludes"),
        (json!({"storage": {"size": "1Ki"}}), "spec.storage.size must be at least"),
        (json!({"storage": {"size": 0}}), "spec.storage.size must be at least"),
        (json!({"storage": {"ephemeral": {"sizeLimit": "0"}}}), "spec.storage.ephemeral.sizeLimit must be at least"),
        (json!({"agent": {"credentials": [key("a", "ModelKey"), key("b", "ModelKey")]}}), "at most one credential"),
        (json!({"agent": {"credentials": [key("not-a-variable", "Environment")]}}), "the name of a credential"),
        (json!({"agent": {"credentials": [key("1ST", "Environment")]}}), "the name of a credential"),
        (json!({"agent": {"env": [{"name": "BORING_AGENT_MODE", "value": "x"}]}}), "names that begin"),
        (json!({"agent": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}), "names that begin"),
        (json!({"agent": {"env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "x"}]}}), "names that begin"),
        (json!({"agent": {"env": [{"name": "GIT_CONFIG_COUNT", "value": "9"}]}}), "names that begin"),
        (json!({"agent": {"env": [{"name": "hTTps_pRoXy", "value": "x"}]}}), "names that begin"),
        (json!({"agent": {"env": [{"name": "ANTHROPIC_API_KEY_FILE", "value": "x"}]}}), "names that begin"),
        (json!({"lifecycle": {"idleTimeoutSeconds": 59}}), "spec.lifecycle.idleTimeoutSeconds must be"),
        (
            json!({"lifecycle": {"idleTimeoutSeconds": 600, "maxBusySeconds": 300}}),
            "spec.lifecycle.maxBusySeconds must be at least",
        ),
        (json!({"lifecycle": {"schedules": [{"name": "day"}]}}), "a schedule has"),
        (json!({"agent": {"env": [{"name": "OPENAI_API_KEY_FILE", "value": "x"}]}}), "names that begin"),
        (json!({"agent": {"model": {"provider": "openai"}}}), "spec.agent.model.id is needed"),
        (json!({"sandbox": {"network": "Isolated"}}), "spec.sandbox.network: Isolated needs"),
        (json!({"sandbox": {"mode": "Landlock", "onUnavailable": "Degrade"}}), "spec.sandbox.onUnavailable"),
        (json!({"sandbox": {"limits": {"workspaceMemory": "1Mi"}}}), "spec.sandbox.limits.workspaceMemory"),
        (
            json!({"sandbox": {"mode": "Landlock", "network": "Isolated"}, "libraries": {"python": ["pandas"]}}),
            "spec.libraries are installed",
        ),
        (json!({"template": {}}), "spec.template needs either"),
        (json!({"template": {"image": "registry/x"}}), "spec.template needs either"),
        (json!({"template": {"path": "/x"}}), "spec.template needs either"),
        (json!({"template": {"configMapName": "agent-a", "path": "/x"}}), "spec.template needs either"),
        (json!({"template": {"configMapName": "agent-a", "image": "x", "path": "/x"}}), "spec.template needs either"),
        (json!({"scheduling": {"priorityClassName": "system-node-critical"}}), "priority classes"),
        (json!({"podMetadata": {"labels": {"app": "payments"}}}), "keys need a prefix"),
        (json!({"podMetadata": {"labels": {"app.kubernetes.io/name": "payments"}}}), "keys need a prefix"),
        (json!({"podMetadata": {"annotations": {"agents.boring.dev/keys": "mine"}}}), "keys need a prefix"),
        (json!({"podMetadata": {"annotations": {"argocd.argoproj.io/tracking-id": "x"}}}), "keys need a prefix"),
        (json!({"podMetadata": {"annotations": {"kustomize.toolkit.fluxcd.io/name": "x"}}}), "keys need a prefix"),
    ];
    for (spec, beginning) in cases {
        assert_refused(&space.workspaces().create("case", &spec).await, rule(beginning), &spec);
    }
    space.remove().await;
}

#[tokio::test]
async fn the_schema_refuses_with_the_name_of_the_field() {
    let space = Space::new(json!({})).await;
    let cases = [
        (
            json!({"sandbox": {"mode": "Vercel"}}),
            "spec.sandbox.mode: Unsupported value: \"Vercel\": supported values: \"Direct\"",
        ),
        (json!({"runPolicy": "Sometimes"}), "spec.runPolicy: Unsupported value"),
        (json!({"access": {"exposure": "Public"}}), "spec.access.exposure: Unsupported value"),
        (json!({"access": {"visibility": "Everybody"}}), "spec.access.visibility: Unsupported value"),
        (json!({"lifecycle": {"wake": {"mode": "Never"}}}), "spec.lifecycle.wake.mode: Unsupported value"),
        (json!({"lifecycle": {"wake": {"timeoutSeconds": 601}}}), "spec.lifecycle.wake.timeoutSeconds: Invalid value"),
        (json!({"agent": {"model": {"provider": "acme"}}}), "spec.agent.model.provider: Unsupported value"),
        (json!({"agent": {"model": {"baseUrl": "ftp://x.example"}}}), "spec.agent.model.baseUrl: Invalid value"),
        (
            json!({"agent": {"model": {"baseUrl": "https://user:secret@x.example"}}}),
            "spec.agent.model.baseUrl: Invalid value",
        ),
        (json!({"agent": {"image": "two words"}}), "spec.agent.image: Invalid value"),
        (json!({"agent": {"image": ""}}), "spec.agent.image: Invalid value"),
        (json!({"agent": {"systemPrompt": "x".repeat(32769)}}), "spec.agent.systemPrompt: Too long"),
        (
            json!({"agent": {"credentials": [key("../escape", "File")]}}),
            "spec.agent.credentials[0].name: Invalid value",
        ),
        (
            json!({"agent": {"credentials": [{"name": "a", "purpose": "File"}]}}),
            "spec.agent.credentials[0].secretKeyRef: Required value",
        ),
        (
            json!({"agent": {"credentials": [key("a", "File"), key("a", "File")]}}),
            "spec.agent.credentials[1]: Duplicate value",
        ),
        (json!({"agent": {"env": [{"name": "1A", "value": "x"}]}}), "spec.agent.env[0].name: Invalid value"),
        (json!({"agent": {"env": [{"name": "A"}]}}), "spec.agent.env[0].value: Required value"),
        (json!({"agent": {"settingsRef": {}}}), "spec.agent.settingsRef.name: Required value"),
        (json!({"template": {"configMapName": "UPPER"}}), "spec.template.configMapName: Invalid value"),
        (json!({"template": {"image": "x", "path": "/x/../etc"}}), "spec.template.path: Invalid value"),
        (json!({"libraries": {"python": ["--index-url=http://x"]}}), "spec.libraries.python[0]: Invalid value"),
        (json!({"libraries": {"python": ["a", "./b"]}}), "spec.libraries.python[1]: Invalid value"),
        (json!({"libraries": {"python": ["a", "a"]}}), "spec.libraries.python[1]: Duplicate value"),
        (json!({"libraries": {"python": vec!["a"; 65]}}), "spec.libraries.python: Too many"),
        (json!({"owner": {}}), "spec.owner.user: Required value"),
        (json!({"owner": {"user": ""}}), "spec.owner.user: Invalid value"),
        (json!({"storage": {"size": "a lot"}}), "spec.storage.size: Invalid value"),
        (json!({"storage": {"size": "-1Gi"}}), "spec.storage.size: Invalid value"),
        (
            json!({"storage": {"retention": {"whenDeleted": "Keep"}}}),
            "spec.storage.retention.whenDeleted: Unsupported value",
        ),
        (json!({"lifecycle": {"startTimeoutSeconds": 9}}), "spec.lifecycle.startTimeoutSeconds: Invalid value"),
        (
            json!({"lifecycle": {"stopGracePeriodSeconds": 3601}}),
            "spec.lifecycle.stopGracePeriodSeconds: Invalid value",
        ),
        (json!({"lifecycle": {"startTimeoutSeconds": "10m"}}), "spec.lifecycle.startTimeoutSeconds: Invalid value"),
        (json!({"resources": {"limits": {"memory": "much"}}}), "spec.resources.limits.memory: Invalid value"),
        (
            json!({"podMetadata": {"labels": {"example.com/a": "x".repeat(64)}}}),
            "spec.podMetadata.labels.example.com/a: Too long",
        ),
    ];
    for (spec, expected) in cases {
        assert_refused(&space.workspaces().create("case", &spec).await, expected, &spec);
    }
    space.remove().await;
}

#[tokio::test]
async fn ordinary_manifests_are_accepted() {
    let space = Space::new(json!({})).await;
    let cases = [
        json!({}),
        json!({"storage": {"size": 1_073_741_824}}),
        json!({"storage": {"ephemeral": {"sizeLimit": "500Mi"}}}),
        json!({"agent": {"model": {"baseUrl": "http://model.fakes.svc:8080/v1"}}}),
        json!({"agent": {"model": {"provider": "openai", "id": "org/model:free", "baseUrl": "http://models.fakes.svc:8000/v1"}}}),
        json!({"template": {"configMapName": "agent-files"}, "libraries": {"python": ["pandas", "numpy>=2,<3", "uvicorn[standard]==0.30.*"]}}),
        json!({"template": {"image": "registry.example.com/starter@sha256:1", "path": "/opt/starter"}}),
        json!({"agent": {"env": [{"name": "PROXY_MODE", "value": ""}]}}),
        json!({"agent": {"credentials": [key("a.file-name_1", "File"), key("TOKEN", "Environment"), key("model-key", "ModelKey")]}}),
        json!({"podMetadata": {"labels": {"example.com/team": "a"}, "annotations": {"prometheus.io/scrape": "true"}}}),
        json!({"resources": {"requests": {"cpu": "0.25", "example.com/gpu": 1}, "limits": {"example.com/gpu": 1}}}),
    ];
    for (number, spec) in cases.iter().enumerate() {
        space
            .workspaces()
            .create(&format!("case-{number}"), spec)
            .await
            .unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
    space.remove().await;
}
