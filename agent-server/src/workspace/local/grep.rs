//! Searching contents with ripgrep's own libraries, on files opened through the confined directory.
//!
//! Owns the search. Binary files are skipped whole: a match before the first NUL byte is taken back.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use tokio_util::sync::CancellationToken;

use super::confine::{Root, from_errno, open_child_file};
use super::ignore_rules::IgnoreCache;
use super::walk::{Walk, compile_glob};
use crate::workspace::{Found, GrepLine, GrepRequest, Kind, WalkRequest, WorkspaceError, WorkspacePath};

/// Characters of a line that are shown.
const MAX_LINE_CHARS: usize = 500;
/// Longest line that is searched; a file with a longer one is left out and the result marked as cut.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;
/// Longest pattern, and the memory its automaton may take.
const MAX_PATTERN: usize = 4096;
const MAX_REGEX_BYTES: usize = 8 * 1024 * 1024;
/// Lines of context on each side at most.
const MAX_CONTEXT: usize = 100;

fn compile(request: &GrepRequest) -> Result<RegexMatcher, WorkspaceError> {
    if request.pattern.len() > MAX_PATTERN {
        return Err(WorkspaceError::Pattern(format!("longer than {MAX_PATTERN} bytes")));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(request.ignore_case)
        .fixed_strings(request.literal)
        .line_terminator(Some(b'\n'))
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES)
        .build(&request.pattern)
        .map_err(|error| WorkspaceError::Pattern(error.to_string()))
}

/// Searches a file or a tree.
pub fn grep(
    root: &Root,
    cache: &IgnoreCache,
    request: &GrepRequest,
    cancel: &CancellationToken,
) -> Result<Found<GrepLine>, WorkspaceError> {
    let matcher = compile(request)?;
    let context = request.context.min(MAX_CONTEXT);
    let mut search = Search {
        matcher,
        searcher: SearcherBuilder::new()
            .line_number(true)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(MAX_LINE_BYTES))
            .build(),
        limit: request.limit,
        cancel,
        found: Found { items: Vec::new(), truncated: false },
        matches: 0,
    };
    match root.file(&request.path) {
        Ok((file, _)) => {
            let glob = request.glob.as_deref().map(compile_glob).transpose()?;
            if glob.is_none_or(|glob| glob.is_match(request.path.name())) {
                let _after_the_only_file = search.file(file, &request.path)?;
            }
        }
        Err(WorkspaceError::IsDirectory(_)) => search.tree(root, cache, request)?,
        Err(error) => return Err(error),
    }
    Ok(search.found)
}

struct Search<'a> {
    matcher: RegexMatcher,
    searcher: Searcher,
    limit: usize,
    cancel: &'a CancellationToken,
    found: Found<GrepLine>,
    matches: usize,
}

impl Search<'_> {
    fn tree(&mut self, root: &Root, cache: &IgnoreCache, request: &GrepRequest) -> Result<(), WorkspaceError> {
        let walk_request = WalkRequest {
            include_hidden: true,
            glob: request.glob.clone(),
            ..WalkRequest::new(request.path.clone(), usize::MAX)
        };
        let cancel = self.cancel;
        let mut walk = Walk::new(root, cache, &walk_request, cancel)?;
        walk.run(|visited| {
            if visited.name.kind != Kind::File || !visited.name.is_exact() {
                return Ok(ControlFlow::Continue(()));
            }
            match open_child_file(visited.directory, &visited.name.text) {
                Ok(Some((file, _))) => self.file(file, &visited.path),
                // Gone or replaced meanwhile.
                Ok(None) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => Ok(ControlFlow::Continue(())),
                Err(rustix::io::Errno::ACCESS) => {
                    self.found.truncated = true;
                    Ok(ControlFlow::Continue(()))
                }
                Err(errno) => Err(from_errno(errno, &visited.path)),
            }
        })?;
        self.found.truncated |= walk.cut;
        Ok(())
    }

    /// Searches one file; breaks when the limit was passed.
    fn file(&mut self, file: File, path: &WorkspacePath) -> Result<ControlFlow<()>, WorkspaceError> {
        let (first_item, first_match) = (self.found.items.len(), self.matches);
        let mut lines = Lines {
            path,
            items: &mut self.found.items,
            matches: &mut self.matches,
            limit: self.limit,
            over: false,
            binary: false,
        };
        let reader = CancellableReader { file, cancel: self.cancel };
        let outcome = self.searcher.search_reader(&self.matcher, reader, &mut lines);
        let (over, binary) = (lines.over, lines.binary);
        if self.cancel.is_cancelled() {
            return Err(WorkspaceError::Cancelled);
        }
        if binary {
            self.found.items.truncate(first_item);
            self.matches = first_match;
        } else if let Err(error) = outcome {
            // A line over the limit, or a read error: the rest of the tree is still worth searching.
            tracing::debug!(?path, %error, "a file was searched in part");
            self.found.truncated = true;
        } else if over {
            self.found.truncated = true;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Ends a long read soon after the caller has gone.
struct CancellableReader<'a> {
    file: File,
    cancel: &'a CancellationToken,
}

impl Read for CancellableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.file.read(buffer)
    }
}

struct Lines<'a> {
    path: &'a WorkspacePath,
    items: &'a mut Vec<GrepLine>,
    matches: &'a mut usize,
    limit: usize,
    over: bool,
    binary: bool,
}

impl Lines<'_> {
    fn push(&mut self, line: Option<u64>, bytes: &[u8], is_match: bool) {
        self.items.push(GrepLine { path: self.path.clone(), line: line.unwrap_or(0), text: shown(bytes), is_match });
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if *self.matches >= self.limit {
            self.over = true;
            return Ok(false);
        }
        *self.matches += 1;
        self.push(found.line_number(), found.bytes(), true);
        Ok(true)
    }

    fn context(&mut self, _searcher: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.push(context.line_number(), context.bytes(), false);
        Ok(true)
    }

    fn binary_data(&mut self, _searcher: &Searcher, _offset: u64) -> Result<bool, io::Error> {
        self.binary = true;
        Ok(false)
    }
}

/// The line without its end, at most 500 characters and then a mark.
fn shown(bytes: &[u8]) -> String {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // A character takes at most 4 bytes, so this much is enough to show, and a line of megabytes is not copied.
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_CHARS * 4 + 4)]);
    match text.char_indices().nth(MAX_LINE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}
