//! The script language: what the model shall do, written as JSON in a fenced block of the prompt.
//!
//! ````text
//! ```model-script
//! [[{"thinking":"Look first."},{"tool":"bash","input":{"command":"ls"}}], [{"text":"It holds: {{lastToolResult}}"}]]
//! ```
//! ````
//! A list of steps, one for each model call after the user message that holds it; a step is a list of actions. A plain
//! list of actions is one step. Actions:
//!
//! | action | does |
//! | --- | --- |
//! | `{"text", "chunks"?, "delayMs"?}` | a text block in `chunks` deltas (else three words each), `delayMs` apart |
//! | `{"thinking", "chunks"?, "delayMs"?}` | a thinking block with its signature; left out when the request did not enable thinking |
//! | `{"redactedThinking": true}` | a redacted block, under the same condition |
//! | `{"tool", "input", "chunkBytes"?, "delayMs"?}` | a tool call; its arguments stream in pieces of `chunkBytes` (else 24) |
//! | `{"rawToolInput", "tool"?, …}` | a tool call whose argument text is this, valid JSON or not |
//! | `{"stop"}` | the stop reason; else `tool_use` when tools were called, `end_turn` when not |
//! | `{"error": {"status", "retryAfter"?, "times"?, "message"?}}` | an HTTP error for the first `times` (1) equal requests; only before any output |
//! | `{"errorEvent": TYPE, "times"?}` | an `error` event in mid-stream, then the end |
//! | `{"cut": true, "times"?}` | the connection breaks |
//! | `{"hang": MS, "times"?}` | silence; as the first action even the response headers wait |
//! | `{"sleep": MS}` | a pause with a `ping` at its start and every five seconds |
//!
//! In `text`, `thinking` and the strings of `input`, `{{lastToolResult}}` is the text of the newest tool result and
//! `{{repeat:N:TEXT}}` is TEXT N times. `times` counts equal requests, so a retry gets further; without it, always.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// A script is at most this many actions over all steps.
const MAX_ACTIONS: usize = 10_000;
/// Longest single pause.
const MAX_PAUSE_MS: u64 = 600_000;
/// Longest text after substitution: a little above the largest file a tool may write in one call.
const MAX_TEXT_BYTES: usize = 16 * 1024 * 1024;

/// Why a script cannot be played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError(String);

impl std::fmt::Display for ScriptError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ScriptError {}

