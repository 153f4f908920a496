//! What a chat completions request must be. Sentences are the provider's where they are known; beyond the provider's own
//! checks a conversation must be put together with care: texts are not empty, roles take turns.

use std::collections::HashSet;

use serde_json::Value;

use super::super::blocks::{is_name, unknown_key};
use super::super::invariants::{Check, broken};
use super::super::sign;
use super::view;

const KNOWN_FIELDS: [&str; 24] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "user",
    "metadata",
    "store",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "service_tier",
    "prompt_cache_key",
];
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
/// Media types of images.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Checks everything; the first violation wins.
pub(super) fn check(body: &Value, reasoning_field: &str) -> Check {
    let Some(fields) = body.as_object() else {
        return Err(broken("body", "The body must be a JSON object"));
    };
    if let Some(unknown) = fields.keys().find(|key| !KNOWN_FIELDS.contains(&key.as_str())) {
        return Err(broken("fields", format!("Unrecognized request argument supplied: {unknown}")));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err(broken("model", "you must provide a model parameter"));
    }
    check_stream(body)?;
    let effort = &body["reasoning_effort"];
    if !effort.is_null() && !effort.as_str().is_some_and(|effort| EFFORTS.contains(&effort)) {
        return Err(broken("reasoning-effort", format!("Invalid value: {effort}. Supported values are {EFFORTS:?}.")));
    }
    let declared = check_tools(body)?;
    Conversation { declared, reasoning_field, calls: HashSet::new() }.check(body)
}

fn check_stream(body: &Value) -> Check {
    if !matches!(body.get("stream"), None | Some(Value::Bool(_))) {
        return Err(broken("stream", "Invalid type for 'stream': expected a boolean"));
    }
    let options = &body["stream_options"];
    if options.is_null() {
        return Ok(());
    }
    if body["stream"] != true {
        return Err(broken(
            "stream-options",
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        ));
    }
    let known = unknown_key(options, &["include_usage"]).is_none();
    if !known || !matches!(options.get("include_usage"), None | Some(Value::Bool(_))) {
        return Err(broken("stream-options", "Invalid 'stream_options'"));
    }
    Ok(())
}

fn check_tools(body: &Value) -> Result<HashSet<String>, super::ProviderError> {
    let mut names = HashSet::new();
    let tools = match &body["tools"] {
        Value::Null => return Ok(names),
        Value::Array(tools) if !tools.is_empty() => tools,
        _ => return Err(broken("tools", "Invalid 'tools': expected a non-empty array")),
    };
    for (position, tool) in tools.iter().enumerate() {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let sound = tool["type"] == "function"
            && unknown_key(tool, &["type", "function"]).is_none()
            && unknown_key(function, &["name", "description", "parameters", "strict"]).is_none()
            && function["parameters"]["type"] == "object"
            && matches!(function.get("description"), None | Some(Value::String(_)));
        if !sound {
            return Err(broken("tools", format!("Invalid 'tools[{position}]'")));
        }
        if !is_name(name, 64) {
            let message =
                format!("Invalid 'tools[{position}].function.name': expected a pattern '^[a-zA-Z0-9_-]{{1,64}}$'");
            return Err(broken("tools", message));
        }
        if !names.insert(name.to_owned()) {
            return Err(broken("tools", format!("tool name {name} stands twice")));
        }
    }
    Ok(names)
}

struct Conversation<'a> {
    declared: HashSet<String>,
    reasoning_field: &'a str,
    /// Ids of all calls so far.
    calls: HashSet<String>,
}

