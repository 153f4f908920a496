//! What the provider demands of a request, beyond its headers: fields, thinking, tools, system, order of messages.
//! A violation carries the provider's own sentence where it is known. Blocks are checked in `blocks.rs`.

use std::collections::HashSet;

use serde_json::Value;

use super::blocks;
use super::wire::ProviderError;

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
/// Smallest thinking budget.
const MIN_THINKING_BUDGET: u64 = 1_024;

/// A violation with the provider's sentence.
pub(super) fn broken(invariant: &'static str, message: impl Into<String>) -> ProviderError {
    ProviderError::violation(invariant, message.into())
}

/// Whether the request enables thinking.
pub(super) fn thinking_enabled(body: &Value) -> bool {
    matches!(body["thinking"]["type"].as_str(), Some("enabled" | "adaptive"))
}

/// What a family of models knows of thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThinkingModes {
    /// Only with a budget (up to 4.5).
    Budget,
    /// Both (4.6, and the scripted models).
    Both,
    /// Only adaptive, its text left out unless asked for (from 4.7 on).
    Adaptive,
}

/// What a model knows of thinking, by its id.
pub(super) fn thinking_modes(model: &str) -> ThinkingModes {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| model.starts_with(prefix));
    if begins(&["claude-3", "claude-opus-4-6", "claude-sonnet-4-6"]) {
        return if model.starts_with("claude-3") { ThinkingModes::Budget } else { ThinkingModes::Both };
    }
    if begins(&["claude-opus-4-7", "claude-opus-4-8", "claude-mythos", "claude-fable"])
        || begins(&["claude-opus-5", "claude-sonnet-5", "claude-haiku-5"])
    {
        return ThinkingModes::Adaptive;
    }
    if begins(&["claude-opus-4", "claude-sonnet-4", "claude-haiku-4"]) {
        return ThinkingModes::Budget;
    }
    ThinkingModes::Both
}

/// Whether the text of thinking is sent: newer models leave it out unless `display` asks for it.
pub(super) fn thinking_shown(body: &Value) -> bool {
    let modes = thinking_modes(body["model"].as_str().unwrap_or_default());
    match body["thinking"]["display"].as_str() {
        Some(display) => display == "summarized",
        None => modes != ThinkingModes::Adaptive,
    }
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
    check_thinking(body)?;
    let effort = &body["output_config"]["effort"];
    if !effort.is_null() && !matches!(effort.as_str(), Some("low" | "medium" | "high" | "xhigh" | "max")) {
        return Err(broken(
            "effort",
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ));
    }
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

fn check_thinking(body: &Value) -> Check {
    let Some(max_tokens) = body["max_tokens"].as_u64() else {
        return Err(broken("max-tokens", "max_tokens: Field required"));
    };
    if max_tokens == 0 {
        return Err(broken("max-tokens", "max_tokens: Input should be greater than or equal to 1"));
    }
    let thinking = &body["thinking"];
    let modes = thinking_modes(body["model"].as_str().unwrap_or_default());
    match thinking["type"].as_str() {
        None if thinking.is_null() => return Ok(()),
        Some("disabled") => return Ok(()),
        Some("adaptive") if modes == ThinkingModes::Budget => {
            return Err(broken("thinking", "adaptive thinking is not supported on this model"));
        }
        Some("adaptive") => {}
        Some("enabled") if modes == ThinkingModes::Adaptive => {
            let message = "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\" to control thinking behavior.";
            return Err(broken("thinking", message));
        }
        Some("enabled") => {
            let Some(budget) = thinking["budget_tokens"].as_u64() else {
                return Err(broken("thinking", "thinking.enabled.budget_tokens: Field required"));
            };
            if budget < MIN_THINKING_BUDGET {
                let message = format!(
                    "thinking.enabled.budget_tokens: Input should be greater than or equal to {MIN_THINKING_BUDGET}"
                );
                return Err(broken("thinking", message));
            }
            if max_tokens <= budget {
                return Err(broken("thinking", "`max_tokens` must be greater than `thinking.budget_tokens`."));
            }
        }
        _ => return Err(broken("thinking", "thinking: Input tag found does not match any of the expected tags")),
    }
    if blocks::unknown_key(thinking, &["type", "budget_tokens", "display"]).is_some() {
        return Err(broken("thinking", "thinking: Extra inputs are not permitted"));
    }
    if !matches!(thinking["display"].as_str(), None | Some("summarized" | "omitted")) {
        return Err(broken("thinking", "thinking.display: Input should be 'summarized' or 'omitted'"));
    }
    if body.get("temperature").is_some_and(|value| value.as_f64() != Some(1.0)) {
        return Err(broken("thinking", "`temperature` may only be set to 1 when thinking is enabled."));
    }
    if matches!(body["tool_choice"]["type"].as_str(), Some("any" | "tool")) {
        return Err(broken("thinking", "Thinking may not be enabled when tool_choice forces tool use."));
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
        let allowed = ["name", "description", "input_schema", "cache_control", "type"];
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
    if thinking_enabled(body) {
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