/// One thing that the model does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Text {
        text: String,
        chunks: Option<usize>,
        delay: Duration,
    },
    Thinking {
        text: String,
        chunks: Option<usize>,
        delay: Duration,
    },
    RedactedThinking,
    /// `name: None` means the first declared tool.
    Tool {
        name: Option<String>,
        input: String,
        chunk_bytes: usize,
        delay: Duration,
    },
    Stop(String),
    Error {
        status: u16,
        retry_after: Option<f64>,
        message: Option<String>,
        times: u64,
    },
    ErrorEvent {
        kind: String,
        times: Option<u64>,
    },
    Cut {
        times: Option<u64>,
    },
    Hang {
        pause: Duration,
        times: Option<u64>,
    },
    Sleep(Duration),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawAction {
    text: Option<String>,
    thinking: Option<String>,
    redacted_thinking: Option<bool>,
    tool: Option<String>,
    input: Option<Value>,
    raw_tool_input: Option<String>,
    stop: Option<String>,
    error: Option<RawError>,
    error_event: Option<String>,
    cut: Option<bool>,
    hang: Option<u64>,
    sleep: Option<u64>,
    chunks: Option<usize>,
    chunk_bytes: Option<usize>,
    delay_ms: Option<u64>,
    times: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawError {
    status: u16,
    retry_after: Option<f64>,
    times: Option<u64>,
    message: Option<String>,
}

/// The text of the last `model-script` block in a prompt.
pub(super) fn fenced(prompt: &str) -> Option<&str> {
    let start = prompt.rfind("```model-script")? + "```model-script".len();
    let body = &prompt[start..];
    Some(body.find("\n```").map_or(body, |end| &body[..end]))
}

/// Reads all steps; `last_tool_result` fills the placeholder.
pub(super) fn parse(text: &str, last_tool_result: &str) -> Result<Vec<Vec<Action>>, ScriptError> {
    let script: Vec<Value> =
        serde_json::from_str(text).map_err(|error| ScriptError(format!("not a JSON list: {error}")))?;
    let steps: Vec<Vec<Value>> = if script.iter().all(Value::is_array) {
        script.into_iter().map(|step| step.as_array().cloned().unwrap_or_default()).collect()
    } else {
        vec![script]
    };
    if steps.iter().map(Vec::len).sum::<usize>() > MAX_ACTIONS {
        return Err(ScriptError(format!("more than {MAX_ACTIONS} actions")));
    }
    steps.into_iter().enumerate().map(|(number, step)| parse_step(number, step, last_tool_result)).collect()
}

fn parse_step(number: usize, step: Vec<Value>, last_tool_result: &str) -> Result<Vec<Action>, ScriptError> {
    let mut actions = Vec::with_capacity(step.len());
    for (position, value) in step.into_iter().enumerate() {
        let place = format!("step {number}, action {position}");
        let raw: RawAction = serde_json::from_value(value).map_err(|error| ScriptError(format!("{place}: {error}")))?;
        let action = action(raw, last_tool_result).map_err(|error| ScriptError(format!("{place}: {error}")))?;
        let is_error = matches!(action, Action::Error { .. });
        if is_error && !actions.iter().all(|earlier| matches!(earlier, Action::Error { .. })) {
            return Err(ScriptError(format!("{place}: `error` is a status, so it stands before any output")));
        }
        actions.push(action);
    }
    Ok(actions)
}

fn action(raw: RawAction, last_tool_result: &str) -> Result<Action, String> {
    let delay = pause(raw.delay_ms.unwrap_or(0))?;
    let chunk_bytes = raw.chunk_bytes.unwrap_or(24).max(1);
    let fill = |text: &str| substitute(text, last_tool_result);
    let mut found: Vec<Action> = Vec::new();
    if let Some(text) = &raw.text {
        found.push(Action::Text { text: fill(text)?, chunks: raw.chunks, delay });
    }
    if let Some(text) = &raw.thinking {
        found.push(Action::Thinking { text: fill(text)?, chunks: raw.chunks, delay });
    }
    if raw.redacted_thinking == Some(true) {
        found.push(Action::RedactedThinking);
    }
    match (raw.tool, raw.input, raw.raw_tool_input) {
        (None, None, None) => {}
        (name, None, Some(input)) => found.push(Action::Tool { name, input, chunk_bytes, delay }),
        (Some(name), input, None) => {
            let mut input = input.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
            fill_strings(&mut input, last_tool_result)?;
            found.push(Action::Tool { name: Some(name), input: input.to_string(), chunk_bytes, delay });
        }
        _ => return Err("a tool call is `tool` with `input`, or `rawToolInput` with or without `tool`".to_owned()),
    }
    found.extend(raw.stop.map(Action::Stop));
    if let Some(RawError { status, retry_after, times, message }) = raw.error {
        if !(400..=599).contains(&status) {
            return Err(format!("{status} is not an error status"));
        }
        found.push(Action::Error { status, retry_after, message, times: times.unwrap_or(1) });
    }
    found.extend(raw.error_event.map(|kind| Action::ErrorEvent { kind, times: raw.times }));
    if raw.cut == Some(true) {
        found.push(Action::Cut { times: raw.times });
    }
    if let Some(milliseconds) = raw.hang {
        found.push(Action::Hang { pause: pause(milliseconds)?, times: raw.times });
    }
    if let Some(milliseconds) = raw.sleep {
        found.push(Action::Sleep(pause(milliseconds)?));
    }
    let count = found.len();
    match (found.pop(), count) {
        (Some(action), 1) => Ok(action),
        _ => Err(format!("an action does one thing; this one names {count}")),
    }
}

fn pause(milliseconds: u64) -> Result<Duration, String> {
    if milliseconds > MAX_PAUSE_MS {
        return Err(format!("{milliseconds} ms is longer than {MAX_PAUSE_MS} ms"));
    }
    Ok(Duration::from_millis(milliseconds))
}

fn fill_strings(value: &mut Value, last_tool_result: &str) -> Result<(), String> {
    match value {
        Value::String(text) => *text = substitute(text, last_tool_result)?,
        Value::Array(items) => {
            for item in items {
                fill_strings(item, last_tool_result)?;
            }
        }
        Value::Object(entries) => {
            for entry in entries.values_mut() {
                fill_strings(entry, last_tool_result)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

fn substitute(text: &str, last_tool_result: &str) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{{repeat:") {
        let inside = &rest[start + "{{repeat:".len()..];
        let end = inside.find("}}").ok_or("`{{repeat:` without `}}`")?;
        let (count, piece) = inside[..end].split_once(':').ok_or("`{{repeat:N:TEXT}}` needs a count and a text")?;
        let count: usize = count.parse().map_err(|_| format!("`{count}` is not a count"))?;
        if count.saturating_mul(piece.len()) > MAX_TEXT_BYTES {
            return Err(format!("a text may have {MAX_TEXT_BYTES} bytes"));
        }
        filled.push_str(&rest[..start]);
        filled.push_str(&piece.repeat(count));
        rest = &inside[end + 2..];
    }
    filled.push_str(rest);
    Ok(filled.replace("{{lastToolResult}}", last_tool_result))
}

/// The actions of a step that the `attempt`-th equal request (from 0) meets: faults with `times` wear off in order.
pub(super) fn for_attempt(actions: Vec<Action>, attempt: u64) -> Vec<Action> {
    let mut spent = 0;
    actions
        .into_iter()
        .filter(|action| {
            let times = match action {
                Action::Error { times, .. } => Some(*times),
                Action::ErrorEvent { times, .. } | Action::Cut { times } | Action::Hang { times, .. } => *times,
                _ => None,
            };
            let Some(times) = times else { return true };
            let border = spent + times;
            let meets = attempt < border;
            spent = border;
            meets
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Action {
        Action::Text { text: text.to_owned(), chunks: None, delay: Duration::ZERO }
    }

    #[test]
    fn the_last_fence_of_a_prompt_counts() {
        let prompt = "Do this.\n```model-script\n[]\n```\nand\n```model-script\n[{\"text\":\"x\"}]\n```\nplease";
        assert_eq!(fenced(prompt), Some("\n[{\"text\":\"x\"}]"));
        assert_eq!(fenced("no script"), None);
    }

    #[test]
    fn placeholders_are_filled_in_texts_and_inputs() {
        let script = r#"[[{"tool":"write","input":{"content":"{{repeat:3:ab}}!"},"chunkBytes":4}],[{"text":"<{{lastToolResult}}>"}]]"#;
        let tool = Action::Tool {
            name: Some("write".to_owned()),
            input: r#"{"content":"ababab!"}"#.to_owned(),
            chunk_bytes: 4,
            delay: Duration::ZERO,
        };
        assert_eq!(parse(script, "out"), Ok(vec![vec![tool], vec![text("<out>")]]));
    }

    #[test]
    fn faults_wear_off_in_order() {
        let script = r#"[{"error":{"status":529}},{"error":{"status":429,"retryAfter":0.5}},{"cut":true,"times":1},{"text":"x"}]"#;
        let actions = parse(script, "").expect("a valid script").remove(0);
        assert_eq!(for_attempt(actions.clone(), 0), actions);
        assert_eq!(for_attempt(actions.clone(), 1), actions[1..]);
        assert_eq!(for_attempt(actions.clone(), 2), actions[2..]);
        assert_eq!(for_attempt(actions, 3), [text("x")]);
    }

    #[test]
    fn mistakes_are_named_by_place() {
        for (script, message) in [
            ("{}", "not a JSON list: invalid type: map, expected a sequence at line 1 column 0"),
            (r#"[{"text":"a","cut":true}]"#, "step 0, action 0: an action does one thing; this one names 2"),
            (
                r#"[{"text":"a"},{"error":{"status":500}}]"#,
                "step 0, action 1: `error` is a status, so it stands before any output",
            ),
            (r#"[{"sleep":600001}]"#, "step 0, action 0: 600001 ms is longer than 600000 ms"),
        ] {
            assert_eq!(parse(script, ""), Err(ScriptError(message.to_owned())));
        }
    }
}
