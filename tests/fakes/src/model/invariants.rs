//! What the provider demands of a request, beyond its headers: fields, tools, system, order of messages.
//! A violation carries the provider's own sentence where it is known. Blocks are checked in
//! `blocks.rs`, the settings of thinking in `thinking.rs`.

use std::collections::HashSet;

use serde_json::Value;

use super::wire::ProviderError;
use super::{blocks, thinking};

/// The result of a check.
pub(super) type Check = Result<(), ProviderError>;

const KNOWN_FIELDS: [&str; 16] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "output_config",
    "service_tier",
    "cache_control",
];
/// Breakpoints that one request may set.
const MAX_BREAKPOINTS: usize = 4;

/// A violation with the provider's sentence.
pub(super) fn broken(invariant: &'static str, message: impl Into<String>) -> ProviderError {
    ProviderError::violation(invariant, message.into())
}

/// Checks everything; the first violation wins, as with the provider.
pub(super) fn check(body: &Value) -> Check {
    let Some(fields) = body.as_object() else {
        return Err(broken("body", "Input should be a valid dictionary"));
    };
    if let Some(unknown) = fields.keys().find(|key| !KNOWN_FIELDS.contains(&key.as_str())) {
        return Err(broken("fields", format!("{unknown}: Extra inputs are not permitted")));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err(broken("model", "model: Field required"));
    }
    match body.get("stream") {
        None | Some(Value::Bool(_)) => {}
        Some(_) => return Err(broken("stream", "stream: Input should be a valid boolean")),
    }
    thinking::check(body)?;
    let declared = check_tools(body)?;
    check_system(&body["system"])?;
    check_messages(body, &declared)?;
    let breakpoints = count_breakpoints(body);
    if breakpoints > MAX_BREAKPOINTS {
        let message =
            format!("A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {breakpoints}.");
        return Err(broken("cache-breakpoints", message));
    }
    Ok(())
}

/// Checks the tool list and gives the declared names.
fn check_tools(body: &Value) -> Result<HashSet<String>, ProviderError> {
    let mut names = HashSet::new();
    let tools = match &body["tools"] {
        Value::Null => return Ok(names),
        Value::Array(tools) => tools,
        _ => return Err(broken("tools", "tools: Input should be a valid list")),
    };
    for (position, tool) in tools.iter().enumerate() {
        let place = format!("tools.{position}.custom");
        let name = tool["name"].as_str().unwrap_or_default();
        if !blocks::is_name(name, 128) {
            return Err(broken(
                "tools",
                format!("{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"),
            ));
        }
        if tool["input_schema"]["type"] != "object" {
            return Err(broken("tools", format!("{place}.input_schema.type: Input should be 'object'")));
        }
        let allowed =
            ["name", "description", "input_schema", "cache_control", "type", "eager_input_streaming", "strict"];
        if let Some(unknown) = blocks::unknown_key(tool, &allowed) {
            return Err(broken("tools", format!("{place}.{unknown}: Extra inputs are not permitted")));
        }
        blocks::check_cache_control(tool, &place)?;
        if !names.insert(name.to_owned()) {
            return Err(broken("tools", "tools: Tool names must be unique."));
        }
    }
    Ok(names)
}

fn check_system(system: &Value) -> Check {
    match system {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(items) => {
            for (position, block) in items.iter().enumerate() {
                if block["type"] != "text" {
                    return Err(broken("system", format!("system.{position}.type: Input should be 'text'")));
                }
                blocks::check_text(block, &format!("system.{position}"))?;
            }
            Ok(())
        }
        _ => Err(broken("system", "system: Input should be a valid list")),
    }
}

fn check_messages(body: &Value, declared: &HashSet<String>) -> Check {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    if messages.is_empty() {
        return Err(broken("messages", "messages: at least one message is required"));
    }
    if messages[0]["role"] != "user" {
        return Err(broken("roles", "messages: first message must use the \"user\" role"));
    }
    let mut ids = HashSet::new();
    let mut calls: Vec<String> = Vec::new();
    for (position, message) in messages.iter().enumerate() {
        check_role(messages, position)?;
        let content = blocks::blocks_of(message, position)?;
        if message["role"] == "assistant" {
            calls = blocks::check_assistant(&content, position, declared, &mut ids)?;
        } else {
            blocks::check_user(&content, position, &calls)?;
            calls.clear();
        }
    }
    if messages.last().is_some_and(|message| message["role"] == "assistant") {
        let message =
            "This model does not support assistant message prefill. The conversation must end with a user message.";
        return Err(broken("roles", message));
    }
    if thinking::enabled(body) {
        blocks::check_thinking_kept(messages)?;
    }
    Ok(())
}

fn check_role(messages: &[Value], position: usize) -> Check {
    let message = &messages[position];
    let Some(role @ ("user" | "assistant")) = message["role"].as_str() else {
        let text = format!("messages.{position}.role: Input should be 'user' or 'assistant'");
        return Err(broken("roles", text));
    };
    if let Some(unknown) = blocks::unknown_key(message, &["role", "content"]) {
        return Err(broken("messages", format!("messages.{position}.{unknown}: Extra inputs are not permitted")));
    }
    if position > 0 && messages[position - 1]["role"] == message["role"] {
        let text = format!(
            "messages: roles must alternate between \"user\" and \"assistant\", but found multiple \"{role}\" roles in a row"
        );
        return Err(broken("roles", text));
    }
    Ok(())
}

fn count_breakpoints(value: &Value) -> usize {
    match value {
        Value::Object(entries) => {
            let own = usize::from(entries.get("cache_control").is_some_and(|control| !control.is_null()));
            // Arguments and schemas may hold a property of that name, which is no breakpoint.
            let inner = entries.iter().filter(|(key, _)| !matches!(key.as_str(), "input" | "input_schema"));
            own + inner.map(|(_, entry)| count_breakpoints(entry)).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_breakpoints).sum(),
        _ => 0,
    }
}
