//! Whole lines from pieces of bytes that may split anywhere, also within a character.

use crate::error::Error;

/// Longest line that is kept: 8 MiB.
const LONGEST: usize = 8 << 20;

#[derive(Debug, Default)]
pub struct Lines {
    kept: Vec<u8>,
    taken: usize,
}

impl Lines {
    /// Adds what arrived.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Error> {
        self.kept.drain(..self.taken);
        self.taken = 0;
        self.kept.extend_from_slice(piece);
        if self.kept.len() > LONGEST + piece.len() {
            return Err(Error::TooLarge(LONGEST));
        }
        Ok(())
    }

    /// The next whole line that is not blank.
    pub fn next(&mut self) -> Option<&[u8]> {
        loop {
            let rest = &self.kept[self.taken..];
            let length = rest.iter().position(|byte| *byte == b'\n')?;
            let from = self.taken;
            self.taken += length + 1;
            if !self.kept[from..from + length].trim_ascii().is_empty() {
                return Some(&self.kept[from..from + length]);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_the_pieces_split() {
        let text = "{\"a\":\"é\"}\n\n{\"b\":\"日本\"}\n{\"cut".as_bytes();
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece).unwrap();
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":\"é\"}", "{\"b\":\"日本\"}"], "pieces of {size}");
        }
    }
}
