//! Whose the fields of an applied object are. The API server keeps the books in `metadata.managedFields`: whoever changes a
//! field that was applied takes it over. So a change by hand shows in the metadata alone, and specs need not be watched.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;

use crate::crd::{LABEL_MANAGED_BY, LABEL_WORKSPACE, LABEL_WORKSPACE_UID};

/// Field manager of Services.
pub const SERVICE_MANAGER: &str = "agent-workspace-operator/service";
/// Field manager of network policies.
pub const POLICY_MANAGER: &str = "agent-workspace-operator/network-policy";

/// What is applied of a Service. Its selector is one field, whatever it holds.
pub const SERVICE_FIELDS: [&str; 10] = [
    LABEL_MANAGED_BY,
    LABEL_WORKSPACE,
    LABEL_WORKSPACE_UID,
    "clusterIP",
    "selector",
    "ports",
    "name",
    "port",
    "protocol",
    "targetPort",
];
/// What is applied of a NetworkPolicy. Each of the four is one field, whatever it holds.
pub const POLICY_FIELDS: [&str; 7] =
    [LABEL_MANAGED_BY, LABEL_WORKSPACE, LABEL_WORKSPACE_UID, "podSelector", "policyTypes", "ingress", "egress"];

/// What a manager has applied and still owns.
pub fn applied_by<'a>(metadata: &'a ObjectMeta, manager: &str) -> Option<&'a ManagedFieldsEntry> {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.find(|entry| entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Apply"))
}

/// Whether all of these fields are in the entry, at any depth: the names of one object's fields do not repeat.
pub fn owns(entry: &ManagedFieldsEntry, fields: &[&str]) -> bool {
    let Some(owned) = &entry.fields_v1 else { return false };
    fields.iter().all(|field| holds(&owned.0, field))
}

/// `{"f:spec": {"f:egress": {}}}` holds `egress`.
fn holds(owned: &Value, field: &str) -> bool {
    let Value::Object(members) = owned else { return false };
    members.iter().any(|(key, inner)| key.strip_prefix("f:") == Some(field) || holds(inner, field))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_somebody_else_took_over_is_missed_at_any_depth() {
        let entry = |owned: Value| ManagedFieldsEntry { fields_v1: Some(FieldsV1(owned)), ..Default::default() };
        let port = json!({".": {}, "f:name": {}, "f:port": {}});
        let whole = entry(json!({"f:spec": {"f:selector": {}, "f:ports": {"k:{\"port\":8787}": port}}}));
        assert!(owns(&whole, &["selector", "ports", "name", "port"]));
        assert!(!owns(&whole, &["selector", "targetPort"]));
        assert!(!owns(&entry(json!({"f:spec": {"f:ports": {}}})), &["selector"]));
        assert!(!owns(&ManagedFieldsEntry::default(), &["selector"]));
    }
}
