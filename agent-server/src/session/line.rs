//! How lines of the session file are written and read: version 3 of the pi coding agent's sessions, and what that
//! program and others put into such files.
//!
//! Owns the JSON of every line. Must not touch a disk.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::entry::{
    Assistant, Block, Entry, FOLLOW_UP_TYPE, FollowUpData, KeptImage, Kind, TURN_TYPE, ToolResult, TurnData,
};
use super::ids;
use crate::llm::known::Cost;
use crate::llm::{AssistantBlock, Usage};

/// The header line, at most 511 bytes: readers of the format look no further. `parent` is the file that the session was
/// forked from.
pub fn header(id: &str, timestamp: &str, cwd: &str, parent: Option<&str>) -> String {
    let line = |cwd: &str| {
        let mut header = json!({"type": "session", "version": 3, "id": id, "timestamp": timestamp, "cwd": cwd});
        if let Some(parent) = parent {
            header["parentSession"] = json!(parent);
        }
        header.to_string()
    };
    let mut cwd = cwd;
    while line(cwd).len() > 511 {
        cwd = &cwd[..cwd.floor_char_boundary(cwd.len() - 1)];
    }
    // `type` must come first; the map sorts its keys.
    let rest = line(cwd).replacen(",\"type\":\"session\"", "", 1);
    format!("{{\"type\":\"session\",{}", &rest[1..])
}

impl Entry {
    /// The line, without its end.
    pub fn to_line(&self) -> String {
        let (kind, mut body) = self.body();
        body.insert("id".into(), json!(self.id));
        body.insert("parentId".into(), json!(self.parent));
        body.insert("timestamp".into(), json!(self.timestamp));
        let rest = Value::Object(body).to_string();
        format!("{{\"type\":\"{kind}\",{}", &rest[1..])
    }

    fn body(&self) -> (&'static str, Map<String, Value>) {
        let at = ids::milliseconds(&self.timestamp);
        let (kind, body) = match &self.kind {
            Kind::User { content } => {
                let mut body = json!({"message": {"role": "user", "content": blocks_out(content), "timestamp": at}});
                keep_images(&mut body, content);
                ("message", body)
            }
            Kind::Assistant(message) => ("message", json!({"message": assistant_out(message, at)})),
            Kind::ToolResult(result) => {
                let mut message = json!({
                    "role": "toolResult", "toolCallId": result.tool_call_id, "toolName": result.tool_name,
                    "content": blocks_out(&result.content), "isError": result.is_error, "timestamp": at,
                });
                if let Some(details) = &result.details {
                    message["details"] = details.clone();
                }
                let mut body = json!({ "message": message });
                keep_images(&mut body, &result.content);
                ("message", body)
            }
            Kind::Turn(data) => ("custom", json!({"customType": TURN_TYPE, "data": data})),
            Kind::FollowUp(data) => ("custom", json!({"customType": FOLLOW_UP_TYPE, "data": data})),
            Kind::Name(name) => ("session_info", json!({"name": name})),
            Kind::Model { provider, model } => ("model_change", json!({"provider": provider, "modelId": model})),
            Kind::Thinking(level) => ("thinking_level_change", json!({"thinkingLevel": level})),
            Kind::Compaction { summary, first_kept, tokens_before } => (
                "compaction",
                json!({"summary": summary, "firstKeptEntryId": first_kept, "tokensBefore": tokens_before}),
            ),
            Kind::Other { .. } => ("custom", json!({"customType": "unknown", "data": null})),
        };
        match body {
            Value::Object(map) => (kind, map),
            _ => (kind, Map::new()),
        }
    }

