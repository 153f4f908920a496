//! The Service that gives the pod a name, and the NetworkPolicy that says who may reach it and what it may reach.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

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

use crate::{
    crd::Exposure,
    plan::{Config, Peer, Valid, endpoint::ModelPods},
};

use super::{HTTP_PORT, METRICS_PORT, hash, metadata, seal, selector};

/// Ranges that are never public, so whatever answers there is the cluster's or its surroundings': what IANA's registry of
/// special addresses (RFC 6890) calls not globally reachable, and multicast. Private, shared, link-local (the metadata
/// services of clouds), and those for documentation and measurements, which networks use too when they run out of others.
const NEVER_PUBLIC_V4: [&str; 14] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];
/// The same for IPv6: unique local, link- and site-local, discard, documentation, local translation, multicast; and 6to4,
/// whose addresses hold any IPv4 address.
const NEVER_PUBLIC_V6: [&str; 8] =
    ["100::/64", "2001:db8::/32", "2002::/16", "64:ff9b:1::/48", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"];
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

/// Renders the NetworkPolicy. `model` are the pods of a model server inside the cluster.
pub fn network_policy(config: &Config, valid: &Valid, model: Option<&ModelPods>) -> (NetworkPolicy, String) {
    let mut object = NetworkPolicy {
        metadata: metadata(valid, valid.agent_name()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selector(valid)), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(ingress(config, valid)),
            egress: Some(egress(config, model)),
        }),
    };
    let applied = hash(&object);
    seal(&mut object.metadata, applied.clone());
    (object, applied)
}

/// The operator (drain, readiness), and by `exposure` either the gateway or pods of the own namespace.
fn ingress(config: &Config, valid: &Valid) -> Vec<NetworkPolicyIngressRule> {
    let in_operator_namespace = |pod_labels: &BTreeMap<String, String>| {
        peer(&Peer {
            namespace_labels: BTreeMap::from([(NAMESPACE_NAME.to_owned(), config.operator_namespace.clone())]),
            pod_labels: pod_labels.clone(),
        })
    };
    let callers = match valid.exposure {
        Exposure::Gateway => in_operator_namespace(&config.gateway_labels),
        Exposure::ClusterLocal => {
            NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() }
        }
    };
    let mut rules = vec![NetworkPolicyIngressRule {
        from: Some(vec![in_operator_namespace(&config.operator_labels), callers]),
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
fn egress(config: &Config, model: Option<&ModelPods>) -> Vec<NetworkPolicyEgressRule> {
    let mut rules = Vec::new();
    let dns: Vec<NetworkPolicyPeer> =
        config.dns.peers.iter().map(peer).chain(config.dns.cidrs.iter().map(|cidr| block(cidr, Vec::new()))).collect();
    if !dns.is_empty() {
        rules.push(NetworkPolicyEgressRule { to: Some(dns), ports: Some(vec![port("UDP", 53), port("TCP", 53)]) });
    }
    if let Some(model) = model {
        let pods = Peer {
            namespace_labels: BTreeMap::from([(NAMESPACE_NAME.to_owned(), model.namespace.clone())]),
            pod_labels: model.labels.clone(),
        };
        let ports = vec![NetworkPolicyPort {
            protocol: Some("TCP".to_owned()),
            port: Some(model.port.clone()),
            end_port: None,
        }];
        rules.push(NetworkPolicyEgressRule { to: Some(vec![peer(&pods)]), ports: Some(ports) });
    }
    rules.push(NetworkPolicyEgressRule { to: Some(public(&config.cluster_cidrs)), ports: None });
    rules
}

fn public(cluster_cidrs: &[String]) -> Vec<NetworkPolicyPeer> {
    let all = |never: &[&str], six: bool| {
        let cluster = cluster_cidrs.iter().filter(|cidr| cidr.contains(':') == six).cloned();
        sorted(never.iter().map(|cidr| (*cidr).to_owned()).chain(cluster).collect())
    };
    let four = all(&NEVER_PUBLIC_V4, false);
    let mut six = all(&NEVER_PUBLIC_V6, true);
    six.extend(four.iter().filter_map(|cidr| translated(cidr)));
    vec![block("0.0.0.0/0", four), block("::/0", sorted(six))]
}

/// The IPv6 addresses behind which a translator (NAT64, RFC 6052) puts a range of IPv4 addresses.
fn translated(cidr: &str) -> Option<String> {
    let (address, bits) = cidr.split_once('/')?;
    let [a, b, c, d] = address.parse::<Ipv4Addr>().ok()?.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let address = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low);
    Some(format!("{address}/{}", bits.parse::<u8>().ok()? + 96))
}

fn sorted(mut ranges: Vec<String>) -> Vec<String> {
    ranges.sort();
    ranges.dedup();
    ranges
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
