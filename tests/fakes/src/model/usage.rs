//! Token numbers: an estimate of the prompt's size and what of it a prompt cache would have held.
//!
//! The cache works as the provider's: an entry is written at each breakpoint, and a breakpoint reads the longest entry
//! that ends at most 20 blocks before it. The provider's smallest cacheable prompt is left out, so that short
//! conversations show cache numbers too.

use std::collections::HashSet;
use std::sync::Mutex;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Blocks before a breakpoint at which an earlier entry is found.
const LOOK_BACK: usize = 20;
/// Estimated size of an image.
const IMAGE_TOKENS: u64 = 1_500;
/// Entries kept; 32 bytes each, so 3.2 MB. When full the cache starts anew.
const MAX_ENTRIES: usize = 100_000;

/// Tokens of the prompt of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptUsage {
    pub(super) input: u64,
    pub(super) cache_read: u64,
    pub(super) cache_write: u64,
}

impl PromptUsage {
    /// The whole prompt.
    pub(super) fn prompt(self) -> u64 {
        self.input + self.cache_read + self.cache_write
    }

    /// The provider's usage object.
    pub(super) fn object(self, output: u64) -> Value {
        json!({
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.cache_write,
            "cache_read_input_tokens": self.cache_read,
            "output_tokens": output,
        })
    }
}

/// Estimates tokens: each word counts once for every six bytes begun.
pub(super) fn tokens(text: &str) -> u64 {
    text.split_whitespace().map(|word| u64::try_from(word.len().div_ceil(6)).unwrap_or(u64::MAX)).sum()
}

/// Prefixes of prompts seen before.
#[derive(Default)]
pub(super) struct PromptCache {
    entries: Mutex<HashSet<[u8; 32]>>,
}

struct Boundary {
    prefix: [u8; 32],
    tokens: u64,
    breakpoint: bool,
}

impl PromptCache {
    /// Measures a prompt and stores its breakpoints.
    pub(super) fn measure(&self, body: &Value) -> PromptUsage {
        let boundaries = boundaries(body);
        let total = boundaries.last().map_or(0, |boundary| boundary.tokens);
        let mut entries = self.entries.lock().expect("no panic while the cache is held");
        let mut read = 0;
        let mut written = 0;
        for (position, boundary) in boundaries.iter().enumerate().filter(|(_, boundary)| boundary.breakpoint) {
            let candidates = &boundaries[position.saturating_sub(LOOK_BACK)..=position];
            let found = candidates.iter().rev().find(|candidate| entries.contains(&candidate.prefix));
            read = read.max(found.map_or(0, |candidate| candidate.tokens));
            written = boundary.tokens;
        }
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.extend(boundaries.iter().filter(|boundary| boundary.breakpoint).map(|boundary| boundary.prefix));
        PromptUsage { input: total - written.max(read), cache_read: read, cache_write: written.saturating_sub(read) }
    }
}

/// The prompt's blocks in the provider's order: tools, system, messages.
fn boundaries(body: &Value) -> Vec<Boundary> {
    let mut walk = Walk { hash: Sha256::new(), tokens: 0, boundaries: Vec::new() };
    walk.hash.update(body["model"].as_str().unwrap_or_default());
    for tool in body["tools"].as_array().into_iter().flatten() {
        walk.block("tool", tool);
    }
    walk.content("system", &body["system"]);
    for message in body["messages"].as_array().into_iter().flatten() {
        walk.content(message["role"].as_str().unwrap_or_default(), &message["content"]);
    }
    walk.boundaries
}

struct Walk {
    hash: Sha256,
    tokens: u64,
    boundaries: Vec<Boundary>,
}

impl Walk {
    fn content(&mut self, place: &str, content: &Value) {
        match content {
            Value::Array(blocks) => blocks.iter().for_each(|block| self.block(place, block)),
            // A plain string is the same prompt as one text block.
            Value::String(text) => self.block(place, &json!({ "type": "text", "text": text })),
            _ => {}
        }
    }

    fn block(&mut self, place: &str, block: &Value) {
        let mut bare = block.clone();
        let breakpoint = bare.as_object_mut().is_some_and(|entries| entries.remove("cache_control").is_some());
        self.tokens += block_tokens(&bare);
        self.hash.update(place);
        self.hash.update(bare.to_string());
        let prefix = self.hash.clone().finalize().into();
        self.boundaries.push(Boundary { prefix, tokens: self.tokens, breakpoint });
    }
}

fn block_tokens(value: &Value) -> u64 {
    match value {
        Value::Object(entries) if entries.get("type").is_some_and(|kind| kind == "image") => IMAGE_TOKENS,
        Value::Object(entries) => entries.iter().map(|(key, entry)| tokens(key) + block_tokens(entry)).sum(),
        Value::Array(items) => items.iter().map(block_tokens).sum(),
        Value::String(text) => tokens(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_conversation_reads_what_the_shorter_one_wrote() {
        let cache = PromptCache::default();
        let marked = |text: &str| json!([{ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } }]);
        let first = json!({ "model": "m", "system": marked("one two three"), "messages": [{ "role": "user", "content": marked("four") }] });
        let first_usage = cache.measure(&first);
        assert_eq!((first_usage.input, first_usage.cache_read), (0, 0));
        let second = json!({ "model": "m", "system": marked("one two three"), "messages": [
            { "role": "user", "content": "four" },
            { "role": "assistant", "content": "five" },
            { "role": "user", "content": marked("six") },
            { "role": "assistant", "content": "seven" },
        ] });
        let second_usage = cache.measure(&second);
        assert_eq!(second_usage.cache_read, first_usage.cache_write);
        assert!(second_usage.cache_write > 0 && second_usage.input > 0);
    }
}
