//! A chat completions request in the form of the Messages API, so that scripts, token counts and summaries have one form.
//!
//! Never judges: what is wrong stays for the checks to find.

use serde_json::{Value, json};

/// The view. The whole prompt is one cache breakpoint, as this provider caches every prefix by itself.
pub(super) fn of(body: &Value) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    let mut system = Vec::new();
    let all = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (position, message) in all.iter().enumerate() {
        let (role, blocks) = match message["role"].as_str() {
            Some("system" | "developer") => {
                system.extend(blocks(&message["content"]));
                continue;
            }
            Some("assistant") => ("assistant", assistant_blocks(message)),
            Some("tool") => {
                let result = json!({ "type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"] });
                ("user", vec![result])
            }
            _ => {
                let mut blocks = blocks(&message["content"]);
                blocks.retain(|block| block["type"] != "text" || !shows_results(all, position));
                ("user", blocks)
            }
        };
        match messages.last_mut() {
            Some(last) if last["role"] == role && role == "user" => {
                if let Some(content) = last["content"].as_array_mut() {
                    content.extend(blocks);
                }
            }
            _ => messages.push(json!({ "role": role, "content": blocks })),
        }
    }
    if let Some(block) = messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut()) {
        block["cache_control"] = json!({ "type": "ephemeral" });
    }
    let functions = body["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]);
    let tools: Vec<Value> =
        functions.map(|function| json!({ "name": function["name"], "input_schema": function["parameters"] })).collect();
    json!({
        "model": body["model"],
        "stream": body["stream"],
        "max_tokens": body["max_completion_tokens"],
        "system": system,
        "tools": tools,
        "messages": messages,
    })
}

/// Whether a user message only carries the images of tool results, which tool messages cannot: right behind them, with at
/// most a heading.
pub(super) fn shows_results(messages: &[Value], position: usize) -> bool {
    let behind_results = position > 0 && messages[position - 1]["role"] == "tool";
    let parts = messages[position]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let images = parts.iter().skip_while(|part| part["type"] == "text").all(|part| part["type"] == "image_url");
    behind_results && parts.len() > 1 && parts[1]["type"] == "image_url" && images
}

fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part["type"].as_str() {
                Some("image_url") => json!({ "type": "image", "source": part["image_url"] }),
                _ => part.clone(),
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn assistant_blocks(message: &Value) -> Vec<Value> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let input: Value = serde_json::from_str(arguments).unwrap_or_default();
        json!({ "type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input })
    });
    blocks(&message["content"]).into_iter().chain(calls).collect()
}
