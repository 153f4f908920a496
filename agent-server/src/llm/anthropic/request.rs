//! Request bodies of the Anthropic Messages API.
//!
//! Owns the wire form of the conversation: alternating roles, block order, cache breakpoints. Must not know transport.

use serde_json::{Value, json};

use crate::llm::known::ThinkingStyle;
use crate::llm::{AssistantBlock, InputBlock, ModelMessage, ModelRequest, ThinkingLevel, known};

/// Room for the answer on top of the thinking budget.
const ANSWER_TOKENS: u32 = 32_000;
/// The API's smallest thinking budget.
const MIN_THINKING_BUDGET: u32 = 1_024;

/// Builds the body. Breakpoints: the last tool, the system text, the last two user messages (the API allows four).
pub fn body(request: &ModelRequest) -> Value {
    let limit = known::max_output(&request.model);
    let budget = request.thinking.budget().min(limit / 2);
    let mut body = json!({
        "model": request.model,
        "max_tokens": limit.min(budget + ANSWER_TOKENS),
        "stream": true,
        "messages": messages(&request.messages),
    });
    if !request.system.is_empty() {
        body["system"] = json!([{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]);
    }
    if !request.tools.is_empty() {
        body["tools"] = tools(request);
    }
    think(&mut body, request, budget);
    body
}

/// Sets how the model thinks. Models that think by themselves are asked for a summary: they show nothing else, not even
/// what they say between tool calls.
fn think(body: &mut Value, request: &ModelRequest, budget: u32) {
    let style = known::thinking(&request.model);
    let effort = match (request.thinking, style) {
        (ThinkingLevel::Off, ThinkingStyle::Budget | ThinkingStyle::Adaptive { least: None }) => return,
        (_, ThinkingStyle::Budget) => {
            if budget >= MIN_THINKING_BUDGET {
                body["thinking"] = json!({"type": "enabled", "budget_tokens": budget});
            }
            return;
        }
        (ThinkingLevel::Off, ThinkingStyle::Adaptive { least: Some(least) }) if least != "adaptive" => {
            body["thinking"] = json!({"type": least});
            return;
        }
        (ThinkingLevel::Off | ThinkingLevel::Low, ThinkingStyle::Adaptive { .. }) => "low",
        (ThinkingLevel::Medium, ThinkingStyle::Adaptive { .. }) => "medium",
        (ThinkingLevel::High, ThinkingStyle::Adaptive { .. }) => "high",
    };
    body["thinking"] = json!({"type": "adaptive", "display": "summarized"});
    body["output_config"] = json!({"effort": effort});
}

/// The provider's own models hold arguments back until they are whole unless told to stream them; other servers of this
/// wire are not bothered with the setting.
fn tools(request: &ModelRequest) -> Value {
    let eager = request.model.starts_with("claude-");
    let mut tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            let mut value =
                json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema});
            if eager {
                value["eager_input_streaming"] = json!(true);
            }
            value
        })
        .collect();
    if let Some(last) = tools.last_mut() {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    Value::Array(tools)
}

