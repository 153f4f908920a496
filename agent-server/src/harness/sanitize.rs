//! Removal of object keys that make the client's parser refuse a whole frame.
//!
//! Owns that one rule. Must not know where a value comes from or goes to.

use serde_json::Value;

/// Deepest nesting that enters a chunk; deeper values are replaced by a text. Parsers of both sides recurse.
pub const MAX_DEPTH: usize = 100;

/// Drops `__proto__` anywhere and `prototype` directly under `constructor`. Returns how many keys were dropped.
pub fn drop_prototype_keys(value: &mut Value) -> usize {
    drop_at(value, false, 0)
}

fn drop_at(value: &mut Value, under_constructor: bool, depth: usize) -> usize {
    if depth > MAX_DEPTH && (value.is_object() || value.is_array()) {
        *value = Value::String("[nested too deeply]".into());
        return 1;
    }
    match value {
        Value::Object(map) => {
            let before = map.len();
            map.retain(|key, _| key != "__proto__" && !(under_constructor && key == "prototype"));
            let dropped = before - map.len();
            dropped + map.iter_mut().map(|(key, inner)| drop_at(inner, key == "constructor", depth + 1)).sum::<usize>()
        }
        Value::Array(items) => items.iter_mut().map(|item| drop_at(item, false, depth + 1)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prototype_keys_are_dropped_at_any_depth_and_nothing_else_is() {
        let mut value = json!({
            "__proto__": 1,
            "prototype": "stays",
            "constructor": {"prototype": {"x": 1}, "name": "stays"},
            "list": [{"__proto__": {}, "a": [{"constructor": {"prototype": 1}}]}],
        });
        assert_eq!(drop_prototype_keys(&mut value), 4);
        assert_eq!(
            value,
            json!({
                "prototype": "stays",
                "constructor": {"name": "stays"},
                "list": [{"a": [{"constructor": {}}]}],
            })
        );
    }
}
