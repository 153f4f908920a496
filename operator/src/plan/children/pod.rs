//! The pod. What it agrees on with the agent server is in docs/contract.md. It passes pod security level `restricted`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Pod,
        PodSecurityContext, PodSpec, Probe, ResourceRequirements, SecurityContext, Toleration,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    crd::{
        self, ANNOTATION_KEYS, ANNOTATION_REVISION, ANNOTATION_SYSTEM_PROMPT, ImagePullPolicy, ModelProvider,
        TolerationEffect, TolerationOperator,
    },
    plan::{Valid, provisioning::TemplateSource},
};

use super::{HTTP_PORT, METRICS_PORT, hash, metadata, volumes};

/// User, group and volume group of the server.
const USER: i64 = 1000;

/// Renders the pod with the keys that its server verifies tokens with.
pub fn pod(valid: &Valid, token_keys: &str) -> Pod {
    let spec = spec(valid);
    let revision = revision_of(valid, &spec);
    let mut metadata = metadata(valid, valid.agent_name());
    let mut labels = valid.pod_labels.clone();
    labels.extend(metadata.labels.take().unwrap_or_default());
    metadata.labels = Some(labels);
    let mut annotations = valid.pod_annotations.clone();
    annotations.insert(ANNOTATION_KEYS.to_owned(), token_keys.to_owned());
    annotations.insert(ANNOTATION_REVISION.to_owned(), revision);
    if let Some(prompt) = &valid.system_prompt {
        annotations.insert(ANNOTATION_SYSTEM_PROMPT.to_owned(), prompt.clone());
    }
    metadata.annotations = Some(annotations);
    Pod { metadata, spec: Some(spec), status: None }
}

/// Hash of what makes a difference to the running agent: the pod's spec and the system prompt. Keys are renewed in place,
/// and labels or annotations of the user are no reason to start anew.
pub fn revision(valid: &Valid) -> String {
    revision_of(valid, &spec(valid))
}

fn revision_of(valid: &Valid, spec: &PodSpec) -> String {
    hash(&(spec, &valid.system_prompt))
}

fn spec(valid: &Valid) -> PodSpec {
    PodSpec {
        init_containers: template_container(valid).map(|container| vec![container]),
        containers: vec![container(valid)],
        volumes: Some(volumes::volumes(valid)),
        // The operator creates a new pod after a failure, with a pause that the status shows.
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(i64::from(valid.life.stop_grace_period_seconds)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        node_selector: (!valid.node_selector.is_empty()).then(|| valid.node_selector.clone()),
        tolerations: (!valid.tolerations.is_empty()).then(|| valid.tolerations.iter().map(toleration).collect()),
        priority_class_name: valid.priority_class_name.clone(),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            // Without this each start walks the whole volume: minutes on a large one.
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(valid.sandbox.seccomp_profile()),
            ..PodSecurityContext::default()
        }),
        host_users: valid.sandbox.host_users(),
        ..PodSpec::default()
    }
}

/// Copies the template out of its image, at each start: the server decides whether the workspace gets it. The image runs with
/// the same rights as the agent and sees nothing of the workspace.
fn template_container(valid: &Valid) -> Option<Container> {
    let Some(TemplateSource::Image { image, path }) = &valid.template else { return None };
    let command = ["cp", "-R", &format!("{path}/."), volumes::TEMPLATE];
    Some(Container {
        name: "template".to_owned(),
        image: Some(image.clone()),
        command: Some(command.map(str::to_owned).to_vec()),
        resources: Some(resources(valid)),
        security_context: Some(restricted()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![volumes::template_target()]),
        ..Container::default()
    })
}

fn resources(valid: &Valid) -> ResourceRequirements {
    ResourceRequirements { requests: Some(valid.requests.clone()), limits: Some(valid.limits.clone()), claims: None }
}

/// What pod security level `restricted` asks of a container, and a root that cannot be written.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        privileged: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

fn container(valid: &Valid) -> Container {
    Container {
        name: "agent".to_owned(),
        image: Some(valid.image.clone()),
        image_pull_policy: Some(
            match valid.image_pull_policy {
                ImagePullPolicy::Always => "Always",
                ImagePullPolicy::IfNotPresent => "IfNotPresent",
                ImagePullPolicy::Never => "Never",
            }
            .to_owned(),
        ),
        env: Some(environment(valid)),
        ports: Some(vec![container_port("http", HTTP_PORT), container_port("metrics", METRICS_PORT)]),
        // A start is seen within a second. No startup probe (it only delays) and no liveness probe (it kills busy servers).
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                path: Some("/ready".to_owned()),
                port: IntOrString::String("http".to_owned()),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(1),
            failure_threshold: Some(3),
            ..Probe::default()
        }),
        resources: Some(resources(valid)),
        security_context: Some(SecurityContext { proc_mount: valid.sandbox.proc_mount(), ..restricted() }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(volumes::mounts(valid)),
        ..Container::default()
    }
}

