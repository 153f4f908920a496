//! Volumes of the pod and where they are mounted (docs/contract.md, "Container").

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, KeyToPath,
        ObjectFieldSelector, PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretProjection,
        SecretVolumeSource, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    crd::{ANNOTATION_KEYS, ANNOTATION_SYSTEM_PROMPT, SecretKeyReference},
    plan::{Valid, provisioning::TemplateSource, valid::Storage},
};

/// Root that commands see.
pub(super) const WORKSPACE: &str = "/workspace";
/// Sessions and logs.
pub(super) const STATE: &str = "/var/lib/boring-agent";
/// Facts about the pod itself.
pub(super) const POD: &str = "/run/boring-agent/pod";
/// Key for the model provider.
pub(super) const MODEL_KEY: &str = "/run/boring-agent/model-key";
/// Variables of commands.
pub(super) const COMMAND_ENVIRONMENT: &str = "/run/boring-agent/command-environment";
/// Files of commands.
pub(super) const COMMAND_FILES: &str = "/run/boring-agent/command-files";

/// Files that a fresh workspace gets; commands may see them.
pub(super) const TEMPLATE: &str = "/run/boring-agent/template";
/// Defaults of settings, and the key that holds them.
pub(super) const SETTINGS: &str = "/run/boring-agent/settings";
pub(super) const SETTINGS_KEY: &str = "settings";
/// Largest template out of an image. With /tmp and /run it stays below the limit of ephemeral storage.
const TEMPLATE_SIZE: &str = "512Mi";

/// Owner may read; the kubelet adds the volume group, so the server reads it as 0440 root:1000.
const SECRET_MODE: i32 = 0o400;
/// Everybody may read: keys that verify tokens are public.
const PUBLIC_MODE: i32 = 0o444;

/// The volumes.
pub(super) fn volumes(valid: &Valid) -> Vec<Volume> {
    let mut volumes = vec![home(valid), empty("tmp", "1Gi"), empty("run", "64Mi"), pod_facts(valid)];
    if let Some(secret) = &valid.model_key {
        volumes.push(Volume {
            name: "model-key".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.name.clone()),
                items: Some(vec![item(&secret.key, &secret.key)]),
                default_mode: Some(SECRET_MODE),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
    volumes.extend(valid.template.as_ref().map(template));
    volumes.extend(valid.settings.as_ref().map(|name| config_map("settings", name, Some(SETTINGS_KEY))));
    volumes.extend(projected("command-environment", &valid.command_environment));
    volumes.extend(projected("command-files", &valid.command_files));
    volumes
}

/// The mounts, outer ones first.
pub(super) fn mounts(valid: &Valid) -> Vec<VolumeMount> {
    let mut mounts = vec![
        VolumeMount { sub_path: Some("workspace".to_owned()), ..mount("home", WORKSPACE) },
        VolumeMount { sub_path: Some("state".to_owned()), ..mount("home", STATE) },
        mount("tmp", "/tmp"),
        mount("run", "/run"),
        read_only("pod", POD),
    ];
    if valid.model_key.is_some() {
        mounts.push(read_only("model-key", MODEL_KEY));
    }
    if valid.settings.is_some() {
        mounts.push(read_only("settings", SETTINGS));
    }
    if valid.template.is_some() {
        mounts.push(read_only("template", TEMPLATE));
    }
    if !valid.command_environment.is_empty() {
        mounts.push(read_only("command-environment", COMMAND_ENVIRONMENT));
    }
    if !valid.command_files.is_empty() {
        mounts.push(read_only("command-files", COMMAND_FILES));
    }
    mounts
}

/// Where the container that unpacks an image writes.
pub(super) fn template_target() -> VolumeMount {
    mount("template", TEMPLATE)
}

fn template(source: &TemplateSource) -> Volume {
    match source {
        TemplateSource::ConfigMap { name } => config_map("template", name, None),
        TemplateSource::Image { .. } => empty("template", TEMPLATE_SIZE),
    }
}

/// All keys of a ConfigMap, or one of them.
fn config_map(volume: &str, name: &str, key: Option<&str>) -> Volume {
    Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: name.to_owned(),
            items: key.map(|key| vec![item(key, key)]),
            default_mode: Some(PUBLIC_MODE),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn home(valid: &Valid) -> Volume {
    let mut volume = Volume { name: "home".to_owned(), ..Volume::default() };
    match &valid.storage {
        Storage::Persistent { .. } => {
            volume.persistent_volume_claim =
                Some(PersistentVolumeClaimVolumeSource { claim_name: valid.claim_name(), read_only: None });
        }
        Storage::Ephemeral { size_limit } => {
            volume.empty_dir =
                Some(EmptyDirVolumeSource { size_limit: Some(size_limit.clone()), ..EmptyDirVolumeSource::default() });
        }
    }
    volume
}

fn empty(name: &str, size_limit: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(size_limit.to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn pod_facts(valid: &Valid) -> Volume {
    let file = |path: &str, annotation: &str| DownwardAPIVolumeFile {
        path: path.to_owned(),
        field_ref: Some(ObjectFieldSelector {
            field_path: format!("metadata.annotations['{annotation}']"),
            ..ObjectFieldSelector::default()
        }),
        ..DownwardAPIVolumeFile::default()
    };
    let mut items = vec![file("keys", ANNOTATION_KEYS)];
    if valid.system_prompt.is_some() {
        items.push(file("system-prompt", ANNOTATION_SYSTEM_PROMPT));
    }
    Volume {
        name: "pod".to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(items),
            default_mode: Some(PUBLIC_MODE),
            ..DownwardAPIVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn projected(name: &str, credentials: &BTreeMap<String, SecretKeyReference>) -> Option<Volume> {
    let sources: Vec<VolumeProjection> = credentials
        .iter()
        .map(|(path, secret)| VolumeProjection {
            secret: Some(SecretProjection {
                name: secret.name.clone(),
                items: Some(vec![item(&secret.key, path)]),
                optional: None,
            }),
            ..VolumeProjection::default()
        })
        .collect();
    (!sources.is_empty()).then(|| Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            default_mode: Some(SECRET_MODE),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    })
}

fn item(key: &str, path: &str) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: path.to_owned(), ..KeyToPath::default() }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..mount(name, path) }
}
