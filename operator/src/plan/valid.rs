//! Raw spec → [`Valid`]: what holds after the built-in values, in types that later steps cannot fail on.
//!
//! The API server's schema refuses most of this first; it is checked again because objects may have been stored under an
//! older schema, and because some rules (the prefix of Secret names) are the operator's settings.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sha2::{Digest, Sha256};

use crate::crd::{
    AccessMode, Credential, CredentialPurpose, Exposure, ImagePullPolicy, ModelProvider, Reason, Resources,
    SecretKeyReference, Storage as RawStorage, Toleration, WhenDeleted,
};

pub use super::life::Life;
use super::{
    Config, Sandbox, WorkspaceView, builtin,
    endpoint::Endpoint,
    hex,
    provisioning::{self, TemplateSource},
    quantity::Amount,
};

/// A workspace whose spec can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Valid {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Hex SHA-256 of `owner.user`.
    pub owner_user: Option<String>,
    /// Image.
    pub image: String,
    /// When the image is pulled.
    pub image_pull_policy: ImagePullPolicy,
    /// Provider, when named.
    pub model_provider: Option<ModelProvider>,
    /// Model, when named.
    pub model_id: Option<String>,
    /// Where the provider is, and its address, when named.
    pub model_endpoint: Option<(Endpoint, String)>,
    /// Text for the end of the system prompt.
    pub system_prompt: Option<String>,
    /// Key for the model provider.
    pub model_key: Option<SecretKeyReference>,
    /// Variables of commands, by name.
    pub command_environment: BTreeMap<String, SecretKeyReference>,
    /// Files of commands, by name.
    pub command_files: BTreeMap<String, SecretKeyReference>,
    /// Environment of the server.
    pub env: BTreeMap<String, String>,
    /// Requests of the container.
    pub requests: BTreeMap<String, Quantity>,
    /// Limits of the container.
    pub limits: BTreeMap<String, Quantity>,
    /// How commands are run.
    pub sandbox: Sandbox,
    /// Where files are.
    pub storage: Storage,
    /// When it runs.
    pub life: Life,
    /// Files of a fresh workspace.
    pub template: Option<TemplateSource>,
    /// Python libraries for commands, sorted.
    pub python_libraries: Vec<String>,
    /// ConfigMap with the defaults of settings.
    pub settings: Option<String>,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerated taints.
    pub tolerations: Vec<Toleration>,
    /// Priority class.
    pub priority_class_name: Option<String>,
    /// Labels added to the pod.
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations added to the pod.
    pub pod_annotations: BTreeMap<String, String>,
    /// Who can open a connection.
    pub exposure: Exposure,
}

/// Where files are.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// In a claim.
    Persistent {
        /// Requested size.
        size: Quantity,
        /// StorageClass, when named.
        class: Option<String>,
        /// Access mode.
        access_mode: AccessMode,
        /// What happens to it with the workspace.
        when_deleted: WhenDeleted,
    },
    /// On the node.
    Ephemeral {
        /// Limit.
        size_limit: Quantity,
    },
}

/// Why a spec cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// Word for condition and event.
    pub reason: Reason,
    /// What is wrong and how to repair it.
    pub message: String,
}

impl Invalid {
    pub(super) fn spec(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into() }
    }
}

impl Valid {
    /// Whether chat cannot work for want of a key. A server over plain http that speaks chat completions may need none
    /// (docs/contract.md); it says itself when it does.
    pub fn lacks_model_key(&self) -> bool {
        let own_server = self.model_provider == Some(ModelProvider::Openai)
            && self.model_endpoint.as_ref().is_some_and(|(_, url)| url.starts_with("http://"));
        self.model_key.is_none() && !own_server
    }

