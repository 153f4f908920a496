//! What the operator was configured with, as plain values. Knows nothing of flags (`config.rs` of the crate reads them).

use std::collections::{BTreeMap, BTreeSet};

use crate::crd::{Exposure, ImagePullPolicy};

use super::sandbox::BubblewrapSeccomp;

/// Settings of the operator that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Agent image of workspaces that name none.
    pub default_image: String,
    /// When that image, or one of a workspace that does not say, is pulled.
    pub default_image_pull_policy: ImagePullPolicy,
    /// Prefix that names of Secrets must have to be mounted: who may only create workspaces must not read every Secret through the operator.
    pub allowed_secret_prefix: String,
    /// Namespace of the operator's pods, which may call the pod's port 8787.
    pub operator_namespace: String,
    /// Labels of the operator's pods.
    pub operator_labels: LabelSelectorText,
    /// Labels of the gateway's pods, in the same namespace.
    pub gateway_labels: LabelSelectorText,
    /// Where DNS is answered.
    pub dns: ClusterDns,
    /// Who may read the pod's metrics port; nobody when empty.
    pub metrics_from: Vec<Peer>,
    /// The cluster's own ranges (pods, Services, nodes), excluded from egress to public addresses besides the private ranges.
    pub cluster_cidrs: Vec<String>,
    /// Namespaces whose Services a workspace may name as its model's address. None unless named: not its own either.
    pub model_namespaces: BTreeSet<String>,
    /// Where the gateway serves a workspace, with `{name}` and `{namespace}` in it; `None` without a gateway.
    pub workspace_url: Option<String>,
    /// Seccomp profile of pods in mode Bubblewrap.
    pub bubblewrap_seccomp: BubblewrapSeccomp,
    /// `spec.sandbox.onUnavailable: Degrade` is permitted.
    pub allow_degrade: bool,
}

impl Config {
    /// Where this workspace is reached. `None` without a gateway, and for a name that with its namespace does not fit in one
    /// label of a host name (the admission policy of the chart refuses those).
    pub fn workspace_url(&self, namespace: &str, name: &str) -> Option<String> {
        // A label has 63 characters, two of them are the dashes between both.
        const LONGEST: usize = 61;
        let fits =
            |pattern: &&String| !pattern.contains("{name}--{namespace}") || name.len() + namespace.len() <= LONGEST;
        let pattern = self.workspace_url.as_ref().filter(fits)?;
        Some(pattern.replace("{name}", name).replace("{namespace}", namespace))
    }

    /// Who can open a connection to a workspace that says this: through the gateway where there is one.
    pub fn exposure(&self, wanted: Option<Exposure>) -> Exposure {
        let builtin = if self.workspace_url.is_some() { Exposure::Gateway } else { Exposure::ClusterLocal };
        wanted.unwrap_or(builtin)
    }
}

/// The profile that the chart ships, below the kubelet's seccomp folder.
pub const BUBBLEWRAP_PROFILE: &str = "agent-workspace-operator/bubblewrap.json";

/// Labels that must all be equal.
pub type LabelSelectorText = BTreeMap<String, String>;

/// Pods by namespace labels and pod labels; an empty map selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Labels of the namespace.
    pub namespace_labels: LabelSelectorText,
    /// Labels of the pod.
    pub pod_labels: LabelSelectorText,
}

/// Where DNS is answered: by pods, and besides by addresses (node-local caches, resolvers outside of the cluster).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDns {
    /// Pods that answer.
    pub peers: Vec<Peer>,
    /// Ranges that answer.
    pub cidrs: Vec<String>,
}

impl Default for Config {
    /// What holds on a cluster set up by common tools; used by tests, and by the flags as their defaults.
    fn default() -> Self {
        let label = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Self {
            default_image: "agent-server:dev".to_owned(),
            default_image_pull_policy: ImagePullPolicy::IfNotPresent,
            allowed_secret_prefix: "agent-".to_owned(),
            operator_namespace: "agent-workspace-system".to_owned(),
            operator_labels: label("app.kubernetes.io/name", "agent-workspace-operator"),
            gateway_labels: label("app.kubernetes.io/name", "agent-workspace-gateway"),
            dns: ClusterDns {
                peers: vec![Peer {
                    namespace_labels: label("kubernetes.io/metadata.name", "kube-system"),
                    pod_labels: label("k8s-app", "kube-dns"),
                }],
                cidrs: Vec::new(),
            },
            metrics_from: Vec::new(),
            cluster_cidrs: Vec::new(),
            model_namespaces: BTreeSet::new(),
            workspace_url: None,
            bubblewrap_seccomp: BubblewrapSeccomp::Localhost(BUBBLEWRAP_PROFILE.to_owned()),
            allow_degrade: false,
        }
    }
}
