//! What the model sees of the tools.

use serde_json::{Value, json};

use crate::bench::Bench;

#[tokio::test]
async fn names_and_schemas_are_the_agreed_ones() {
    let definitions = Bench::new().await.catalog.definitions();
    let shapes: Vec<Value> = definitions
        .iter()
        .map(|tool| {
            let schema = &tool.input_schema;
            let properties: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
            json!({"name": tool.name, "properties": properties, "required": schema["required"]})
        })
        .collect();
    let expected = json!([
        {"name": "bash", "properties": ["background", "command", "timeout"], "required": ["command"]},
        {"name": "edit", "properties": ["edits", "path"], "required": ["path", "edits"]},
        {"name": "find", "properties": ["limit", "path", "pattern"], "required": ["pattern"]},
        {
            "name": "grep",
            "properties": ["context", "glob", "ignoreCase", "limit", "literal", "path", "pattern"],
            "required": ["pattern"],
        },
        {"name": "ls", "properties": ["limit", "path"], "required": null},
        {"name": "processes", "properties": ["end"], "required": null},
        {"name": "read", "properties": ["limit", "offset", "path"], "required": ["path"]},
        {"name": "write", "properties": ["content", "path"], "required": ["path", "content"]},
    ]);
    assert_eq!(Value::from(shapes), expected);
}

#[tokio::test]
async fn schemas_are_valid_plain_and_described() {
    for tool in Bench::new().await.catalog.definitions() {
        let text = tool.input_schema.to_string();
        assert!(!text.contains("$ref") && !text.contains("$schema") && !text.contains("\"null\""), "{text}");
        assert_eq!(tool.input_schema["type"], "object");
        jsonschema::validator_for(&tool.input_schema).unwrap();
        for (name, property) in tool.input_schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{}: {name}", tool.name);
        }
    }
}