    /// Reads a line; `None` for a header, and for lines that are no entry.
    pub fn parse(line: &Value) -> Option<Self> {
        let kind = match line["type"].as_str()? {
            "session" => return None,
            "message" => message_in(line),
            "custom" if line["customType"] == TURN_TYPE => match TurnData::deserialize(&line["data"]) {
                Ok(data) => Kind::Turn(Box::new(data)),
                Err(_) => Kind::Other { text: None },
            },
            "custom" if line["customType"] == FOLLOW_UP_TYPE => match FollowUpData::deserialize(&line["data"]) {
                Ok(data) => Kind::FollowUp(Box::new(data)),
                Err(_) => Kind::Other { text: None },
            },
            "session_info" => Kind::Name(line["name"].as_str().unwrap_or_default().into()),
            "model_change" => Kind::Model {
                provider: line["provider"].as_str().unwrap_or_default().into(),
                model: line["modelId"].as_str().unwrap_or_default().into(),
            },
            "thinking_level_change" => Kind::Thinking(line["thinkingLevel"].as_str().unwrap_or_default().into()),
            "compaction" => Kind::Compaction {
                summary: line["summary"].as_str().unwrap_or_default().into(),
                first_kept: line["firstKeptEntryId"].as_str().unwrap_or_default().into(),
                tokens_before: line["tokensBefore"].as_u64().unwrap_or(0),
            },
            "branch_summary" => Kind::Other { text: line["summary"].as_str().map(str::to_owned) },
            "custom_message" => Kind::Other { text: plain_text(&line["content"]) },
            _ => Kind::Other { text: None },
        };
        Some(Self {
            id: line["id"].as_str()?.to_owned(),
            parent: line["parentId"].as_str().map(str::to_owned),
            timestamp: line["timestamp"].as_str().unwrap_or_default().to_owned(),
            kind,
        })
    }
}

fn blocks_out(content: &[Block]) -> Vec<Value> {
    content
        .iter()
        .map(|block| match block {
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Kept(image) => json!({"type": "text", "text": image.placeholder()}),
            Block::Inline { mime_type, data } => json!({"type": "image", "mimeType": mime_type, "data": data}),
        })
        .collect()
}

/// Beside the message stands which of its blocks are kept images; the text alone could have been written by anybody.
fn keep_images(body: &mut Value, content: &[Block]) {
    let images: BTreeMap<String, &KeptImage> = content
        .iter()
        .enumerate()
        .filter_map(|(index, block)| match block {
            Block::Kept(image) => Some((index.to_string(), image)),
            _ => None,
        })
        .collect();
    if !images.is_empty() {
        body["images"] = json!(images);
    }
}

fn assistant_out(message: &Assistant, at: i64) -> Value {
    let Usage { input, output, cache_read, cache_write } = message.usage;
    let mut out = json!({
        "role": "assistant", "content": message.blocks, "api": message.api, "provider": message.provider,
        "model": message.model, "stopReason": message.stop, "timestamp": at,
        "usage": {
            "input": input, "output": output, "cacheRead": cache_read, "cacheWrite": cache_write,
            "totalTokens": input + output + cache_read + cache_write, "cost": message.cost,
        },
    });
    if let Some(error) = &message.error {
        out["errorMessage"] = json!(error);
    }
    out
}

fn message_in(line: &Value) -> Kind {
    let message = &line["message"];
    match message["role"].as_str().unwrap_or_default() {
        "user" => Kind::User { content: blocks_in(&message["content"], &line["images"]) },
        "assistant" => Kind::Assistant(Assistant {
            blocks: message["content"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|block| AssistantBlock::deserialize(block).ok())
                .collect(),
            api: message["api"].as_str().unwrap_or_default().into(),
            provider: message["provider"].as_str().unwrap_or_default().into(),
            model: message["model"].as_str().unwrap_or_default().into(),
            usage: Usage {
                input: message["usage"]["input"].as_u64().unwrap_or(0),
                output: message["usage"]["output"].as_u64().unwrap_or(0),
                cache_read: message["usage"]["cacheRead"].as_u64().unwrap_or(0),
                cache_write: message["usage"]["cacheWrite"].as_u64().unwrap_or(0),
            },
            cost: cost_in(&message["usage"]["cost"]),
            stop: message["stopReason"].as_str().unwrap_or("stop").into(),
            error: message["errorMessage"].as_str().map(str::to_owned),
        }),
        "toolResult" => Kind::ToolResult(ToolResult {
            tool_call_id: message["toolCallId"].as_str().unwrap_or_default().into(),
            tool_name: message["toolName"].as_str().unwrap_or_default().into(),
            content: blocks_in(&message["content"], &line["images"]),
            details: message.get("details").filter(|details| !details.is_null()).cloned(),
            is_error: message["isError"].as_bool().unwrap_or(false),
        }),
        "bashExecution" => {
            let command = message["command"].as_str().unwrap_or_default();
            let output = message["output"].as_str().unwrap_or_default();
            Kind::Other { text: Some(format!("Ran `{command}`\n{output}")) }
        }
        "branchSummary" | "compactionSummary" => Kind::Other { text: message["summary"].as_str().map(str::to_owned) },
        "custom" => Kind::Other { text: plain_text(&message["content"]) },
        _ => Kind::Other { text: None },
    }
}

