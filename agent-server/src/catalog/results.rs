//! Shapes of results that several tools share.
//!
//! Owns how a list of lines, a notice and a failure look to the model. Must not know any tool.

use serde_json::Value;

use super::truncation::{MAX_BYTES, MAX_LINES, head, size};
use super::{ToolContent, ToolResult};
use crate::workspace::WorkspaceError;

/// A text result.
pub fn text(text: String, details: Option<Value>) -> ToolResult {
    ToolResult { content: vec![ToolContent::Text(text)], details, is_error: false }
}

/// A failure of a file operation, with what to do where that is known.
pub fn failed(error: &WorkspaceError) -> ToolResult {
    let advice = match error {
        WorkspaceError::IsDirectory(_) => "; use ls to list it",
        WorkspaceError::Escapes(_) => "; only files inside the workspace can be used",
        WorkspaceError::NotFound(_) => "; use ls or find to see what is there",
        _ => "",
    };
    refused(format!("{error}{advice}"))
}

/// A tool that ran and did not do what was asked.
pub fn refused(message: String) -> ToolResult {
    ToolResult { content: vec![ToolContent::Text(message)], details: None, is_error: true }
}

/// Lines, then notices in brackets.
#[derive(Debug, Default)]
pub struct Listing {
    text: String,
    lines: usize,
    notices: Vec<String>,
}

impl Listing {
    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1;
    }

    /// Adds a notice.
    pub fn notice(&mut self, notice: String) {
        self.notices.push(notice);
    }

    /// The result: cut to the bounds, with every notice; `empty` when there is no line.
    pub fn result(mut self, empty: &str, details: Value) -> ToolResult {
        if self.lines == 0 && self.notices.is_empty() {
            return text(empty.into(), Some(details));
        }
        let cut = head(&self.text);
        if cut.is_shortened {
            let bound = if cut.lines == MAX_LINES { format!("{MAX_LINES} lines") } else { size(MAX_BYTES as u64) };
            self.notices.push(format!("{} of {} lines, cut at {bound}; narrow the request", cut.lines, self.lines));
        }
        let mut shown = cut.text.trim_end_matches('\n').to_owned();
        for notice in &self.notices {
            append_notice(&mut shown, notice);
        }
        text(shown, Some(details))
    }
}

/// Adds `[notice]` after an empty line.
pub fn append_notice(text: &mut String, notice: &str) {
    if !text.is_empty() {
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
    }
    text.push('[');
    text.push_str(notice);
    text.push(']');
}
