//! The tool `edit`: replaces pieces of a text file.

use std::sync::mpsc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use similar::TextDiff;

use super::arguments::{object, parse, required_path, schema};
use super::edit_text::{Replacement, replace_all};
use super::results::{failed, text};
use super::truncation::head;
use super::{Access, FileChange, Tool, ToolContext, ToolDefinition, ToolFailure, ToolProgress, ToolResult};

/// Largest file that is edited: it is held in memory a few times over, and a model does not edit larger texts.
const MAX_FILE_BYTES: u64 = 10 << 20;
/// Unchanged lines around each change in the diff.
const DIFF_CONTEXT: usize = 3;
/// A diff of two very different long texts could take minutes; after this it gets coarser instead.
const DIFF_TIME: std::time::Duration = std::time::Duration::from_secs(1);

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    /// File to edit, relative to the workspace or absolute inside it
    path: String,
    /// Replacements; each oldText must be found exactly once in the file as it is now, and they must not overlap
    edits: Vec<OneEdit>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OneEdit {
    /// Text to replace, exactly as in the file, with enough lines around it to be unique
    old_text: String,
    /// Text to put in its place
    new_text: String,
}

/// Edits a file.
pub struct Edit;

#[async_trait::async_trait]
impl Tool for Edit {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: "edit".into(),
            description: "Replace pieces of a text file. Every oldText is looked for in the original file and must be \
                          found exactly once. Put all changes of one file into one call."
                .into(),
            input_schema: schema::<Arguments>(),
        }
    }

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run(&self, arguments: Value, context: ToolContext) -> Result<ToolResult, ToolFailure> {
        let arguments: Arguments = parse(prepared(object(arguments)?)?)?;
        if arguments.edits.is_empty() {
            return Err(ToolFailure("edits is empty".into()));
        }
        let path = required_path(&arguments.path, &*context.workspace)?;
        let count = arguments.edits.len();
        let replacements: Vec<Replacement> =
            arguments.edits.into_iter().map(|edit| Replacement { old: edit.old_text, new: edit.new_text }).collect();
        let (texts, receiver) = mpsc::channel();
        let transform = move |content: &[u8]| {
            let original = std::str::from_utf8(content).map_err(|_| "the file is not UTF-8 text".to_owned())?;
            let changed = replace_all(original, &replacements)?;
            // The receiver lives until the update is over.
            let _ = texts.send((original.to_owned(), changed.clone()));
            Ok(Bytes::from(changed))
        };
        let written = match context.workspace.update(&path, MAX_FILE_BYTES, Box::new(transform)).await {
            Ok(written) => written,
            Err(error) => return Ok(failed(&error)),
        };
        let (old, new) = receiver.try_recv().map_err(|_| ToolFailure("the edit was not applied".into()))?;
        let change = FileChange { op: "write", path: path.as_str().into(), old_path: None, size: Some(written.size) };
        // A closed channel is no error.
        let _ = context.progress.send(ToolProgress::FileChanged(change));
        let details = json!({
            "diff": diff(&old, &new, path.as_str()),
            "firstChangedLine": first_changed_line(&old, &new),
            "etag": written.etag,
        });
        let pieces = if count == 1 { "piece" } else { "pieces" };
        Ok(text(format!("Replaced {count} {pieces} of {path}"), Some(details)))
    }
}

/// Accepts what models send instead of the schema: `edits` as JSON text or as one object, `oldText` and `newText` beside
/// `path`.
fn prepared(mut arguments: Value) -> Result<Value, ToolFailure> {
    if let Some(Value::String(edits)) = arguments.get("edits") {
        let parsed: Value = serde_json::from_str(edits)
            .map_err(|error| ToolFailure(format!("arguments do not fit: edits is a text that is no JSON: {error}")))?;
        arguments["edits"] = parsed;
    }
    if arguments.get("edits").is_some_and(Value::is_object) {
        arguments["edits"] = Value::Array(vec![arguments["edits"].take()]);
    }
    if let Value::Object(fields) = &mut arguments
        && let (Some(old), Some(new)) = (fields.remove("oldText"), fields.remove("newText"))
    {
        let edits = fields.entry("edits").or_insert_with(|| Value::Array(Vec::new()));
        if edits.is_null() {
            *edits = Value::Array(Vec::new());
        }
        if let Value::Array(edits) = edits {
            edits.push(json!({"oldText": old, "newText": new}));
        }
    }
    Ok(arguments)
}

/// A unified diff, cut to the bounds of a result with a mark.
fn diff(old: &str, new: &str, path: &str) -> String {
    let changes = TextDiff::configure().timeout(DIFF_TIME).diff_lines(old, new);
    let whole = changes
        .unified_diff()
        .context_radius(DIFF_CONTEXT)
        .header(&format!("a/{path}"), &format!("b/{path}"))
        .to_string();
    let cut = head(&whole);
    if cut.is_shortened { format!("{}[the diff is longer]\n", cut.text) } else { whole }
}

fn first_changed_line(old: &str, new: &str) -> usize {
    old.split('\n').zip(new.split('\n')).take_while(|(old, new)| old == new).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_that_models_send_become_the_schema() {
        let expected = json!({"path": "a", "edits": [{"oldText": "x", "newText": "y"}]});
        for sent in [
            json!({"path": "a", "edits": [{"oldText": "x", "newText": "y"}]}),
            json!({"path": "a", "edits": "[{\"oldText\": \"x\", \"newText\": \"y\"}]"}),
            json!({"path": "a", "edits": {"oldText": "x", "newText": "y"}}),
            json!({"path": "a", "oldText": "x", "newText": "y"}),
            json!({"path": "a", "oldText": "x", "newText": "y", "edits": []}),
            json!({"path": "a", "oldText": "x", "newText": "y", "edits": null}),
        ] {
            assert_eq!(prepared(sent).unwrap(), expected);
        }
        assert!(prepared(json!({"path": "a", "edits": "[{"})).unwrap_err().0.contains("no JSON"));
    }

    #[test]
    fn the_diff_is_unified() {
        let expected = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
        assert_eq!(diff("one\ntwo\n", "one\n2\n", "f"), expected);
        assert_eq!(first_changed_line("one\ntwo\n", "one\n2\n"), 2);
    }
}
