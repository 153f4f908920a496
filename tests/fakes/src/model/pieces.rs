//! Cutting a text into deltas.

/// Cuts into groups of `words` words; white space stays with the word before it.
pub(super) fn by_words(text: &str, words: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut count = 0;
    let mut in_space = false;
    for (position, character) in text.char_indices() {
        if in_space && !character.is_whitespace() {
            count += 1;
            if count == words {
                pieces.push(&text[start..position]);
                start = position;
                count = 0;
            }
        }
        in_space = character.is_whitespace();
    }
    if start < text.len() {
        pieces.push(&text[start..]);
    }
    pieces
}

/// Cuts into `count` pieces of equal length in characters (fewer when the text has fewer characters).
pub(super) fn by_count(text: &str, count: usize) -> Vec<&str> {
    let borders: Vec<usize> = text.char_indices().map(|(position, _)| position).chain([text.len()]).collect();
    let characters = borders.len() - 1;
    let count = count.clamp(1, characters.max(1));
    (0..count)
        .map(|piece| &text[borders[piece * characters / count]..borders[(piece + 1) * characters / count]])
        .filter(|piece| !piece.is_empty())
        .collect()
}

/// Cuts into pieces of at most `bytes` bytes, never inside a character.
pub(super) fn by_bytes(text: &str, bytes: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = bytes.clamp(1, rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, tail) = rest.split_at(end);
        pieces.push(piece);
        rest = tail;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_text() {
        for text in ["", "a", "one two  three\nfour five", "äöü€ 🙂🙂 x", "   "] {
            assert_eq!(by_words(text, 2).concat(), text);
            assert_eq!(by_count(text, 3).concat(), text);
            assert_eq!(by_bytes(text, 2).concat(), text);
        }
        assert_eq!(by_words("one two three", 1), ["one ", "two ", "three"]);
        assert_eq!(by_count("abcdef", 3), ["ab", "cd", "ef"]);
        assert_eq!(by_bytes("abcde", 2), ["ab", "cd", "e"]);
    }
}