impl Conversation<'_> {
    fn check(&mut self, body: &Value) -> Check {
        let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        if messages.is_empty() {
            return Err(broken("messages", "[] is too short - 'messages'"));
        }
        let loop_begins = (0..messages.len())
            .rfind(|position| messages[*position]["role"] == "user" && !view::shows_results(messages, *position));
        // Calls of the last assistant message that wait for their results, in order.
        let mut waiting: Vec<String> = Vec::new();
        let mut before = "";
        for (position, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            if role != "tool" && !waiting.is_empty() {
                let text = format!(
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
                    waiting.join(", ")
                );
                return Err(broken("missing-tool-result", text));
            }
            match (before, role) {
                ("" | "system", "system") => check_system(message, position)?,
                ("" | "system" | "assistant" | "tool", "user") => check_user(message, position)?,
                ("user" | "tool", "assistant") => {
                    let in_loop = loop_begins.is_none_or(|begin| position > begin);
                    waiting = self.check_assistant(message, position, in_loop)?;
                }
                ("assistant" | "tool", "tool") => check_result(message, position, &mut waiting)?,
                _ => {
                    return Err(broken("roles", format!("messages[{position}]: a '{role}' message after '{before}'")));
                }
            }
            before = role;
        }
        if !waiting.is_empty() || !matches!(before, "user" | "tool") {
            return Err(broken("roles", "the conversation must end with a user message or all tool results"));
        }
        Ok(())
    }

    /// Gives the ids of the calls in order.
    fn check_assistant(
        &mut self,
        message: &Value,
        position: usize,
        in_loop: bool,
    ) -> Result<Vec<String>, super::ProviderError> {
        let place = format!("messages[{position}]");
        check_keys(message, &["role", "content", "tool_calls", "refusal", self.reasoning_field], &place)?;
        let calls: &[Value] = match message.get("tool_calls") {
            None => &[],
            Some(Value::Array(calls)) if !calls.is_empty() => calls.as_slice(),
            Some(_) => return Err(broken("tool-calls", format!("Invalid '{place}.tool_calls': empty array"))),
        };
        match &message["content"] {
            Value::Null if !calls.is_empty() => {}
            Value::String(text) if !text.trim().is_empty() => {}
            _ => return Err(broken("content", format!("Invalid value for 'content' in '{place}'"))),
        }
        let mut ids = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            ids.push(self.check_call(call, &format!("{place}.tool_calls[{index}]"))?);
        }
        self.check_reasoning(message, calls, in_loop, &place)?;
        Ok(ids)
    }

    fn check_call(&mut self, call: &Value, place: &str) -> Result<String, super::ProviderError> {
        check_keys(call, &["id", "type", "function"], place)?;
        let function = &call["function"];
        check_keys(function, &["name", "arguments"], place)?;
        let (id, name) = (call["id"].as_str().unwrap_or_default(), function["name"].as_str().unwrap_or_default());
        if call["type"] != "function" || id.is_empty() {
            return Err(broken("tool-calls", format!("Invalid '{place}'")));
        }
        if !self.calls.insert(id.to_owned()) {
            return Err(broken("tool-call-id", format!("'{place}.id' {id} stands twice")));
        }
        // A name that the model itself invented is replayed as it was; its id proves that.
        if !self.declared.contains(name) && thinking_before(id, name).is_none() {
            return Err(broken("tool-name", format!("'{place}.function.name': tool {name} is not declared")));
        }
        let arguments = function["arguments"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if !arguments.is_some_and(|arguments| arguments.is_object()) {
            return Err(broken("tool-arguments", format!("Invalid '{place}.function.arguments': no JSON object")));
        }
        Ok(id.to_owned())
    }

    /// In a tool loop the reasoning before the calls must come back; later it must not.
    fn check_reasoning(&self, message: &Value, calls: &[Value], in_loop: bool, place: &str) -> Check {
        let field = self.reasoning_field;
        let reasoning = message.get(field);
        if !in_loop {
            return match reasoning {
                None => Ok(()),
                Some(_) => Err(broken("reasoning-kept", format!("'{place}.{field}' belongs to a finished turn"))),
            };
        }
        let thought = calls.iter().any(|call| {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            thinking_before(call["id"].as_str().unwrap_or_default(), name).is_some_and(|before| before > 0)
        });
        match reasoning {
            None if thought => Err(broken(
                "reasoning-kept",
                format!("The `{field}` in the thinking mode must be passed back to the API. ({place})"),
            )),
            None => Ok(()),
            Some(Value::String(text)) if !text.is_empty() => Ok(()),
            Some(_) => Err(broken("reasoning-kept", format!("Invalid '{place}.{field}'"))),
        }
    }
}

/// How many thinking blocks stood before a call of this double.
fn thinking_before(id: &str, name: &str) -> Option<usize> {
    sign::verify_tool_id(&id.replacen(super::answer::CALL_PREFIX, "toolu_", 1), name)
}

fn check_keys(value: &Value, allowed: &[&str], place: &str) -> Check {
    match unknown_key(value, allowed) {
        Some(unknown) => Err(broken("content", format!("Unknown parameter: '{place}.{unknown}'."))),
        None => Ok(()),
    }
}

fn check_system(message: &Value, position: usize) -> Check {
    check_keys(message, &["role", "content"], &format!("messages[{position}]"))?;
    if position > 0 || message["content"].as_str().is_none_or(|text| text.trim().is_empty()) {
        return Err(broken("system", format!("messages[{position}]: one system message with a text stands first")));
    }
    Ok(())
}

fn check_user(message: &Value, position: usize) -> Check {
    let place = format!("messages[{position}]");
    check_keys(message, &["role", "content"], &place)?;
    let bad = |what: &str| Err(broken("content", format!("Invalid '{place}.content': {what}")));
    match &message["content"] {
        Value::String(text) if !text.trim().is_empty() => Ok(()),
        Value::Array(parts) if !parts.is_empty() => {
            for part in parts {
                match part["type"].as_str() {
                    Some("text") => {
                        check_keys(part, &["type", "text"], &place)?;
                        if part["text"].as_str().is_none_or(|text| text.trim().is_empty()) {
                            return bad("an empty text");
                        }
                    }
                    Some("image_url") => {
                        check_keys(part, &["type", "image_url"], &place)?;
                        check_image(&part["image_url"], &place)?;
                    }
                    _ => return bad("an unknown part"),
                }
            }
            Ok(())
        }
        _ => bad("empty"),
    }
}

fn check_image(image: &Value, place: &str) -> Check {
    use base64::Engine as _;
    check_keys(image, &["url", "detail"], place)?;
    let url = image["url"].as_str().unwrap_or_default();
    let sound = url.starts_with("https://")
        || url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")).is_some_and(|(kind, data)| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data);
            IMAGES.contains(&kind) && bytes.is_ok_and(|bytes| !bytes.is_empty())
        });
    if sound { Ok(()) } else { Err(broken("source", format!("Invalid image URL in '{place}'"))) }
}

/// A result answers the first call that waits.
fn check_result(message: &Value, position: usize, waiting: &mut Vec<String>) -> Check {
    let place = format!("messages[{position}]");
    check_keys(message, &["role", "tool_call_id", "content"], &place)?;
    if message["content"].as_str().is_none_or(str::is_empty) {
        return Err(broken("tool-result", format!("Invalid '{place}.content': a text is needed")));
    }
    let id = message["tool_call_id"].as_str().unwrap_or_default();
    match waiting.iter().position(|call| call == id) {
        Some(0) => {
            waiting.remove(0);
            Ok(())
        }
        Some(_) => Err(broken("tool-result-order", format!("{place}: results are not in the order of their calls"))),
        None => {
            let text = format!(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'. ({place}, {id})"
            );
            Err(broken("orphan-tool-result", text))
        }
    }
}
