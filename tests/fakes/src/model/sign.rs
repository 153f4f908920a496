//! Names that prove where they came from: signatures of thinking blocks and ids of tool calls.
//!
//! Both hold the nonce of the answer, the block's index and a digest, so a later request can be checked without any
//! memory, also by a double that was started anew.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Hexadecimal digits of a digest that are kept: 64 bits make accidental equality impossible in tests.
const NONCE_DIGITS: usize = 16;
/// Digits of a tool id after its prefix: nonce, index (2), thinking blocks before it (1), digest (6).
const TOOL_DIGITS: usize = NONCE_DIGITS + 2 + 1 + 6;

/// The nonce of one answer: equal requests get different ones by their attempt number, in a fixed order.
pub(super) fn nonce(request: &[u8; 32], attempt: u64) -> String {
    digest(&["nonce", &hex(request), &attempt.to_string()], NONCE_DIGITS)
}

/// The signature of a thinking block, or the data of a redacted one (with an empty text).
pub(super) fn signature(nonce: &str, index: usize, text: &str) -> String {
    let proof = digest(&["thinking", nonce, &index.to_string(), text], 32);
    STANDARD.encode(format!("{nonce}.{index}.{proof}"))
}

/// Where a signature was made: `(nonce, index)`, or `None` when it was not made here for this very text.
pub(super) fn verify_signature(signature_text: &str, text: &str) -> Option<(String, usize)> {
    let decoded = String::from_utf8(STANDARD.decode(signature_text).ok()?).ok()?;
    let (nonce, rest) = decoded.split_once('.')?;
    let index: usize = rest.split_once('.')?.0.parse().ok()?;
    (signature(nonce, index, text) == signature_text).then(|| (nonce.to_owned(), index))
}

/// The id of a tool call: block `index` of an answer, after `thinking_before` thinking blocks.
pub(super) fn tool_id(nonce: &str, index: usize, thinking_before: usize, name: &str) -> String {
    let head = format!("{nonce}{:02x}{:x}", index.min(0xff), thinking_before.min(0xf));
    let proof = digest(&["tool", &head, name], 6);
    format!("toolu_{head}{proof}")
}

/// How many thinking blocks stood before a tool call, or `None` when the id was not made here for this name.
/// A suffix that a client appended to keep ids unique is tolerated.
pub(super) fn verify_tool_id(id: &str, name: &str) -> Option<usize> {
    let digits = id.strip_prefix("toolu_")?.get(..TOOL_DIGITS)?;
    let (head, proof) = digits.split_at(NONCE_DIGITS + 3);
    let thinking_before = usize::from_str_radix(head.get(NONCE_DIGITS + 2..)?, 16).ok()?;
    (digest(&["tool", head, name], 6) == proof).then_some(thinking_before)
}

fn digest(parts: &[&str], digits: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    let mut text = hex(&hash.finalize());
    text.truncate(digits);
    text
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_good_only_for_its_text() {
        let nonce = nonce(&[7; 32], 0);
        let made = signature(&nonce, 2, "Let me think.");
        assert_eq!(verify_signature(&made, "Let me think."), Some((nonce, 2)));
        assert_eq!(verify_signature(&made, "Let me think!"), None);
        assert_eq!(verify_signature("EqQB", "Let me think."), None);
    }

    #[test]
    fn a_tool_id_tells_its_thinking_blocks_and_survives_a_suffix() {
        let id = tool_id(&nonce(&[7; 32], 1), 1, 1, "bash");
        assert_eq!(verify_tool_id(&id, "bash"), Some(1));
        assert_eq!(verify_tool_id(&format!("{id}_2"), "bash"), Some(1));
        assert_eq!(verify_tool_id(&id, "read"), None);
        assert_eq!(verify_tool_id("toolu_A", "bash"), None);
    }
}
