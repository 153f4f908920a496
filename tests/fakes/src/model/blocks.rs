//! What the provider demands of content blocks: shapes, tool calls and their results, replayed thinking.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::invariants::{Check, broken};
use super::sign;
use super::wire::ProviderError;

/// The content of a message as blocks; a string is one text block.
pub(super) fn blocks_of(message: &Value, position: usize) -> Result<Vec<Value>, ProviderError> {
    let blocks = match &message["content"] {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks.clone(),
        _ => return Err(broken("content", format!("messages.{position}.content: Input should be a valid list"))),
    };
    if blocks.is_empty() {
        let text = format!("messages.{position}: all messages must have non-empty content");
        return Err(broken("content", text));
    }
    Ok(blocks)
}

/// Joins neighbouring messages of one role; content that is no list or text is left for the checks to find.
pub(super) fn join_roles(body: &mut Value) {
    let Some(messages) = body["messages"].as_array_mut() else { return };
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    for (position, message) in std::mem::take(messages).into_iter().enumerate() {
        let pair = joined.last().filter(|last| last["role"] == message["role"]).map(|last| {
            let own = blocks_of(&message, position);
            blocks_of(last, position).and_then(|mut all| own.map(|own| (all.extend(own), all).1))
        });
        match (pair, joined.last_mut()) {
            (Some(Ok(all)), Some(last)) => last["content"] = Value::Array(all),
            _ => joined.push(message),
        }
    }
    *messages = joined;
}

/// Checks an assistant message and gives the ids of its tool calls in order.
pub(super) fn check_assistant(
    content: &[Value],
    position: usize,
    declared: &HashSet<String>,
    ids: &mut HashSet<String>,
) -> Result<Vec<String>, ProviderError> {
    let mut calls = Vec::new();
    let mut thought: Option<(String, usize)> = None;
    for (index, block) in content.iter().enumerate() {
        let place = format!("messages.{position}.content.{index}");
        match block["type"].as_str() {
            Some("text") => check_text(block, &place)?,
            Some("thinking" | "redacted_thinking") => thought = Some(check_thinking(block, &place, thought)?),
            Some("tool_use") => calls.push(check_tool_use(block, &place, declared, ids)?),
            other => return Err(unexpected(&place, other)),
        }
    }
    Ok(calls)
}

