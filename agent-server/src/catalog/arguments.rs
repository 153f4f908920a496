//! From the JSON that a model sent to a tool's typed arguments, and from those types to their JSON schema.
//!
//! Owns leniency: what models get wrong often and what can only mean one thing is accepted. Must not know any tool.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::ToolFailure;
use crate::workspace::{PathError, Workspace, WorkspacePath};

/// Parses arguments; the failure names the fault. A JSON object inside a string is taken for the object, nothing for
/// an empty object, and unknown fields are passed over.
pub fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolFailure> {
    serde_json::from_value(object(arguments)?).map_err(|error| ToolFailure(format!("arguments do not fit: {error}")))
}

/// The arguments as an object.
pub fn object(arguments: Value) -> Result<Value, ToolFailure> {
    match arguments {
        Value::Object(_) => Ok(arguments),
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(ToolFailure("arguments are a text that is no JSON object".into())),
        },
        _ => Err(ToolFailure("arguments are no JSON object".into())),
    }
}

/// The schema of a type: one document without references, titles and number formats, which models do not need.
pub fn schema<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    Plain.transform(&mut schema);
    schema.to_value()
}

struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut schemars::Schema) {
        for word in ["title", "format", "default"] {
            schema.remove(word);
        }
        // `["integer", "null"]` of an optional field: a field that is not required says enough.
        if let Some(Value::Array(types)) = schema.get("type")
            && let [only] = types.iter().filter(|name| *name != "null").collect::<Vec<_>>().as_slice()
        {
            let only = (*only).clone();
            schema.insert("type".into(), only);
        }
        transform_subschemas(self, schema);
    }
}

/// A whole number of at least 1, or nothing. Also takes `10.0` and `"10"`, which models send.
pub fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let number = match &value {
        None => return Ok(None),
        Some(Value::Number(number)) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
        Some(Value::String(text)) => text.trim().parse::<u64>().ok(),
        Some(_) => None,
    };
    match number {
        Some(count @ 1..) => Ok(Some(count)),
        _ => Err(serde::de::Error::custom(format!(
            "expected a whole number of at least 1, found {}",
            value.unwrap_or_default()
        ))),
    }
}

/// `10.0` as 10, if it is whole and small enough to be exact.
fn whole(number: f64) -> Option<u64> {
    format!("{number}").parse().ok()
}

/// A path argument; absent means the root.
pub fn path(text: Option<&str>, workspace: &dyn Workspace) -> Result<WorkspacePath, ToolFailure> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(WorkspacePath::root()) };
    required_path(text, workspace)
}

/// A path argument that must be there.
pub fn required_path(text: &str, workspace: &dyn Workspace) -> Result<WorkspacePath, ToolFailure> {
    let root = workspace.shown_root();
    WorkspacePath::parse_for_tool(text, root).map_err(|error| match error {
        PathError::Absolute | PathError::Escapes => {
            ToolFailure(format!("path {text:?} is outside the workspace; files are below {root}"))
        }
        error => ToolFailure(error.to_string()),
    })
}

/// A path as one line of a listing: names with control characters are written as a JSON string, so that a name with a
/// line end does not look like two files.
pub fn one_line(path: &str) -> String {
    if path.chars().any(char::is_control) { Value::from(path).to_string() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    struct Sample {
        /// Where.
        path: String,
        /// How many.
        #[serde(default, deserialize_with = "optional_count")]
        limit: Option<u64>,
    }

    #[test]
    fn counts_are_taken_in_the_shapes_that_models_send() {
        for limit in [json!(7), json!(7.0), json!("7")] {
            let expected = Sample { path: "a".into(), limit: Some(7) };
            assert_eq!(parse::<Sample>(json!({"path": "a", "limit": limit, "extra": 1})), Ok(expected));
        }
        let expected = Sample { path: "a".into(), limit: None };
        assert_eq!(parse::<Sample>(json!({"path": "a", "limit": null})), Ok(expected));
    }

    #[test]
    fn a_fault_is_named() {
        let fault = |arguments| parse::<Sample>(arguments).unwrap_err().0;
        assert_eq!(fault(json!({})), "arguments do not fit: missing field `path`");
        assert_eq!(
            fault(json!({"path": "a", "limit": 0})),
            "arguments do not fit: expected a whole number of at least 1, found 0"
        );
        assert_eq!(
            fault(json!({"path": "a", "limit": -1.5})),
            "arguments do not fit: expected a whole number of at least 1, found -1.5"
        );
        assert_eq!(fault(json!([1])), "arguments are no JSON object");
        assert_eq!(fault(json!("nonsense")), "arguments are a text that is no JSON object");
    }

    #[test]
    fn a_schema_is_plain() {
        let expected = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where."},
                "limit": {"type": "integer", "description": "How many.", "minimum": 0},
            },
            "required": ["path"],
        });
        assert_eq!(schema::<Sample>(), expected);
    }

    #[test]
    fn a_name_with_a_line_end_stays_one_line() {
        assert_eq!(one_line("a b"), "a b");
        assert_eq!(one_line("a\nb"), r#""a\nb""#);
    }
}
