//! Where `agent.model.baseUrl` points, and what of that a NetworkPolicy may open.
//!
//! A policy sees pods, not Services: a model server inside the cluster is opened by its Service's selector and target port,
//! and only in namespaces that the operator's setting permits. Whoever may create workspaces could reach any pod otherwise.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::crd::AgentWorkspaceSpec;

use super::Config;

/// The place of a model endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service of the cluster.
    Cluster(ClusterEndpoint),
    /// A name or address outside of the cluster.
    Outside,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Namespace of the Service, and so of its pods.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Its port.
    pub port: u16,
}

/// A Service as far as a policy needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceView {
    /// `spec.selector`.
    pub selector: BTreeMap<String, String>,
    /// `port` and `targetPort` of its TCP ports.
    pub ports: Vec<(i32, IntOrString)>,
}

/// What the API server knows of the Service behind a model endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelService {
    /// There is none of this name.
    Missing,
    /// It exists.
    Found(ServiceView),
}

/// Pods and port that a policy opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPods {
    /// Their namespace.
    pub namespace: String,
    /// Their labels.
    pub labels: BTreeMap<String, String>,
    /// Their port, by number or name.
    pub port: IntOrString,
}

impl Endpoint {
    /// Reads the host of an `http` or `https` address. `own_namespace` is where a name without a dot is looked up.
    ///
    /// Cluster names are `service`, `service.namespace.svc` and whatever follows (`.cluster.local`). `service.namespace` alone
    /// cannot be told from a public name and counts as one.
    pub fn parse(url: &str, own_namespace: &str) -> Option<Self> {
        let (rest, usual_port) = match url.strip_prefix("https://") {
            Some(rest) => (rest, 443),
            None => (url.strip_prefix("http://")?, 80),
        };
        let authority = rest.split('/').next().filter(|authority| !authority.is_empty() && !authority.contains('@'))?;
        if authority.starts_with('[') {
            return authority.contains(']').then_some(Self::Outside);
        }
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, usual_port),
        };
        if host.is_empty() {
            return None;
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let labels: Vec<&str> = host.split('.').collect();
        let cluster = |service: &str, namespace: &str| {
            Self::Cluster(ClusterEndpoint { namespace: namespace.to_owned(), service: service.to_owned(), port })
        };
        Some(match labels.as_slice() {
            ["localhost"] => Self::Outside,
            [service] => cluster(service, own_namespace),
            [service, namespace, "svc", ..] => cluster(service, namespace),
            _ => Self::Outside,
        })
    }
}

impl ClusterEndpoint {
    /// What a policy has to open; else why chat cannot work, for people.
    pub fn pods(&self, known: Option<&ModelService>) -> Result<ModelPods, String> {
        let Self { namespace, service, port } = self;
        let place = format!("Service {service} in namespace {namespace}, which spec.agent.model.baseUrl names,");
        let Some(ModelService::Found(view)) = known else { return Err(format!("{place} does not exist")) };
        if view.selector.is_empty() {
            return Err(format!("{place} has no selector, so no network policy can open a way to its pods"));
        }
        let found = view.ports.iter().find(|(number, _)| *number == i32::from(*port));
        let Some((_, target)) = found else { return Err(format!("{place} has no TCP port {port}")) };
        Ok(ModelPods { namespace: namespace.clone(), labels: view.selector.clone(), port: target.clone() })
    }
}

/// Namespace and name of the Service that has to be known before a decision about this workspace. Those in namespaces that are not permitted
/// are none of the operator's business either.
pub fn model_service(config: &Config, namespace: &str, spec: &AgentWorkspaceSpec) -> Option<(String, String)> {
    let url = spec.agent.as_ref()?.model.as_ref()?.base_url.as_ref()?;
    match Endpoint::parse(url, namespace)? {
        Endpoint::Cluster(endpoint) if config.model_namespaces.contains(&endpoint.namespace) => {
            Some((endpoint.namespace, endpoint.service))
        }
        Endpoint::Cluster(_) | Endpoint::Outside => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(namespace: &str, service: &str, port: u16) -> Endpoint {
        let (namespace, service) = (namespace.to_owned(), service.to_owned());
        Endpoint::Cluster(ClusterEndpoint { namespace, service, port })
    }

    #[test]
    fn names_of_services_are_told_from_public_names() {
        assert_eq!(Endpoint::parse("http://model.fakes.svc:8080", "team-a"), Some(cluster("fakes", "model", 8080)));
        assert_eq!(
            Endpoint::parse("https://model.fakes.svc.cluster.local/v1", "team-a"),
            Some(cluster("fakes", "model", 443))
        );
        assert_eq!(Endpoint::parse("http://model", "team-a"), Some(cluster("team-a", "model", 80)));
        assert_eq!(Endpoint::parse("https://api.anthropic.com", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("https://svc.example.com", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("http://[2001:db8::1]:80/", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("http://203.0.113.7:80/", "team-a"), Some(Endpoint::Outside));
    }

    #[test]
    fn addresses_without_a_usable_host_are_refused() {
        for url in
            ["ftp://x", "http://", "http://:80", "http://user:secret@host/", "http://host:port/", "http://host:99999/"]
        {
            assert_eq!(Endpoint::parse(url, "team-a"), None, "{url}");
        }
    }

    #[test]
    fn a_service_is_opened_by_its_selector_and_target_port_and_nothing_wider_is() {
        let endpoint = ClusterEndpoint { namespace: "models".to_owned(), service: "llm".to_owned(), port: 80 };
        let labels = BTreeMap::from([("app".to_owned(), "llm".to_owned())]);
        let port = IntOrString::String("http".to_owned());
        let view = ServiceView { selector: labels.clone(), ports: vec![(80, port.clone())] };
        let found = |view: &ServiceView| endpoint.pods(Some(&ModelService::Found(view.clone())));
        assert_eq!(found(&view), Ok(ModelPods { namespace: "models".to_owned(), labels, port }));
        let without = |view: ServiceView| found(&view).unwrap_err();
        assert!(without(ServiceView { selector: BTreeMap::new(), ..view.clone() }).contains("no selector"));
        assert!(without(ServiceView { ports: Vec::new(), ..view }).contains("no TCP port 80"));
        assert!(endpoint.pods(Some(&ModelService::Missing)).unwrap_err().contains("does not exist"));
        assert!(endpoint.pods(None).unwrap_err().contains("does not exist"));
    }
}