fn cost_in(cost: &Value) -> Cost {
    let number = |key: &str| cost[key].as_f64().unwrap_or(0.0);
    Cost {
        input: number("input"),
        output: number("output"),
        cache_read: number("cacheRead"),
        cache_write: number("cacheWrite"),
        total: number("total"),
    }
}

fn blocks_in(content: &Value, images: &Value) -> Vec<Block> {
    match content {
        Value::String(text) => vec![Block::Text(text.clone())],
        Value::Array(blocks) => blocks
            .iter()
            .enumerate()
            .filter_map(|(index, block)| {
                if let Ok(image) = KeptImage::deserialize(&images[index.to_string()]) {
                    return Some(Block::Kept(image));
                }
                match block["type"].as_str()? {
                    "text" => Some(Block::Text(block["text"].as_str()?.into())),
                    "image" => Some(Block::Inline {
                        mime_type: block["mimeType"].as_str()?.into(),
                        data: block["data"].as_str()?.into(),
                    }),
                    _ => None,
                }
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn plain_text(content: &Value) -> Option<String> {
    let texts: Vec<String> = blocks_in(content, &Value::Null)
        .into_iter()
        .filter_map(|block| if let Block::Text(text) = block { Some(text) } else { None })
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON's 0 and 0.0 are one number.
    fn with_float_costs(mut line: Value) -> Value {
        if let Some(Value::Object(cost)) = line.pointer_mut("/message/usage/cost") {
            cost.values_mut().for_each(|number| *number = json!(number.as_f64()));
        }
        line
    }

    #[test]
    fn every_line_of_the_minimal_file_is_written_back_with_the_same_content() {
        for line in include_str!("../../tests/fixtures/minimal-session.jsonl").lines().skip(1) {
            let value: Value = serde_json::from_str(line).expect("fixture");
            let entry = Entry::parse(&value).expect("entry");
            let mut written: Value = serde_json::from_str(&entry.to_line()).expect("line");
            // The message's own time is the line's; the fixture keeps them apart.
            written["message"]["timestamp"] = value["message"]["timestamp"].clone();
            let mut expected = value.clone();
            if value["type"] == "custom" {
                written.as_object_mut().expect("object").remove("message");
                expected["data"]["metadata"] = json!({});
                expected["data"]["userEntry"] = json!("");
            }
            assert_eq!(with_float_costs(written), with_float_costs(expected));
            assert_eq!(Entry::parse(&serde_json::from_str(&entry.to_line()).expect("line")), Some(entry));
        }
    }

    #[test]
    fn the_header_begins_with_its_type_and_never_passes_511_bytes() {
        let short = header("abc", "2026-11-30T14:00:00.000Z", "/workspace", None);
        assert!(short.starts_with("{\"type\":\"session\",\"cwd\":"), "{short}");
        assert_eq!(
            serde_json::from_str::<Value>(&short).expect("json"),
            json!({"type": "session", "version": 3, "id": "abc", "timestamp": "2026-11-30T14:00:00.000Z",
                   "cwd": "/workspace"})
        );
        let parent = format!("2026-11-30T13-00-00-000Z_{}.jsonl", "y".repeat(128));
        let long = header(&"x".repeat(128), "2026-11-30T14:00:00.000Z", &"/ü".repeat(2_000), Some(&parent));
        assert!(long.len() <= 511);
        assert_eq!(serde_json::from_str::<Value>(&long).expect("json")["parentSession"], *parent);
    }
}
