//! The command line. Every flag is an environment variable too: flags = environment = documentation.
//!
//! Owns names, defaults and parsing. Must not know what a setting changes.

use std::{collections::BTreeMap, net::SocketAddr};

use clap::{ArgAction, Args};

use crate::{
    crd::ImagePullPolicy,
    plan::{self, BUBBLEWRAP_PROFILE, BubblewrapSeccomp, ClusterDns, Peer},
    telemetry::LogFormat,
    trust::rotation::Times,
};

/// Labels of the operator's own pods, which network policies admit.
const OPERATOR_LABEL: (&str, &str) = ("app.kubernetes.io/name", "agent-workspace-operator");

/// Labels of the gateway's pods.
const GATEWAY_LABEL: (&str, &str) = ("app.kubernetes.io/name", "agent-workspace-gateway");

/// Where the operator runs; the same for all subcommands.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Namespace of the operator: its Lease and its key Secret live there.
    // Named apart from `--namespace` of the commands that include this group: two arguments of one name are one to clap.
    #[arg(
        id = "operator_namespace",
        long = "operator-namespace",
        env = "POD_NAMESPACE",
        default_value = "agent-workspace-system"
    )]
    pub namespace: String,
}

/// How logs look.
#[derive(Args, Clone, Debug)]
pub struct Logs {
    /// Format of the log on standard error.
    #[arg(long, env = "OPERATOR_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// What is logged, for example `info,operator=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,
}

/// Flags of `operator controller`.
#[derive(Args, Clone, Debug)]
pub struct ControllerArguments {
    /// Where the operator runs.
    #[command(flatten)]
    pub place: Place,
    /// How logs look.
    #[command(flatten)]
    pub logs: Logs,
    /// Name of this replica, unique among them: in a pod, the pod's name.
    #[arg(long, env = "POD_NAME", default_value = "operator-outside-of-a-cluster")]
    pub identity: String,
    /// Address of health, readiness and metrics.
    #[arg(long, env = "OPERATOR_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Wait for the Lease before acting. Without it there must be one replica.
    #[arg(long, env = "OPERATOR_LEADER_ELECTION", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub leader_election: bool,
    /// Workspaces worked on at once.
    #[arg(long, env = "OPERATOR_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Agent image of workspaces that name none.
    #[arg(long, env = "OPERATOR_AGENT_IMAGE")]
    pub agent_image: String,
    /// When the agent image is pulled, for workspaces that do not say.
    #[arg(long, env = "OPERATOR_AGENT_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = pull_policy)]
    pub agent_image_pull_policy: ImagePullPolicy,
    /// Prefix that names of Secrets must have to be mounted into a workspace; empty allows all.
    #[arg(long, env = "OPERATOR_ALLOWED_SECRET_PREFIX", default_value = "agent-")]
    pub allowed_secret_prefix: String,
    /// Seccomp profile of workspaces in sandbox mode Bubblewrap: `unconfined`, or `localhost/` and a path below the kubelet's
    /// seccomp folder.
    #[arg(long, env = "OPERATOR_BUBBLEWRAP_SECCOMP_PROFILE", default_value_t = format!("{LOCALHOST}{BUBBLEWRAP_PROFILE}"), value_parser = seccomp)]
    pub bubblewrap_seccomp_profile: String,
    /// Permit `spec.sandbox.onUnavailable: Degrade`.
    #[arg(long, env = "OPERATOR_ALLOW_SANDBOX_DEGRADE", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub allow_sandbox_degrade: bool,
    /// Address ranges of the cluster (pods, Services, nodes) that workspaces must not reach, comma-separated.
    #[arg(long, env = "OPERATOR_CLUSTER_CIDRS", default_value = "")]
    pub cluster_cidrs: String,
    /// Namespaces whose Services may be named in `spec.agent.model.baseUrl`, comma-separated; unset: none, not even the own one.
    #[arg(long, env = "OPERATOR_MODEL_NAMESPACES", default_value = "")]
    pub model_namespaces: String,
    /// Where the gateway serves a workspace, such as `https://{name}--{namespace}.agents.example.com`; written to `status.url`.
    #[arg(long, env = "OPERATOR_WORKSPACE_URL", value_parser = workspace_url)]
    pub workspace_url: Option<String>,
    /// Days after which the key pairs are replaced, while pods run; 0: only when asked for by annotating the key Secret.
    #[arg(long, env = "OPERATOR_KEY_ROTATION_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=3650))]
    pub key_rotation_days: u16,
    /// Labels of the namespace where DNS is answered: `key=value,…`.
    #[arg(long, env = "OPERATOR_DNS_NAMESPACE_LABELS", default_value = "kubernetes.io/metadata.name=kube-system", value_parser = labels)]
    pub dns_namespace_labels: Labels,
    /// Labels of the pods that answer DNS: `key=value,…`.
    #[arg(long, env = "OPERATOR_DNS_POD_LABELS", default_value = "k8s-app=kube-dns", value_parser = labels)]
    pub dns_pod_labels: Labels,
    /// Address ranges that answer DNS besides those pods, comma-separated.
    #[arg(long, env = "OPERATOR_DNS_CIDRS", default_value = "")]
    pub dns_cidrs: String,
    /// Labels of namespaces that may read the metrics of workspaces; unset: nobody, empty: all.
    #[arg(long, env = "OPERATOR_METRICS_FROM_NAMESPACE_LABELS", value_parser = labels)]
    pub metrics_from_namespace_labels: Option<Labels>,
    /// Labels of pods that may read the metrics of workspaces; unset: nobody, empty: all.
    #[arg(long, env = "OPERATOR_METRICS_FROM_POD_LABELS", value_parser = labels)]
    pub metrics_from_pod_labels: Option<Labels>,
}

