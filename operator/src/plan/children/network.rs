//! The Service that gives the pod a name, and the NetworkPolicy that says who may reach it and what it may reach.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::{
            IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
            NetworkPolicyPort, NetworkPolicySpec,
        },
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use crate::plan::{Config, Peer, Valid, endpoint::Endpoint};

use super::{HTTP_PORT, METRICS_PORT, hash, metadata, seal, selector};

/// Ranges that are never public: private (RFC 1918), shared (RFC 6598) and link-local (the metadata services of clouds).
const NEVER_PUBLIC_V4: [&str; 5] = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"];
/// The same for IPv6: unique local and link-local.
const NEVER_PUBLIC_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];
/// Label that Kubernetes puts on every namespace.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Renders the headless Service: the pod has one address, so nothing is gained by a virtual one.
pub fn service(valid: &Valid) -> (Service, String) {
    let mut object = Service {
        metadata: metadata(valid, valid.agent_name()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector(valid)),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: HTTP_PORT,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String("http".to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    let applied = hash(&object);
    seal(&mut object.metadata, applied.clone());
    (object, applied)
}

/// Renders the NetworkPolicy.
pub fn network_policy(config: &Config, valid: &Valid) -> (NetworkPolicy, String) {
    let mut object = NetworkPolicy {
        metadata: metadata(valid, valid.agent_name()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selector(valid)), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(ingress(config)),
            egress: Some(egress(config, valid)),
        }),
    };
    let applied = hash(&object);
    seal(&mut object.metadata, applied.clone());
    (object, applied)
}

/// The operator (drain, readiness), and with `exposure: ClusterLocal`, the only one so far, pods of the own namespace.
fn ingress(config: &Config) -> Vec<NetworkPolicyIngressRule> {
    let operator = Peer {
        namespace_labels: BTreeMap::from([(NAMESPACE_NAME.to_owned(), config.operator_namespace.clone())]),
        pod_labels: config.operator_labels.clone(),
    };
    let own_namespace =
        NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() };
    let mut rules = vec![NetworkPolicyIngressRule {
        from: Some(vec![peer(&operator), own_namespace]),
        ports: Some(vec![port("TCP", HTTP_PORT)]),
    }];
    // An empty `from` would mean everybody, so there is no rule at all when nobody may read the metrics.
    if !config.metrics_from.is_empty() {
        rules.push(NetworkPolicyIngressRule {
            from: Some(config.metrics_from.iter().map(peer).collect()),
            ports: Some(vec![port("TCP", METRICS_PORT)]),
        });
    }
    rules
}

/// DNS, the model endpoint, public addresses.
fn egress(config: &Config, valid: &Valid) -> Vec<NetworkPolicyEgressRule> {
    let mut rules = Vec::new();
    let dns: Vec<NetworkPolicyPeer> =
        config.dns.peers.iter().map(peer).chain(config.dns.cidrs.iter().map(|cidr| block(cidr, Vec::new()))).collect();
    if !dns.is_empty() {
        rules.push(NetworkPolicyEgressRule { to: Some(dns), ports: Some(vec![port("UDP", 53), port("TCP", 53)]) });
    }
    // A policy sees the pod behind a Service, on the pod's own port. Neither the Service's selector nor its target port is
    // known here, so every pod of that namespace is permitted, on every TCP port.
    if let Some((_, Endpoint::Cluster { namespace })) = &valid.model_endpoint {
        let pods = Peer {
            namespace_labels: BTreeMap::from([(NAMESPACE_NAME.to_owned(), namespace.clone())]),
            pod_labels: BTreeMap::new(),
        };
        rules.push(NetworkPolicyEgressRule {
            to: Some(vec![peer(&pods)]),
            ports: Some(vec![NetworkPolicyPort { protocol: Some("TCP".to_owned()), ..NetworkPolicyPort::default() }]),
        });
    }
    rules.push(NetworkPolicyEgressRule { to: Some(public(&config.cluster_cidrs)), ports: None });
    rules
}

fn public(cluster_cidrs: &[String]) -> Vec<NetworkPolicyPeer> {
    let except = |never: &[&str], six: bool| {
        let cluster = cluster_cidrs.iter().filter(|cidr| cidr.contains(':') == six).cloned();
        let mut ranges: Vec<String> = never.iter().map(|cidr| (*cidr).to_owned()).chain(cluster).collect();
        ranges.sort();
        ranges.dedup();
        ranges
    };
    vec![block("0.0.0.0/0", except(&NEVER_PUBLIC_V4, false)), block("::/0", except(&NEVER_PUBLIC_V6, true))]
}

fn block(cidr: &str, except: Vec<String>) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr: cidr.to_owned(), except: (!except.is_empty()).then_some(except) }),
        ..NetworkPolicyPeer::default()
    }
}

fn peer(peer: &Peer) -> NetworkPolicyPeer {
    let selector = |labels: &BTreeMap<String, String>| LabelSelector {
        match_labels: (!labels.is_empty()).then(|| labels.clone()),
        ..LabelSelector::default()
    };
    NetworkPolicyPeer {
        namespace_selector: Some(selector(&peer.namespace_labels)),
        pod_selector: Some(selector(&peer.pod_labels)),
        ip_block: None,
    }
}

fn port(protocol: &str, number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol: Some(protocol.to_owned()), port: Some(IntOrString::Int(number)), end_port: None }
}
