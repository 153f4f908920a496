//! The bounds of a tool's text: 2,000 lines or 50 KiB, whichever comes first, cut at line borders.
//!
//! Owns counting and cutting. Must not know what the text is; the notice about a cut is the tool's.

/// Most lines of one result.
pub const MAX_LINES: usize = 2000;
/// Most bytes of one result's text, about 12,000 tokens.
pub const MAX_BYTES: usize = 50 * 1024;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut<'a> {
    /// What is left.
    pub text: &'a str,
    /// Lines in it.
    pub lines: usize,
    /// Whether anything is missing.
    pub is_shortened: bool,
}

/// The beginning of a text, in whole lines. A first line that alone is too long leaves nothing.
pub fn head(text: &str) -> Cut<'_> {
    let (mut bytes, mut lines) = (0, 0);
    for line in text.split_inclusive('\n') {
        if lines == MAX_LINES || bytes + line.len() > MAX_BYTES {
            break;
        }
        bytes += line.len();
        lines += 1;
    }
    Cut { text: &text[..bytes], lines, is_shortened: bytes < text.len() }
}

/// The end of a text, in whole lines. Of a last line that alone is too long its end is kept.
pub fn tail(text: &str) -> Cut<'_> {
    let (mut begin, mut lines) = (text.len(), 0);
    for line in text.split_inclusive('\n').rev() {
        if lines == MAX_LINES || text.len() - begin + line.len() > MAX_BYTES {
            break;
        }
        begin -= line.len();
        lines += 1;
    }
    if lines == 0 && !text.is_empty() {
        begin = text.ceil_char_boundary(text.len() - MAX_BYTES.min(text.len()));
        lines = 1;
    }
    Cut { text: &text[begin..], lines, is_shortened: begin > 0 }
}

/// The last bytes of a text, at most `bytes`, beginning with a whole character.
pub fn last_bytes(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Bytes as a person reads them: `512 bytes`, `50 KiB`, `3.2 MiB`.
pub fn size(bytes: u64) -> String {
    const KIBI: u64 = 1024;
    const MEBI: u64 = 1024 * KIBI;
    match bytes {
        0..KIBI => format!("{bytes} bytes"),
        KIBI..MEBI => format!("{} KiB", bytes.div_ceil(KIBI)),
        _ => format!("{}.{} MiB", bytes / MEBI, bytes % MEBI * 10 / MEBI),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_stays_whole() {
        for text in ["", "a", "a\n", "a\nb"] {
            assert_eq!((head(text).text, head(text).is_shortened), (text, false));
            assert_eq!((tail(text).text, tail(text).is_shortened), (text, false));
        }
    }

    #[test]
    fn lines_are_counted_from_either_end() {
        let text: String = (1..=2500).map(|number| number.to_string() + "\n").collect();
        let first = head(&text);
        assert_eq!((first.lines, first.is_shortened), (2000, true));
        assert!(first.text.starts_with("1\n") && first.text.ends_with("\n2000\n"));
        let last = tail(&text);
        assert_eq!((last.lines, last.is_shortened), (2000, true));
        assert!(last.text.starts_with("501\n") && last.text.ends_with("\n2500\n"));
    }

    #[test]
    fn bytes_bound_lines_that_are_long() {
        let line = "x".repeat(30 * 1024);
        let text = format!("{line}\n{line}\n");
        assert_eq!((head(&text).lines, head(&text).text.len()), (1, 30 * 1024 + 1));
        assert_eq!((tail(&text).lines, tail(&text).text.len()), (1, 30 * 1024 + 1));
    }

    #[test]
    fn one_line_that_is_too_long_has_no_head_and_the_end_as_tail() {
        let text = "é".repeat(40 * 1024);
        assert_eq!(head(&text), Cut { text: "", lines: 0, is_shortened: true });
        assert_eq!((tail(&text).text.len(), tail(&text).is_shortened), (MAX_BYTES, true));
        let odd = format!("a{text}");
        assert_eq!(tail(&odd).text.len(), MAX_BYTES);
        assert_eq!(last_bytes("aé", 1), "");
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [size(0), size(1023), size(51_200), size(3_400_000)],
            ["0 bytes", "1023 bytes", "50 KiB", "3.2 MiB"]
        );
    }
}
