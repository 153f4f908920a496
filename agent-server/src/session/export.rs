//! A session for people: what its tools changed, and its conversation as Markdown. Pure.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::entry::{Kind, TurnStatus};
use super::transcript::Transcript;

/// Tool output in Markdown is cut after this many bytes, with a mark.
const MAX_OUTPUT: usize = 4 * 1024;

/// File changes of all turns of all branches, oldest first, with the time of the call's result.
pub fn changes(transcript: &Transcript) -> Vec<Value> {
    let times: HashMap<&str, &str> = transcript
        .entries()
        .iter()
        .filter_map(|entry| match &entry.kind {
            Kind::ToolResult(result) => Some((&*result.tool_call_id, &*entry.timestamp)),
            _ => None,
        })
        .collect();
    let mut files = Vec::new();
    for entry in transcript.entries() {
        let Kind::Turn(turn) = &entry.kind else { continue };
        if turn.status == TurnStatus::Running {
            continue;
        }
        for part in turn.data_parts.iter().map(|data| &data.part).filter(|part| part["type"] == "data-file-changed") {
            let call = part["data"]["toolCallId"].as_str().unwrap_or_default();
            files.push(change(&part["data"], times.get(call).copied().unwrap_or(&entry.timestamp)));
        }
    }
    files
}

/// File changes of a message under way.
pub fn changes_in(message: &Value, timestamp: &str) -> Vec<Value> {
    let parts = message["parts"].as_array().into_iter().flatten();
    parts.filter(|part| part["type"] == "data-file-changed").map(|part| change(&part["data"], timestamp)).collect()
}

fn change(data: &Value, timestamp: &str) -> Value {
    let mut change = json!({"timestamp": timestamp});
    for key in ["op", "path", "oldPath", "size"] {
        if let Some(value) = data.get(key) {
            change[key] = value.clone();
        }
    }
    change
}

/// The conversation as a document.
pub fn markdown(title: &str, messages: &[Value]) -> String {
    let mut text = format!("# {title}\n");
    for message in messages {
        let who = if message["role"] == "user" { "User" } else { "Agent" };
        let _infallible = write!(text, "\n## {who}\n");
        for part in message["parts"].as_array().into_iter().flatten() {
            part_markdown(&mut text, part);
        }
        if let Some(status) = message["metadata"]["status"].as_str() {
            let _infallible = write!(text, "\n*The turn ended: {status}.*\n");
        }
    }
    text
}

fn part_markdown(text: &mut String, part: &Value) {
    let shown = |key: &str| part[key].as_str().unwrap_or_default();
    let _infallible = match shown("type") {
        "text" => write!(text, "\n{}\n", shown("text").trim_end()),
        "reasoning" => {
            let quoted = shown("text").trim_end().replace('\n', "\n> ");
            write!(text, "\n> *Thinking*\n>\n> {quoted}\n")
        }
        "file" => write!(text, "\n[file {}]({})\n", shown("filename"), shown("url")),
        kind => {
            let Some(name) = kind.strip_prefix("tool-") else { return };
            let output = match part["errorText"].as_str() {
                Some(error) => format!("[not run] {error}"),
                None => part["output"]["content"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|piece| piece["text"].as_str().unwrap_or("[image]"))
                    .collect::<Vec<_>>()
                    .join("\n"),
            };
            let end = output.floor_char_boundary(MAX_OUTPUT);
            let mark = if end < output.len() { format!("\n[cut after {end} bytes]") } else { String::new() };
            let body = format!("{}\n\n{}{mark}", part["input"], output[..end].trim_end());
            let fence = "`".repeat(longest_backticks(&body).max(2) + 1);
            write!(text, "\n**{name}**\n\n{fence}text\n{body}\n{fence}\n")
        }
    };
}

fn longest_backticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_message_reads_as_markdown() {
        let message: Value =
            serde_json::from_str(include_str!("../../tests/fixtures/whole-turn.message.json")).expect("fixture");
        let user = json!({"role": "user", "parts": [{"type": "text", "text": "Run the tests."}]});
        let expected = "# Tests

## User

Run the tests.

## Agent

> *Thinking*
>
> Two things to look at: the tests and the file.

I run the tests and write the file.

**bash**

```text
{\"command\":\"make test\"}

test a ... ok
test b ... ok

2 passed
```

**write**

```text
{\"content\":\"hi\\n\",\"path\":\"a.txt\"}

Wrote 3 bytes to a.txt
```

All tests pass; a.txt is written.
";
        assert_eq!(markdown("Tests", &[user, message]), expected);
    }

    #[test]
    fn code_fences_in_output_do_not_end_the_block() {
        let mut text = String::new();
        part_markdown(
            &mut text,
            &json!({
                "type": "tool-read", "input": {}, "output": {"content": [{"type": "text", "text": "````\nx"}]},
            }),
        );
        assert_eq!(text, "\n**read**\n\n`````text\n{}\n\n````\nx\n`````\n");
    }
}
