//! Request bodies of chat completions.
//!
//! Owns the wire form of the conversation: one tool message for each call, in order, right behind the calls. Must not
//! know transport.

use serde_json::{Value, json};

use super::ReasoningField;
use crate::llm::{AssistantBlock, InputBlock, ModelMessage, ModelRequest, ThinkingLevel};

/// Stands before images of tool results, which only a user message may hold.
const IMAGES_OF_RESULTS: &str = "Images of the tool results above:";
/// Content of a result without text; some servers refuse an empty one.
const NO_TEXT: &str = "(no text)";

/// Builds the body. It names no output limit: servers of this wire disagree on the field, and each has its own default.
pub fn body(request: &ModelRequest) -> Value {
    let mut body = json!({
        "model": request.model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": messages(&request.system, &request.messages),
    });
    if !request.tools.is_empty() {
        body["tools"] = request
            .tools
            .iter()
            .map(|tool| {
                json!({"type": "function", "function": {
                    "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
                }})
            })
            .collect();
    }
    // Models that do not reason refuse the field, so it is sent only on request.
    let effort = match request.thinking {
        ThinkingLevel::Off => None,
        ThinkingLevel::Low => Some("low"),
        ThinkingLevel::Medium => Some("medium"),
        ThinkingLevel::High => Some("high"),
    };
    if let Some(effort) = effort {
        body["reasoning_effort"] = json!(effort);
    }
    body
}

fn messages(system: &str, conversation: &[ModelMessage]) -> Vec<Value> {
    let mut messages = Vec::with_capacity(conversation.len() + 1);
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    // Reasoning belongs to the tool loop that it began: servers want it back there, and some refuse it later.
    let loop_begins = conversation.iter().rposition(|message| matches!(message, ModelMessage::User(_)));
    // Parts of the user message that is being put together.
    let mut user: Vec<Value> = Vec::new();
    for (position, message) in conversation.iter().enumerate() {
        match message {
            ModelMessage::User(blocks) => user.extend(blocks.iter().filter_map(part)),
            ModelMessage::Assistant(blocks) => {
                let in_loop = loop_begins.is_none_or(|begin| position > begin);
                if let Some(message) = assistant(blocks, in_loop) {
                    flush(&mut user, &mut messages);
                    messages.push(message);
                }
            }
            ModelMessage::ToolResult { tool_call_id, content, .. } => {
                let images = content.iter().filter(|block| matches!(block, InputBlock::Image { .. }));
                let images: Vec<Value> = images.filter_map(part).collect();
                if user.is_empty() && !images.is_empty() {
                    user.push(json!({"type": "text", "text": IMAGES_OF_RESULTS}));
                }
                user.extend(images);
                messages.push(json!({"role": "tool", "tool_call_id": tool_call_id, "content": text_of(content)}));
            }
        }
    }
    flush(&mut user, &mut messages);
    messages
}

/// Ends a user message. One text alone is sent as text, which every server takes.
fn flush(user: &mut Vec<Value>, messages: &mut Vec<Value>) {
    let parts = std::mem::take(user);
    let content = match parts.as_slice() {
        [] => return,
        [only] if only["type"] == "text" => only["text"].clone(),
        _ => Value::Array(parts),
    };
    messages.push(json!({"role": "user", "content": content}));
}

fn part(block: &InputBlock) -> Option<Value> {
    match block {
        InputBlock::Text { text } if text.trim().is_empty() => None,
        InputBlock::Text { text } => Some(json!({"type": "text", "text": text})),
        InputBlock::Image { mime_type, data } => Some(json!({
            "type": "image_url", "image_url": {"url": format!("data:{mime_type};base64,{data}")},
        })),
    }
}