/// Neighbours of one role become one message; in a user message tool results stand before everything else, as the
/// API demands. Blocks the API refuses (empty text, thinking without a signature) are left out.
fn messages(conversation: &[ModelMessage]) -> Value {
    let mut messages: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for message in conversation {
        let (role, blocks) = match message {
            ModelMessage::User(blocks) => ("user", blocks.iter().filter_map(input_block).collect()),
            ModelMessage::Assistant(blocks) => ("assistant", blocks.iter().filter_map(assistant_block).collect()),
            ModelMessage::ToolResult { tool_call_id, content, is_error } => {
                ("user", vec![tool_result(tool_call_id, content, *is_error)])
            }
        };
        if blocks.is_empty() {
            continue;
        }
        match messages.last_mut() {
            Some((last, all)) if *last == role => all.extend::<Vec<Value>>(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    let mut breakpoints = 2;
    for (role, blocks) in messages.iter_mut().rev() {
        if *role != "user" {
            continue;
        }
        blocks.sort_by_key(|block| block["type"] != "tool_result"); // stable: results first, order kept
        if breakpoints > 0
            && let Some(last) = blocks.last_mut()
        {
            last["cache_control"] = json!({"type": "ephemeral"});
            breakpoints -= 1;
        }
    }
    messages.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn input_block(block: &InputBlock) -> Option<Value> {
    match block {
        InputBlock::Text { text } if text.trim().is_empty() => None,
        InputBlock::Text { text } => Some(json!({"type": "text", "text": text})),
        InputBlock::Image { mime_type, data } => Some(json!({
            "type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data},
        })),
    }
}

fn assistant_block(block: &AssistantBlock) -> Option<Value> {
    match block {
        AssistantBlock::Text { text } if text.trim().is_empty() => None,
        AssistantBlock::Text { text } => Some(json!({"type": "text", "text": text})),
        AssistantBlock::Thinking { thinking_signature: Some(data), redacted: true, .. } => {
            Some(json!({"type": "redacted_thinking", "data": data}))
        }
        AssistantBlock::Thinking { thinking, thinking_signature: Some(signature), redacted: false } => {
            Some(json!({"type": "thinking", "thinking": thinking, "signature": signature}))
        }
        AssistantBlock::Thinking { .. } => None,
        AssistantBlock::ToolCall { id, name, arguments } => {
            let input = if arguments.is_object() { arguments.clone() } else { json!({}) };
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
    }
}

fn tool_result(tool_call_id: &str, content: &[InputBlock], is_error: bool) -> Value {
    let content: Vec<Value> = content.iter().filter_map(input_block).collect();
    let mut result = json!({"type": "tool_result", "tool_use_id": tool_call_id});
    if !content.is_empty() {
        result["content"] = Value::Array(content);
    }
    if is_error {
        result["is_error"] = json!(true);
    }
    result
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

    #[test]
    fn a_conversation_with_thinking_and_failed_tools_becomes_exactly_this_body() {
        let request = ModelRequest {
            model: "claude-sonnet-4-5".into(),
            system: "Be brief.".into(),
            messages: Arc::new(vec![
                ModelMessage::User(vec![text("first")]),
                ModelMessage::Assistant(vec![
                    AssistantBlock::Thinking {
                        thinking: "hm".into(),
                        thinking_signature: Some("SIG".into()),
                        redacted: false,
                    },
                    AssistantBlock::Thinking {
                        thinking: String::new(),
                        thinking_signature: Some("OPAQUE".into()),
                        redacted: true,
                    },
                    AssistantBlock::Thinking { thinking: "cut".into(), thinking_signature: None, redacted: false },
                    AssistantBlock::Text { text: "  ".into() },
                    AssistantBlock::ToolCall {
                        id: "a".into(),
                        name: "bash".into(),
                        arguments: json!({"command": "x"}),
                    },
                    AssistantBlock::ToolCall { id: "b".into(), name: "ls".into(), arguments: json!("raw") },
                ]),
                ModelMessage::ToolResult { tool_call_id: "a".into(), content: vec![text("no")], is_error: true },
                ModelMessage::ToolResult { tool_call_id: "b".into(), content: vec![text("")], is_error: false },
                ModelMessage::User(vec![text("go on")]),
            ]),
            tools: vec![
                ToolDefinition {
                    name: "bash".into(),
                    description: "d".into(),
                    input_schema: json!({"type": "object"}),
                },
                ToolDefinition { name: "ls".into(), description: "e".into(), input_schema: json!({"type": "object"}) },
            ],
            thinking: ThinkingLevel::Low,
            cancel: CancellationToken::new(),
        };
        let mark = json!({"type": "ephemeral"});
        assert_eq!(
            body(&request),
            json!({
                "model": "claude-sonnet-4-5", "max_tokens": 36_096, "stream": true,
                "thinking": {"type": "enabled", "budget_tokens": 4096},
                "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
                "tools": [
                    {"name": "bash", "description": "d", "input_schema": {"type": "object"},
                     "eager_input_streaming": true},
                    {"name": "ls", "description": "e", "input_schema": {"type": "object"},
                     "eager_input_streaming": true, "cache_control": mark},
                ],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "first", "cache_control": mark}]},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
                        {"type": "redacted_thinking", "data": "OPAQUE"},
                        {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "x"}},
                        {"type": "tool_use", "id": "b", "name": "ls", "input": {}},
                    ]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "no"}],
                         "is_error": true},
                        {"type": "tool_result", "tool_use_id": "b"},
                        {"type": "text", "text": "go on", "cache_control": mark},
                    ]},
                ],
            })
        );
    }

    #[test]
    fn each_family_is_asked_to_think_in_its_own_way() {
        let settings = |model: &str, thinking| {
            let request = ModelRequest {
                model: model.into(),
                system: String::new(),
                messages: Arc::default(),
                tools: Vec::new(),
                thinking,
                cancel: CancellationToken::new(),
            };
            let body = body(&request);
            (body["thinking"].clone(), body["output_config"].clone())
        };
        let adaptive = |effort| (json!({"type": "adaptive", "display": "summarized"}), json!({"effort": effort}));
        let off = |word| (json!({"type": word}), Value::Null);
        let budget = |tokens| (json!({"type": "enabled", "budget_tokens": tokens}), Value::Null);
        let nothing = (Value::Null, Value::Null);
        assert_eq!(settings("claude-opus-5-5", ThinkingLevel::High), adaptive("high"));
        assert_eq!(settings("claude-opus-5-5", ThinkingLevel::Off), adaptive("low"));
        assert_eq!(settings("claude-sonnet-5-5", ThinkingLevel::Medium), adaptive("medium"));
        assert_eq!(settings("claude-sonnet-5-5", ThinkingLevel::Off), off("between_tools"));
        assert_eq!(settings("claude-opus-4-8", ThinkingLevel::Off), off("disabled"));
        assert_eq!(settings("claude-haiku-4-5", ThinkingLevel::Off), nothing);
        assert_eq!(settings("claude-haiku-4-5", ThinkingLevel::Low), budget(4_096));
        assert_eq!(settings("claude-next", ThinkingLevel::Off), nothing);
        assert_eq!(settings("claude-next", ThinkingLevel::Low), adaptive("low"));
        assert_eq!(settings("local-model", ThinkingLevel::Low), budget(4_096));
    }
}