    /// Parses the spec of a workspace.
    pub fn parse(config: &Config, workspace: &WorkspaceView) -> Result<Self, Invalid> {
        let spec = workspace.spec.clone();
        let agent = spec.agent.unwrap_or_default();
        let model = agent.model.unwrap_or_default();
        let scheduling = spec.scheduling.unwrap_or_default();
        let pod_metadata = spec.pod_metadata.unwrap_or_default();
        let storage = storage(spec.storage.unwrap_or_default())?;
        let (requests, limits) = resources(spec.resources.unwrap_or_default(), &storage)?;
        let credentials = Credentials::parse(config, agent.credentials)?;
        let model_endpoint =
            model.base_url.map(|url| Ok((endpoint(config, &url, &workspace.namespace)?, url))).transpose()?;
        if model.provider == Some(ModelProvider::Openai) && model.id.is_none() {
            return Err(Invalid::spec("spec.agent.model.id is needed with provider openai"));
        }
        let sandbox = Sandbox::parse(config, spec.sandbox.unwrap_or_default())?;
        let python_libraries = provisioning::python_libraries(spec.libraries.unwrap_or_default())?;
        sandbox.admits_libraries(&python_libraries, spec.template.is_some())?;
        Ok(Self {
            name: workspace.name.clone(),
            namespace: workspace.namespace.clone(),
            uid: workspace.uid.clone(),
            owner_user: spec.owner.map(|owner| hex(&Sha256::digest(owner.user.as_bytes()))),
            image: agent.image.unwrap_or_else(|| config.default_image.clone()),
            image_pull_policy: agent.image_pull_policy.unwrap_or(config.default_image_pull_policy),
            model_provider: model.provider,
            model_id: model.id,
            model_endpoint,
            system_prompt: agent.system_prompt,
            model_key: credentials.model_key,
            command_environment: credentials.environment,
            command_files: credentials.files,
            env: environment(agent.env)?,
            requests,
            limits,
            sandbox,
            storage,
            life: Life::parse(&workspace.spec)?,
            template: spec.template.map(|raw| TemplateSource::parse(config, raw)).transpose()?,
            python_libraries,
            settings: agent.settings_ref.map(|raw| provisioning::settings(config, raw)).transpose()?,
            node_selector: scheduling.node_selector,
            tolerations: scheduling.tolerations,
            priority_class_name: priority_class(scheduling.priority_class_name)?,
            pod_labels: pod_metadata_keys("labels", pod_metadata.labels)?,
            pod_annotations: pod_metadata_keys("annotations", pod_metadata.annotations)?,
            exposure: config.exposure(spec.access.and_then(|access| access.exposure)),
        })
    }

    /// Name of pod, Service and NetworkPolicy.
    pub fn agent_name(&self) -> String {
        agent_name(&self.name)
    }

    /// Name of the claim.
    pub fn claim_name(&self) -> String {
        claim_name(&self.name)
    }
}

/// Name of pod, Service and NetworkPolicy of a workspace.
pub fn agent_name(workspace: &str) -> String {
    format!("{workspace}-agent")
}

/// Name of the claim of a workspace.
pub fn claim_name(workspace: &str) -> String {
    format!("{workspace}-home")
}

fn endpoint(config: &Config, url: &str, own_namespace: &str) -> Result<Endpoint, Invalid> {
    let endpoint = Endpoint::parse(url, own_namespace).ok_or_else(|| {
        Invalid::spec("spec.agent.model.baseUrl must be an http or https address with a host and without a user")
    })?;
    match &endpoint {
        Endpoint::Cluster(place) if !config.model_namespaces.contains(&place.namespace) => Err(Invalid {
            reason: Reason::ModelEndpointNotAllowed,
            message: format!(
                "spec.agent.model.baseUrl: workspaces may not reach namespace {}; name another address, or have the operator permit it with --model-namespaces (networkPolicy.modelNamespaces of the chart)",
                place.namespace
            ),
        }),
        Endpoint::Cluster(_) | Endpoint::Outside => Ok(endpoint),
    }
}

fn storage(raw: RawStorage) -> Result<Storage, Invalid> {
    let checked = |field: &str, value: Option<Quantity>, built_in: &str| {
        let value = value.unwrap_or_else(|| Quantity(built_in.to_owned()));
        match Amount::of(&value) {
            Some(_) => Ok(value),
            None => Err(Invalid::spec(format!("spec.storage.{field} is not a quantity: {:?}", value.0))),
        }
    };
    if let Some(ephemeral) = raw.ephemeral {
        if raw.size.is_some()
            || raw.storage_class_name.is_some()
            || raw.access_mode.is_some()
            || raw.retention.is_some()
        {
            return Err(Invalid::spec("spec.storage.ephemeral excludes every other field of spec.storage"));
        }
        let size_limit = checked("ephemeral.sizeLimit", ephemeral.size_limit, builtin::EPHEMERAL_SIZE_LIMIT)?;
        return Ok(Storage::Ephemeral { size_limit });
    }
    Ok(Storage::Persistent {
        size: checked("size", raw.size, builtin::STORAGE_SIZE)?,
        class: raw.storage_class_name,
        access_mode: raw.access_mode.unwrap_or(AccessMode::ReadWriteOnce),
        when_deleted: raw.retention.and_then(|retention| retention.when_deleted).unwrap_or(WhenDeleted::Retain),
    })
}

/// Requests and limits by resource name.
type Quantities = BTreeMap<String, Quantity>;