fn text_of(content: &[InputBlock]) -> String {
    let texts = content.iter().filter_map(|block| match block {
        InputBlock::Text { text } if !text.is_empty() => Some(text.as_str()),
        _ => None,
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    if text.is_empty() { NO_TEXT.to_owned() } else { text }
}

/// `None` for a message that holds nothing this wire can carry.
fn assistant(blocks: &[AssistantBlock], in_loop: bool) -> Option<Value> {
    let mut texts: Vec<&str> = Vec::new();
    let mut calls = Vec::new();
    let mut reasoning: Option<(ReasoningField, String)> = None;
    for block in blocks {
        match block {
            AssistantBlock::Text { text } if text.trim().is_empty() => {}
            AssistantBlock::Text { text } => texts.push(text),
            AssistantBlock::Thinking { thinking, thinking_signature, .. } => {
                if let Some(field) = ReasoningField::of_signature(thinking_signature.as_deref()) {
                    reasoning.get_or_insert_with(|| (field, String::new())).1.push_str(thinking);
                }
            }
            AssistantBlock::ToolCall { id, name, arguments } => {
                let arguments = if arguments.is_object() { arguments.to_string() } else { "{}".to_owned() };
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
        }
    }
    if texts.is_empty() && calls.is_empty() {
        return None;
    }
    let mut message = json!({"role": "assistant", "content": Value::Null});
    if !texts.is_empty() {
        message["content"] = json!(texts.join("\n\n"));
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    if let Some((field, text)) = reasoning.filter(|_| in_loop) {
        message[field.name()] = json!(text);
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::catalog::ToolDefinition;

    fn text(text: &str) -> InputBlock {
        InputBlock::Text { text: text.into() }
    }

    fn image() -> InputBlock {
        InputBlock::Image { mime_type: "image/png".into(), data: "AAAA".into() }
    }

    fn thinking(text: &str, signature: Option<&str>) -> AssistantBlock {
        AssistantBlock::Thinking {
            thinking: text.into(),
            thinking_signature: signature.map(str::to_owned),
            redacted: false,
        }
    }

    fn call(id: &str, arguments: Value) -> AssistantBlock {
        AssistantBlock::ToolCall { id: id.into(), name: "bash".into(), arguments }
    }

    fn result(id: &str, content: Vec<InputBlock>) -> ModelMessage {
        ModelMessage::ToolResult { tool_call_id: id.into(), content, is_error: false }
    }

    fn request(messages: Vec<ModelMessage>, thinking: ThinkingLevel) -> ModelRequest {
        ModelRequest {
            model: "a-model".into(),
            system: "Be brief.".into(),
            messages: Arc::new(messages),
            tools: vec![ToolDefinition {
                name: "bash".into(),
                description: "Runs".into(),
                input_schema: json!({"type": "object"}),
            }],
            thinking,
            cancel: CancellationToken::new(),
        }
    }

    #[test]
    fn a_conversation_with_tools_images_and_reasoning_becomes_exactly_this_body() {
        let conversation = vec![
            ModelMessage::User(vec![text("first"), image()]),
            ModelMessage::Assistant(vec![
                thinking("old", Some("reasoning_content")),
                AssistantBlock::Text { text: "One.".into() },
                AssistantBlock::Text { text: " ".into() },
                AssistantBlock::Text { text: "Two.".into() },
            ]),
            ModelMessage::User(vec![text("next"), text("")]),
            ModelMessage::Assistant(vec![
                thinking("new ", Some("reasoning_content")),
                thinking("thought", Some("reasoning_content")),
                thinking("of another wire", Some("EqQB")),
                call("a", json!({"command": "x"})),
                call("b", json!("raw")),
            ]),
            result("a", vec![text("out"), image()]),
            result("b", vec![text("")]),
            ModelMessage::Assistant(vec![thinking("only", Some("reasoning"))]),
            ModelMessage::Assistant(vec![thinking("more", Some("reasoning")), call("c", json!({}))]),
            result("c", vec![text("1"), text("2")]),
        ];
        let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        let wire_call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}});
        let expected = json!({
            "model": "a-model",
            "stream": true,
            "stream_options": {"include_usage": true},
            "reasoning_effort": "medium",
            "tools": [{"type": "function", "function": {
                "name": "bash", "description": "Runs", "parameters": {"type": "object"},
            }}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "first"}, picture]},
                {"role": "assistant", "content": "One.\n\nTwo."},
                {"role": "user", "content": "next"},
                {"role": "assistant", "content": null, "reasoning_content": "new thought", "tool_calls": [
                    wire_call("a", "{\"command\":\"x\"}"), wire_call("b", "{}"),
                ]},
                {"role": "tool", "tool_call_id": "a", "content": "out"},
                {"role": "tool", "tool_call_id": "b", "content": "(no text)"},
                {"role": "user", "content": [{"type": "text", "text": "Images of the tool results above:"}, picture]},
                {"role": "assistant", "content": null, "reasoning": "more", "tool_calls": [wire_call("c", "{}")]},
                {"role": "tool", "tool_call_id": "c", "content": "1\n2"},
            ],
        });
        assert_eq!(body(&request(conversation, ThinkingLevel::Medium)), expected);
    }

    #[test]
    fn without_thinking_tools_and_system_nothing_is_said_of_them() {
        let mut request =
            request(vec![ModelMessage::User(vec![text("a")]), ModelMessage::User(vec![text("b")])], ThinkingLevel::Off);
        request.tools.clear();
        request.system.clear();
        let expected = json!({
            "model": "a-model", "stream": true, "stream_options": {"include_usage": true},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        });
        assert_eq!(body(&request), expected);
    }
}
