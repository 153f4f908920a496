//! The smallest merge patch that turns one status into another.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// JSON merge patch (RFC 7386) for the status subresource, on condition of `resource_version`: absent fields are removed by an
/// explicit null, fields of a newer version of this program that it does not know are left alone.
pub fn status_patch<S: Serialize>(
    old: Option<&S>,
    new: &S,
    resource_version: &str,
) -> Result<Value, serde_json::Error> {
    let old = match old {
        Some(old) => serde_json::to_value(old)?,
        None => json!({}),
    };
    let status = difference(&old, &serde_json::to_value(new)?);
    Ok(json!({ "metadata": { "resourceVersion": resource_version }, "status": status }))
}

fn difference(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let mut patch = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) => {
                patch.insert(name.clone(), difference(before, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_what_changed_and_nulls_for_what_is_gone() {
        let old =
            json!({"phase": "Running", "pod": {"name": "a", "uid": "1"}, "restarts": 1, "storage": {"a": 1, "b": 2}});
        let new = json!({"phase": "Stopping", "restarts": 1, "storage": {"a": 1, "c": [1]}});
        assert_eq!(
            status_patch(Some(&old), &new, "7").unwrap(),
            json!({
                "metadata": {"resourceVersion": "7"},
                "status": {"phase": "Stopping", "pod": null, "storage": {"b": null, "c": [1]}},
            })
        );
    }
}
