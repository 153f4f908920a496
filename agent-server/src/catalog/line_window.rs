//! A window of lines taken from a text that streams by.
//!
//! Owns finding the wanted lines and counting the rest in bounded memory. Must not know where the bytes come from.

use super::truncation::{MAX_BYTES, MAX_LINES};

/// Takes lines `first..first + limit`, at most 2,000 lines or 50 KiB of them, and counts what follows.
#[derive(Debug)]
pub struct LineWindow {
    first: u64,
    limit: u64,
    /// One-based number of the line that the next byte belongs to.
    line: u64,
    line_has_bytes: bool,
    text: Vec<u8>,
    /// Where the line that is being taken begins in `text`.
    line_begins: usize,
    line_bytes: u64,
    taken: u64,
    too_long: Option<(u64, u64)>,
    is_full: bool,
}

/// What a window holds in the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Window {
    /// Whole lines.
    pub text: Vec<u8>,
    /// Their number.
    pub taken: u64,
    /// Lines of the text as far as it was read.
    pub total: u64,
    /// A line that alone is over the bound, with its length: nothing from it on was taken.
    pub too_long: Option<(u64, u64)>,
}

impl LineWindow {
    /// `first` is one-based.
    pub fn new(first: u64, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX).min(MAX_LINES as u64);
        Self {
            first,
            limit,
            line: 1,
            line_has_bytes: false,
            text: Vec::new(),
            line_begins: 0,
            line_bytes: 0,
            taken: 0,
            too_long: None,
            is_full: false,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line_has_bytes = true;
            self.line_bytes += piece.len() as u64;
            if self.wants_line() {
                let room = (MAX_BYTES + 1).saturating_sub(self.text.len());
                self.text.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// Whether all that will be taken has been taken.
    pub fn is_done(&self) -> bool {
        self.is_full || self.taken >= self.limit
    }

    fn wants_line(&self) -> bool {
        !self.is_full && self.line >= self.first && self.taken < self.limit
    }

    fn end_line(&mut self) {
        if self.wants_line() {
            if self.text.len() > MAX_BYTES {
                self.text.truncate(self.line_begins);
                self.is_full = true;
                if self.taken == 0 {
                    self.too_long = Some((self.line, self.line_bytes));
                }
            } else {
                self.taken += 1;
                self.line_begins = self.text.len();
            }
        }
        self.line += 1;
        self.line_bytes = 0;
        self.line_has_bytes = false;
    }

    /// Ends the text.
    pub fn finish(mut self) -> Window {
        if self.line_has_bytes {
            self.end_line();
        }
        Window { text: self.text, taken: self.taken, total: self.line - 1, too_long: self.too_long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(text: &[u8], first: u64, limit: Option<u64>, piece: usize) -> Window {
        let mut window = LineWindow::new(first, limit);
        text.chunks(piece).for_each(|bytes| window.push(bytes));
        window.finish()
    }

    #[test]
    fn lines_are_the_same_however_the_text_is_split() {
        for piece in [1, 2, 3, 100] {
            let expected = Window { text: b"b\r\n\n".to_vec(), taken: 2, total: 4, too_long: None };
            assert_eq!(window(b"a\nb\r\n\nd", 2, Some(2), piece), expected);
        }
        assert_eq!(window(b"", 1, None, 1).total, 0);
        assert_eq!(window(b"a", 1, None, 1), Window { text: b"a".to_vec(), taken: 1, total: 1, too_long: None });
        assert_eq!(window(b"a\n", 5, None, 1), Window { text: Vec::new(), taken: 0, total: 1, too_long: None });
    }

    #[test]
    fn bytes_bound_the_window_at_a_line_border() {
        let text = format!("short\n{}\nrest\n", "x".repeat(MAX_BYTES - 6));
        assert_eq!(window(text.as_bytes(), 1, None, 4096).taken, 1);
        let fits = format!("short\n{}\nrest\n", "x".repeat(MAX_BYTES - 7));
        let taken = window(fits.as_bytes(), 1, None, 4096);
        assert_eq!((taken.taken, taken.text.len(), taken.total), (2, MAX_BYTES, 3));
    }

    #[test]
    fn a_line_that_alone_is_too_long_is_named() {
        let text = format!("a\n{}\n", "x".repeat(MAX_BYTES + 10));
        let expected = Window { text: Vec::new(), taken: 0, total: 2, too_long: Some((2, MAX_BYTES as u64 + 11)) };
        assert_eq!(window(text.as_bytes(), 2, None, 1000), expected);
    }
}
