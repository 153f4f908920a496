//! Decides what the model does from the conversation: the script of the newest user text, or the natural default.

use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};

use super::script::{self, Action, ScriptError};

/// Longest part of the user's text that the default answer repeats, in characters.
const ECHO_CHARACTERS: usize = 200;

/// `create a file NAME … with … "CONTENT"`.
static CREATE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?is)\b(?:create|write|make|add|save)\b.*?\bfile\b\s+(?:called\s+|named\s+)?[`"'“]?([\w][\w./-]*[\w])[`"'”]?.*?\b(?:with|containing|contains?|says|saying|holding|holds|reads?|reading)\b.*?[`"'“](.+?)[`"'”](?:[\s.,!?)]|$)"#;
    Regex::new(pattern).expect("a constant pattern")
});
/// `write "CONTENT" to (the file) NAME`.
static WRITE_TO: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?is)\b(?:write|put|save)\b\s+[`"'“](.+?)[`"'”]\s+(?:in)?to\s+(?:the\s+|a\s+)?(?:new\s+)?(?:file\s+)?(?:called\s+|named\s+)?[`"'“]?([\w][\w./-]*[\w])"#;
    Regex::new(pattern).expect("a constant pattern")
});

/// What the model does in answer to a request that has passed the checks.
pub(super) fn actions(body: &Value) -> Result<Vec<Action>, ScriptError> {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (position, prompt) = newest_user_text(messages);
    let step = messages[position..].iter().filter(|message| message["role"] == "assistant").count();
    let result = last_tool_result(messages);
    if let Some(fenced) = script::fenced(&prompt) {
        let mut steps = script::parse(fenced, &result.text)?;
        if step < steps.len() {
            return Ok(steps.swap_remove(step));
        }
        return Ok(vec![say(format!("The script has {} steps and is over.", steps.len()))]);
    }
    Ok(natural(&prompt, step, &result, body))
}

struct ToolResult {
    text: String,
    is_error: bool,
}

/// The newest user message that holds text, and its last text block.
fn newest_user_text(messages: &[Value]) -> (usize, String) {
    for (position, message) in messages.iter().enumerate().rev() {
        if message["role"] != "user" {
            continue;
        }
        match &message["content"] {
            Value::String(text) => return (position, text.clone()),
            content => {
                let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
                if let Some(block) = blocks.iter().rev().find(|block| block["type"] == "text") {
                    return (position, block["text"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
    }
    (0, String::new())
}

fn last_tool_result(messages: &[Value]) -> ToolResult {
    let block = messages
        .iter()
        .rev()
        .filter_map(|message| message["content"].as_array())
        .flat_map(|blocks| blocks.iter().rev())
        .find(|block| block["type"] == "tool_result");
    let Some(block) = block else { return ToolResult { text: String::new(), is_error: false } };
    let text = match &block["content"] {
        Value::String(text) => text.clone(),
        content => {
            let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
            blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
    };
    ToolResult { text, is_error: block["is_error"] == true }
}

fn natural(prompt: &str, step: usize, result: &ToolResult, body: &Value) -> Vec<Action> {
    let declared =
        |name: &str| body["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name));
    let wanted = wanted_file(prompt).filter(|_| declared("write") && declared("bash"));
    let Some((path, content)) = wanted else {
        return vec![say(echo(prompt))];
    };
    match step {
        0 => vec![
            say(format!("I write the file {path}.")),
            call("write", &json!({ "path": path, "content": format!("{content}\n") })),
        ],
        _ if result.is_error => vec![say(format!("That failed: {}", result.text.trim_end()))],
        1 => vec![
            say("I read it back.".to_owned()),
            call("bash", &json!({ "command": format!("cat '{}'", path.replace('\'', r"'\''")) })),
        ],
        _ => {
            vec![say(format!("The file {path} is written. Read back with `cat`, it holds: {}", result.text.trim_end()))]
        }
    }
}

fn wanted_file(prompt: &str) -> Option<(String, String)> {
    if let Some(found) = WRITE_TO.captures(prompt) {
        return Some((found[2].to_owned(), found[1].to_owned()));
    }
    CREATE.captures(prompt).map(|found| (found[1].to_owned(), found[2].to_owned()))
}

fn echo(prompt: &str) -> String {
    let mut heard: String = prompt.trim().chars().take(ECHO_CHARACTERS).collect();
    if heard.len() < prompt.trim().len() {
        heard.push('…');
    }
    format!(
        "You said: \"{heard}\". I am a scripted model, not a real one: ask me to create a file NAME with the text \
         \"CONTENT\", or put a fenced block `model-script` with JSON steps in the prompt to say exactly what I do."
    )
}

fn say(text: String) -> Action {
    Action::Text { text, chunks: None, delay: Duration::ZERO }
}

fn call(name: &str, input: &Value) -> Action {
    Action::Tool { name: Some(name.to_owned()), input: input.to_string(), chunk_bytes: 24, delay: Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_for_a_file_are_understood() {
        for (prompt, path, content) in [
            (r#"Create a file hello.txt with the text "Hello from the agent"."#, "hello.txt", "Hello from the agent"),
            ("Please write a file called `notes/a.md` containing `# Title`, then read it.", "notes/a.md", "# Title"),
            (r#"write "42" to answer.txt"#, "answer.txt", "42"),
            ("Create the file greeting.txt that says 'hi there'", "greeting.txt", "hi there"),
            (r#"Create the file hello.txt with the content "hello", then show it with cat."#, "hello.txt", "hello"),
        ] {
            assert_eq!(wanted_file(prompt), Some((path.to_owned(), content.to_owned())), "{prompt}");
        }
        assert_eq!(wanted_file("What is in this file?"), None);
    }

    #[test]
    fn the_file_wish_goes_over_three_calls_and_ends_with_the_tools_output() {
        let tools = json!([{ "name": "write" }, { "name": "bash" }]);
        let mut messages = vec![json!({ "role": "user", "content": "Create a file a.txt with the text \"hi\"" })];
        let step = |messages: &[Value]| actions(&json!({ "messages": messages, "tools": tools }));
        assert_eq!(
            step(&messages),
            Ok(vec![
                say("I write the file a.txt.".to_owned()),
                call("write", &json!({ "path": "a.txt", "content": "hi\n" }))
            ])
        );
        messages.push(json!({ "role": "assistant", "content": [{ "type": "tool_use" }] }));
        messages.push(json!({ "role": "user", "content": [{ "type": "tool_result", "content": "Wrote 3 bytes" }] }));
        assert_eq!(
            step(&messages),
            Ok(vec![say("I read it back.".to_owned()), call("bash", &json!({ "command": "cat 'a.txt'" }))])
        );
        messages.push(json!({ "role": "assistant", "content": [{ "type": "tool_use" }] }));
        messages.push(json!({ "role": "user", "content": [{ "type": "tool_result", "content": [{ "type": "text", "text": "hi\n" }] }] }));
        assert_eq!(
            step(&messages),
            Ok(vec![say("The file a.txt is written. Read back with `cat`, it holds: hi".to_owned())])
        );
    }
}
