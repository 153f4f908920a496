//! The rights this program uses, as one table. `generate` writes them for the chart, and a test runs the controller with
//! exactly these.

use k8s_openapi::api::rbac::v1::PolicyRule;

/// Name of the Lease of the leader election, in the operator's namespace.
pub const LEASE_NAME: &str = "agent-workspace-operator";
/// Name of the Secret with the operator's key pairs, in the operator's namespace.
pub const KEYS_SECRET_NAME: &str = "agent-workspace-operator-keys";
/// Name of the Secret with the gateway's part of them, in the operator's namespace.
pub const GATEWAY_KEYS_SECRET_NAME: &str = "agent-workspace-gateway-keys";

const GROUP: &str = crate::crd::GROUP;

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    PolicyRule {
        api_groups: Some(owned(&[group])),
        resources: Some(owned(&[resource])),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn named(mut rule: PolicyRule, name: &str) -> PolicyRule {
    rule.resource_names = Some(vec![name.to_owned()]);
    rule
}

/// `ClusterRole` of the controller. Applying takes `create` and `patch`; there is no right on any Secret, and nothing of the
/// user's object is writable but its status (`finalizers` lets the API server accept owner references that block deletion).
pub fn operator_cluster() -> Vec<PolicyRule> {
    vec![
        // Deleted when they expire, if their spec says so.
        rule(GROUP, "agentworkspaces", &["get", "list", "watch", "delete"]),
        rule(GROUP, "agentworkspaces/status", &["patch"]),
        rule(GROUP, "agentworkspacewakes", &["get", "list", "watch"]),
        rule(GROUP, "agentworkspaces/finalizers", &["update"]),
        rule("", "persistentvolumeclaims", &["get", "list", "watch", "create", "patch"]),
        rule("", "services", &["get", "list", "watch", "create", "patch"]),
        rule("networking.k8s.io", "networkpolicies", &["get", "list", "watch", "create", "patch"]),
        rule("", "pods", &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", "events", &["list"]),
        rule("events.k8s.io", "events", &["create", "patch"]),
        rule("storage.k8s.io", "storageclasses", &["get"]),
        rule("", "nodes", &["get"]),
    ]
}

/// Role in the operator's own namespace. `create` cannot be limited by name; reading and changing is.
pub fn operator_namespace() -> Vec<PolicyRule> {
    vec![
        rule("", "secrets", &["create"]),
        named(rule("", "secrets", &["get", "update"]), KEYS_SECRET_NAME),
        named(rule("", "secrets", &["get", "update"]), GATEWAY_KEYS_SECRET_NAME),
        rule("coordination.k8s.io", "leases", &["create"]),
        named(rule("coordination.k8s.io", "leases", &["get", "update"]), LEASE_NAME),
    ]
}

/// `ClusterRole` of the gateway: it reads workspaces, writes wakes, and asks who people are and what they may.
pub fn gateway_cluster() -> Vec<PolicyRule> {
    vec![
        rule(GROUP, "agentworkspaces", &["get", "list", "watch"]),
        rule(GROUP, "agentworkspacewakes", &["get", "list", "watch", "create", "update"]),
        rule("authentication.k8s.io", "tokenreviews", &["create"]),
        rule("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    ]
}

/// Role of the gateway in the operator's namespace.
pub fn gateway_namespace() -> Vec<PolicyRule> {
    vec![named(rule("", "secrets", &["get"]), GATEWAY_KEYS_SECRET_NAME)]
}

/// What aggregates to the built-in role `view`.
pub fn view() -> Vec<PolicyRule> {
    vec![rule(GROUP, "agentworkspaces", &["get", "list", "watch"])]
}

/// What `edit` adds. Neither status nor finalizers: those are the operator's.
pub fn edit() -> Vec<PolicyRule> {
    vec![rule(GROUP, "agentworkspaces", &["create", "update", "patch", "delete", "deletecollection"])]
}

/// What `admin` adds: to let people connect to workspaces that they do not own (checked by an access review only; there is no such
/// subresource to call).
pub fn admin() -> Vec<PolicyRule> {
    vec![rule(GROUP, "agentworkspaces/connect", &["create"])]
}