/// Checks a user message; `calls` are the tool calls of the message before it, which it must answer first and in order.
pub(super) fn check_user(content: &[Value], position: usize, calls: &[String]) -> Check {
    let mut answered: Vec<&str> = Vec::new();
    let mut other_seen = false;
    for (index, block) in content.iter().enumerate() {
        let place = format!("messages.{position}.content.{index}");
        match block["type"].as_str() {
            Some("tool_result") => {
                check_tool_result(block, &place)?;
                let id = block["tool_use_id"].as_str().unwrap_or_default();
                if !calls.iter().any(|call| call == id) {
                    let text = format!(
                        "{place}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                    );
                    return Err(broken("orphan-tool-result", text));
                }
                if answered.contains(&id) {
                    let text = format!(
                        "{place}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
                    );
                    return Err(broken("duplicate-tool-result", text));
                }
                if other_seen {
                    return Err(broken("tool-result-order", format!("{place}: `tool_result` blocks must come first")));
                }
                answered.push(id);
            }
            Some("text") => check_text(block, &place)?,
            Some("image" | "document") => check_source(block, &place)?,
            other => return Err(unexpected(&place, other)),
        }
        other_seen |= block["type"] != "tool_result";
    }
    let missing: Vec<&str> = calls.iter().map(String::as_str).filter(|call| !answered.contains(call)).collect();
    if !missing.is_empty() {
        let text = format!(
            "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
            position.saturating_sub(1),
            missing.join(", ")
        );
        return Err(broken("missing-tool-result", text));
    }
    if answered.iter().zip(calls).any(|(answer, call)| answer != call) {
        let text = format!("messages.{position}: `tool_result` blocks are not in the order of their `tool_use` blocks");
        return Err(broken("tool-result-order", text));
    }
    Ok(())
}

/// While a tool loop runs with thinking on, the calling message must still hold the thinking that came before its calls.
pub(super) fn check_thinking_kept(messages: &[Value]) -> Check {
    let [.., assistant, last] = messages else { return Ok(()) };
    let answers_tools =
        last["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"));
    if !answers_tools {
        return Ok(());
    }
    let mut thinking = 0;
    for (index, block) in assistant["content"].as_array().into_iter().flatten().enumerate() {
        match block["type"].as_str() {
            Some("thinking" | "redacted_thinking") => thinking += 1,
            Some("tool_use") => {
                let (id, name) = (block["id"].as_str().unwrap_or_default(), block["name"].as_str().unwrap_or_default());
                if sign::verify_tool_id(id, name).is_some_and(|before| before != thinking) {
                    let text = format!(
                        "messages.{}.content.{index}: Expected the `thinking` or `redacted_thinking` blocks of the original response before `tool_use`; they must remain as they were.",
                        messages.len() - 2
                    );
                    return Err(broken("thinking-kept", text));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A text block: not empty, no unknown key.
pub(super) fn check_text(block: &Value, place: &str) -> Check {
    match block["text"].as_str() {
        None => return Err(broken("content", format!("{place}.text.text: Field required"))),
        Some("") => return Err(broken("content", "messages: text content blocks must be non-empty")),
        Some(text) if text.trim().is_empty() => {
            return Err(broken("content", "messages: text content blocks must contain non-whitespace text"));
        }
        Some(_) => {}
    }
    check_keys(block, place, "text", &["type", "text", "cache_control", "citations"])
}

/// `cache_control` is `{type: "ephemeral", ttl?: "5m" | "1h"}`.
pub(super) fn check_cache_control(block: &Value, place: &str) -> Check {
    let control = &block["cache_control"];
    if control.is_null() {
        return Ok(());
    }
    let lifetime = &control["ttl"];
    let known_lifetime = lifetime.is_null() || lifetime == "5m" || lifetime == "1h";
    if control["type"] != "ephemeral" || !known_lifetime || unknown_key(control, &["type", "ttl"]).is_some() {
        return Err(broken("cache-control", format!("{place}.cache_control: Input should be {{type: 'ephemeral'}}")));
    }
    Ok(())
}

/// The first key that is not allowed.
pub(super) fn unknown_key<'a>(value: &'a Value, allowed: &[&str]) -> Option<&'a str> {
    value.as_object()?.keys().map(String::as_str).find(|key| !allowed.contains(key))
}

/// 1 to `longest` of `[A-Za-z0-9_-]`.
pub(super) fn is_name(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn check_keys(block: &Value, place: &str, kind: &str, allowed: &[&str]) -> Check {
    if let Some(unknown) = unknown_key(block, allowed) {
        return Err(broken("content", format!("{place}.{kind}.{unknown}: Extra inputs are not permitted")));
    }
    check_cache_control(block, place)
}

/// A thinking block is one this double made, unchanged, after the earlier ones of the same answer. Gives its place there.
fn check_thinking(
    block: &Value,
    place: &str,
    earlier: Option<(String, usize)>,
) -> Result<(String, usize), ProviderError> {
    let (kind, signature, text, keys) = if block["type"] == "thinking" {
        ("thinking", &block["signature"], block["thinking"].as_str(), &["type", "thinking", "signature"])
    } else {
        ("redacted_thinking", &block["data"], Some(""), &["type", "data", "data"])
    };
    check_keys(block, place, kind, keys)?;
    let Some(text) = text else {
        return Err(broken("thinking", format!("{place}.thinking.thinking: Field required")));
    };
    let made = sign::verify_signature(signature.as_str().unwrap_or_default(), text);
    let Some((nonce, index)) = made else {
        return Err(broken("thinking-signature", format!("{place}: Invalid `signature` in `{kind}` block")));
    };
    if earlier.is_some_and(|(earlier_nonce, earlier_index)| earlier_nonce != nonce || earlier_index >= index) {
        let text = format!("{place}: `{kind}` blocks must remain as they were in the original response");
        return Err(broken("thinking-order", text));
    }
    Ok((nonce, index))
}

fn check_tool_use(
    block: &Value,
    place: &str,
    declared: &HashSet<String>,
    ids: &mut HashSet<String>,
) -> Result<String, ProviderError> {
    check_keys(block, place, "tool_use", &["type", "id", "name", "input", "cache_control"])?;
    let (id, name) = (block["id"].as_str().unwrap_or_default(), block["name"].as_str().unwrap_or_default());
    if !is_name(id, 256) {
        let text = format!("{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'");
        return Err(broken("tool-use-id", text));
    }
    if !block["input"].is_object() {
        return Err(broken("tool-use-input", format!("{place}.tool_use.input: Input should be a valid dictionary")));
    }
    // A name that the model itself invented is replayed as it was; its id proves that.
    if !declared.contains(name) && sign::verify_tool_id(id, name).is_none() {
        return Err(broken("tool-name", format!("{place}.tool_use.name: tool `{name}` is not declared")));
    }
    if !ids.insert(id.to_owned()) {
        return Err(broken("tool-use-id", format!("{place}: `tool_use` ids must be unique")));
    }
    Ok(id.to_owned())
}

fn check_tool_result(block: &Value, place: &str) -> Check {
    check_keys(block, place, "tool_result", &["type", "tool_use_id", "content", "is_error", "cache_control"])?;
    if !matches!(block.get("is_error"), None | Some(Value::Bool(_))) {
        return Err(broken("tool-result", format!("{place}.tool_result.is_error: Input should be a valid boolean")));
    }
    let empty = match &block["content"] {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(blocks) => {
            for (index, inner) in blocks.iter().enumerate() {
                let inner_place = format!("{place}.tool_result.content.{index}");
                match inner["type"].as_str() {
                    Some("text") => check_text(inner, &inner_place)?,
                    Some("image" | "document") => check_source(inner, &inner_place)?,
                    other => return Err(unexpected(&inner_place, other)),
                }
            }
            blocks.is_empty()
        }
        _ => return Err(broken("tool-result", format!("{place}.tool_result.content: Input should be a valid list"))),
    };
    if empty && block["is_error"] == true {
        return Err(broken("tool-result", format!("{place}: content cannot be empty if `is_error` is true")));
    }
    Ok(())
}

fn check_source(block: &Value, place: &str) -> Check {
    let source = &block["source"];
    let kind = block["type"].as_str().unwrap_or_default();
    check_keys(block, place, kind, &["type", "source", "cache_control", "title", "context", "citations"])?;
    let good = match source["type"].as_str() {
        Some("base64") => {
            let known = ["image/jpeg", "image/png", "image/gif", "image/webp", "application/pdf"];
            let data = source["data"].as_str().unwrap_or_default();
            let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data);
            known.contains(&source["media_type"].as_str().unwrap_or_default())
                && bytes.is_ok_and(|bytes| !bytes.is_empty())
        }
        Some("url") => source["url"].as_str().is_some_and(|url| url.starts_with("https://")),
        Some("text") => kind == "document" && source["data"].as_str().is_some_and(|text| !text.is_empty()),
        _ => false,
    };
    if good { Ok(()) } else { Err(broken("source", format!("{place}.{kind}.source: Input is not a valid source"))) }
}

fn unexpected(place: &str, kind: Option<&str>) -> ProviderError {
    let kind = kind.unwrap_or("nothing");
    broken("content", format!("{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags"))
}