fn resources(raw: Resources, storage: &Storage) -> Result<(Quantities, Quantities), Invalid> {
    let amount = |field: &str, name: &str, quantity: &Quantity| {
        Amount::of(quantity)
            .ok_or_else(|| Invalid::spec(format!("spec.resources.{field}.{name} is not a quantity: {:?}", quantity.0)))
    };
    let (mut requests, mut limits) = (raw.requests, raw.limits);
    for (name, quantity) in &requests {
        let requested = amount("requests", name, quantity)?;
        if let Some(limit) = limits.get(name)
            && requested > amount("limits", name, limit)?
        {
            return Err(Invalid::spec(format!("spec.resources.requests.{name} exceeds spec.resources.limits.{name}")));
        }
    }
    for (name, built_in) in builtin::LIMITS {
        if limits.contains_key(*name) {
            continue;
        }
        let mut limit = Quantity((*built_in).to_owned());
        if let (Storage::Ephemeral { size_limit }, "ephemeral-storage") = (storage, *name)
            && let (Some(base), Some(extra)) = (Amount::of(&limit), Amount::of(size_limit))
        {
            limit = base.plus(extra);
        }
        if let Some(request) = requests.get(*name)
            && Amount::of(request) > Amount::of(&limit)
        {
            limit = request.clone();
        }
        limits.insert((*name).to_owned(), limit);
    }
    for (name, built_in) in builtin::REQUESTS {
        if requests.contains_key(*name) {
            continue;
        }
        let mut request = Quantity((*built_in).to_owned());
        if let Some(limit) = limits.get(*name)
            && amount("limits", name, limit)? < amount("requests", name, &request)?
        {
            request = limit.clone();
        }
        requests.insert((*name).to_owned(), request);
    }
    Ok((requests, limits))
}

#[derive(Default)]
struct Credentials {
    model_key: Option<SecretKeyReference>,
    environment: BTreeMap<String, SecretKeyReference>,
    files: BTreeMap<String, SecretKeyReference>,
}

impl Credentials {
    fn parse(config: &Config, raw: Vec<Credential>) -> Result<Self, Invalid> {
        let mut credentials = Self::default();
        for Credential { name, secret_key_ref, purpose } in raw {
            if !secret_key_ref.name.starts_with(&config.allowed_secret_prefix) {
                return Err(Invalid {
                    reason: Reason::SecretNotAllowed,
                    message: format!(
                        "credential {name}: secret {} may not be used, its name must begin with {:?}; rename the secret or ask for another --allowed-secret-prefix",
                        secret_key_ref.name, config.allowed_secret_prefix
                    ),
                });
            }
            let (taken, target) = match purpose {
                CredentialPurpose::ModelKey => {
                    if credentials.model_key.replace(secret_key_ref).is_some() {
                        return Err(Invalid::spec(
                            "spec.agent.credentials: at most one credential has purpose ModelKey",
                        ));
                    }
                    continue;
                }
                CredentialPurpose::Environment => (is_variable_name(&name), &mut credentials.environment),
                CredentialPurpose::File => (is_file_name(&name), &mut credentials.files),
            };
            if !taken {
                return Err(Invalid::spec(format!("spec.agent.credentials: {name:?} is not a name for its purpose")));
            }
            target.insert(name, secret_key_ref);
        }
        Ok(credentials)
    }
}

fn is_variable_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
}

fn is_file_name(name: &str) -> bool {
    !name.starts_with('.')
        && !name.is_empty()
        && name.chars().all(|character| character.is_ascii_alphanumeric() || "._-".contains(character))
}

fn environment(raw: Vec<crate::crd::EnvironmentVariable>) -> Result<BTreeMap<String, String>, Invalid> {
    let reserved = |name: &str| {
        ["BORING_AGENT_", "LD_", "KUBERNETES_", "GIT_CONFIG_"].iter().any(|prefix| name.starts_with(prefix))
            || name.to_ascii_uppercase().ends_with("_PROXY")
            || [ModelProvider::Anthropic, ModelProvider::Openai].iter().any(|provider| name == provider.key_variable())
    };
    raw.into_iter()
        .map(|variable| {
            if reserved(&variable.name) || !is_variable_name(&variable.name) {
                return Err(Invalid::spec(format!("spec.agent.env: {} cannot be set", variable.name)));
            }
            Ok((variable.name, variable.value))
        })
        .collect()
}

fn priority_class(name: Option<String>) -> Result<Option<String>, Invalid> {
    match name {
        Some(name) if name.starts_with("system-") => {
            Err(Invalid::spec("spec.scheduling.priorityClassName: classes of the cluster itself are not permitted"))
        }
        name => Ok(name),
    }
}

fn pod_metadata_keys(field: &str, keys: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Invalid> {
    const RESERVED: [&str; 5] = ["kubernetes.io", "k8s.io", "agents.boring.dev", "argoproj.io", "fluxcd.io"];
    for key in keys.keys() {
        let permitted = key.split_once('/').is_some_and(|(prefix, _)| {
            !RESERVED
                .iter()
                .any(|domain| prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
        });
        if !permitted {
            return Err(Invalid::spec(format!(
                "spec.podMetadata.{field}: key {key} needs a prefix such as example.com/ that is not one of {}",
                RESERVED.join(", ")
            )));
        }
    }
    Ok(keys)
}