/// Labels that must all be equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(pub BTreeMap<String, String>);

/// Parses `key=value,key=value`; the empty text is the empty map.
fn labels(text: &str) -> Result<Labels, String> {
    let parse = |pair: &str| match pair.trim().split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{pair:?} is not key=value")),
    };
    text.split(',').filter(|pair| !pair.trim().is_empty()).map(parse).collect::<Result<_, _>>().map(Labels)
}

/// Both places must be there, else two workspaces would have one address.
fn workspace_url(text: &str) -> Result<String, String> {
    let web = text.starts_with("https://") || text.starts_with("http://");
    if web && text.len() <= 256 && text.contains("{name}") && text.contains("{namespace}") {
        return Ok(text.to_owned());
    }
    Err("an http or https address of at most 256 characters with {name} and {namespace} in it".to_owned())
}

const LOCALHOST: &str = "localhost/";

fn seccomp(text: &str) -> Result<String, String> {
    let path = text.strip_prefix(LOCALHOST);
    let sound = |path: &str| !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..");
    if text == "unconfined" || path.is_some_and(sound) {
        Ok(text.to_owned())
    } else {
        Err(format!("`unconfined`, or `{LOCALHOST}` and a relative path without `..`"))
    }
}

fn pull_policy(text: &str) -> Result<ImagePullPolicy, String> {
    match text {
        "Always" => Ok(ImagePullPolicy::Always),
        "IfNotPresent" => Ok(ImagePullPolicy::IfNotPresent),
        "Never" => Ok(ImagePullPolicy::Never),
        _ => Err("one of Always, IfNotPresent, Never".to_owned()),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

impl ControllerArguments {
    /// How often key pairs are replaced.
    pub fn key_rotation(&self) -> Times {
        Times::new((self.key_rotation_days > 0).then_some(i64::from(self.key_rotation_days) * 86_400))
    }

    /// What decisions depend on.
    pub fn plan_config(&self) -> plan::Config {
        let metrics_from = match (&self.metrics_from_namespace_labels, &self.metrics_from_pod_labels) {
            (None, None) => Vec::new(),
            (namespaces, pods) => vec![Peer {
                namespace_labels: namespaces.clone().unwrap_or_default().0,
                pod_labels: pods.clone().unwrap_or_default().0,
            }],
        };
        plan::Config {
            default_image: self.agent_image.clone(),
            default_image_pull_policy: self.agent_image_pull_policy,
            allowed_secret_prefix: self.allowed_secret_prefix.clone(),
            operator_namespace: self.place.namespace.clone(),
            operator_labels: BTreeMap::from([(OPERATOR_LABEL.0.to_owned(), OPERATOR_LABEL.1.to_owned())]),
            gateway_labels: BTreeMap::from([(GATEWAY_LABEL.0.to_owned(), GATEWAY_LABEL.1.to_owned())]),
            dns: ClusterDns {
                peers: vec![Peer {
                    namespace_labels: self.dns_namespace_labels.0.clone(),
                    pod_labels: self.dns_pod_labels.0.clone(),
                }],
                cidrs: list(&self.dns_cidrs),
            },
            metrics_from,
            cluster_cidrs: list(&self.cluster_cidrs),
            model_namespaces: list(&self.model_namespaces).into_iter().collect(),
            workspace_url: self.workspace_url.clone(),
            bubblewrap_seccomp: match self.bubblewrap_seccomp_profile.strip_prefix(LOCALHOST) {
                Some(path) => BubblewrapSeccomp::Localhost(path.to_owned()),
                None => BubblewrapSeccomp::Unconfined,
            },
            allow_degrade: self.allow_sandbox_degrade,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        controller: ControllerArguments,
    }

    fn config(arguments: &[&str]) -> plan::Config {
        let all = ["operator", "--agent-image", "registry/agent:1"].into_iter().chain(arguments.iter().copied());
        Program::try_parse_from(all).map_err(|error| error.to_string()).unwrap().controller.plan_config()
    }

    #[test]
    fn without_flags_the_configuration_is_the_documented_one() {
        let expected = plan::Config { default_image: "registry/agent:1".to_owned(), ..plan::Config::default() };
        assert_eq!(config(&[]), expected);
    }

    #[test]
    fn metrics_are_for_nobody_when_unset_and_for_all_when_empty() {
        assert_eq!(config(&[]).metrics_from, []);
        assert_eq!(config(&["--metrics-from-namespace-labels", ""]).metrics_from, [Peer::default()]);
    }

    #[test]
    fn an_address_of_workspaces_names_both_parts() {
        let read = config(&["--workspace-url", "https://{name}--{namespace}.example.com"]);
        assert_eq!(read.workspace_url("team-a", "alice").as_deref(), Some("https://alice--team-a.example.com"));
        assert_eq!(read.workspace_url("team-a", &"a".repeat(60)), None);
        let refused = Program::try_parse_from(["operator", "--agent-image", "a", "--workspace-url", "https://{name}"]);
        assert!(refused.err().unwrap().to_string().contains("{namespace}"));
    }

    #[test]
    fn the_seccomp_profile_is_a_relative_path_or_none() {
        let read =
            config(&["--bubblewrap-seccomp-profile", "localhost/mine/a.json", "--allow-sandbox-degrade", "true"]);
        assert_eq!(read.bubblewrap_seccomp, BubblewrapSeccomp::Localhost("mine/a.json".to_owned()));
        assert!(read.allow_degrade);
        assert_eq!(
            config(&["--bubblewrap-seccomp-profile", "unconfined"]).bubblewrap_seccomp,
            BubblewrapSeccomp::Unconfined
        );
        for profile in ["localhost//etc/x", "localhost/../x", "runtime/default", "localhost/"] {
            let all = ["operator", "--agent-image", "a", "--bubblewrap-seccomp-profile", profile];
            assert!(Program::try_parse_from(all).is_err(), "{profile}");
        }
    }

    #[test]
    fn lists_and_labels_are_read_and_rubbish_is_refused() {
        let read = config(&["--model-namespaces", "models, agent-demo"]);
        assert!(read.model_namespaces.iter().eq(["agent-demo", "models"]));
        let read = config(&["--cluster-cidrs", "10.0.0.0/8, 10.1.0.0/16", "--dns-pod-labels", "a=b,c=d"]);
        assert_eq!(read.cluster_cidrs, ["10.0.0.0/8", "10.1.0.0/16"]);
        assert_eq!(read.dns.peers[0].pod_labels.len(), 2);
        let refused = Program::try_parse_from(["operator", "--agent-image", "a", "--dns-pod-labels", "a"]);
        assert!(refused.err().unwrap().to_string().contains("is not key=value"));
    }
}
