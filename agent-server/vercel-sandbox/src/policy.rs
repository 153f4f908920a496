//! Network policies: one type for callers, and the two forms in which the generations send it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::redacted::Redacted;

/// Address ranges of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Subnets {
    /// Reachable whatever the list of domains says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Never reachable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// Where a VM may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// Everywhere.
    AllowAll,
    /// Nowhere.
    DenyAll,
    /// To these domains, each with headers that are added on the way, and to these ranges.
    Only {
        /// Domain, with `*` as wildcard, and the headers that its requests get.
        domains: BTreeMap<String, BTreeMap<String, Redacted>>,
        /// Address ranges.
        subnets: Subnets,
    },
}

impl NetworkPolicy {
    /// The form of `/v1`.
    pub(crate) fn stable(&self) -> Value {
        let (domains, subnets) = match self {
            Self::AllowAll => return json!({"mode": "allow-all"}),
            Self::DenyAll => return json!({"mode": "deny-all"}),
            Self::Only { domains, subnets } => (domains, subnets),
        };
        let mut sent = json!({"mode": "custom", "allowedDomains": domains.keys().collect::<Vec<_>>()});
        let injected = domains.iter().filter(|(_, headers)| !headers.is_empty());
        let rules: Vec<Value> =
            injected.map(|(domain, headers)| json!({"domain": domain, "headers": headers})).collect();
        for (name, list) in [("allowedCIDRs", &subnets.allow), ("deniedCIDRs", &subnets.deny)] {
            if !list.is_empty() {
                sent[name] = json!(list);
            }
        }
        if !rules.is_empty() {
            sent["injectionRules"] = Value::Array(rules);
        }
        sent
    }

    /// The form of `/v2` and `/v3`.
    pub(crate) fn persistent(&self) -> Value {
        let (domains, subnets) = match self {
            Self::AllowAll => return json!({"mode": "allow-all"}),
            Self::DenyAll => return json!({"mode": "deny-all"}),
            Self::Only { domains, subnets } => (domains, subnets),
        };
        let rules = |headers: &BTreeMap<String, Redacted>| {
            if headers.is_empty() { json!([]) } else { json!([{"transform": [{"headers": headers}]}]) }
        };
        let allow: BTreeMap<_, _> = domains.iter().map(|(domain, headers)| (domain, rules(headers))).collect();
        let mut sent = json!({"allow": allow});
        if *subnets != Subnets::default() {
            sent["subnets"] = json!(subnets);
        }
        sent
    }
}