/// The user's variables first; ours come last and win. `$` is doubled: the kubelet would expand `$(NAME)` in values.
fn environment(valid: &Valid) -> Vec<EnvVar> {
    let raw = |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), value_from: None };
    let plain = |name: &str, value: &str| raw(name, value.replace('$', "$$"));
    let ours = own_environment(valid);
    let users = valid.env.iter().filter(|(name, _)| !ours.contains_key(name.as_str()));
    let mut variables: Vec<EnvVar> = users.map(|(name, value)| plain(name, value)).collect();
    // Before the audience, which refers to it.
    variables.push(EnvVar {
        name: "BORING_AGENT_POD_UID".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "metadata.uid".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
    });
    variables.extend(ours.iter().map(|(name, value)| plain(name, value)));
    variables.push(raw(
        "BORING_AGENT_TOKEN_AUDIENCE",
        format!("{}/{}/{}/$(BORING_AGENT_POD_UID)", valid.namespace, valid.name, valid.uid),
    ));
    variables
}

fn own_environment(valid: &Valid) -> BTreeMap<String, String> {
    let mut variables = valid.sandbox.environment();
    let always = [
        ("BORING_AGENT_HOST", "0.0.0.0".to_owned()),
        ("BORING_AGENT_PORT", HTTP_PORT.to_string()),
        ("BORING_AGENT_METRICS_PORT", METRICS_PORT.to_string()),
        ("BORING_AGENT_WORKSPACE_ROOT", volumes::WORKSPACE.to_owned()),
        ("BORING_AGENT_STATE_DIR", volumes::STATE.to_owned()),
        ("BORING_AGENT_WORKSPACE_ID", valid.uid.clone()),
        ("BORING_AGENT_TOKEN_KEYS_FILE", format!("{}/keys", volumes::POD)),
        ("BORING_AGENT_STOP_GRACE_SECONDS", valid.life.stop_grace_period_seconds.to_string()),
        // The kubelet makes the folders root:1000, which git takes for somebody else's.
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", volumes::WORKSPACE.to_owned()),
    ];
    variables.extend(always.map(|(name, value)| (name.to_owned(), value)));
    let optional = [
        ("BORING_AGENT_MODEL_PROVIDER", valid.model_provider.map(|provider| provider.as_str().to_owned())),
        ("BORING_AGENT_MODEL", valid.model_id.clone()),
        ("BORING_AGENT_MODEL_BASE_URL", valid.model_endpoint.as_ref().map(|(_, url)| url.clone())),
        (
            "BORING_AGENT_SYSTEM_PROMPT_FILE",
            valid.system_prompt.as_ref().map(|_| format!("{}/system-prompt", volumes::POD)),
        ),
        (
            valid.model_provider.unwrap_or(ModelProvider::Anthropic).key_variable(),
            valid.model_key.as_ref().map(|secret| format!("{}/{}", volumes::MODEL_KEY, secret.key)),
        ),
        (
            "BORING_AGENT_SETTINGS_FILE",
            valid.settings.as_ref().map(|_| format!("{}/{}", volumes::SETTINGS, volumes::SETTINGS_KEY)),
        ),
        ("BORING_AGENT_TEMPLATE_PATH", valid.template.as_ref().map(|_| volumes::TEMPLATE.to_owned())),
        (
            "BORING_AGENT_PYTHON_PACKAGES",
            (!valid.python_libraries.is_empty()).then(|| valid.python_libraries.join(" ")),
        ),
        (
            "BORING_AGENT_COMMAND_ENVIRONMENT_DIR",
            (!valid.command_environment.is_empty()).then(|| volumes::COMMAND_ENVIRONMENT.to_owned()),
        ),
        (
            "BORING_AGENT_COMMAND_FILES_DIR",
            (!valid.command_files.is_empty()).then(|| volumes::COMMAND_FILES.to_owned()),
        ),
    ];
    variables.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    variables
}

fn container_port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn toleration(toleration: &crd::Toleration) -> Toleration {
    Toleration {
        key: toleration.key.clone(),
        operator: toleration.operator.map(|operator| {
            match operator {
                TolerationOperator::Exists => "Exists",
                TolerationOperator::Equal => "Equal",
            }
            .to_owned()
        }),
        value: toleration.value.clone(),
        effect: toleration.effect.map(|effect| {
            match effect {
                TolerationEffect::NoSchedule => "NoSchedule",
                TolerationEffect::PreferNoSchedule => "PreferNoSchedule",
                TolerationEffect::NoExecute => "NoExecute",
            }
            .to_owned()
        }),
        toleration_seconds: toleration.toleration_seconds,
    }
}
