//! Replacing pieces of a text, each found exactly once.
//!
//! Owns matching, from exact to tolerant, and the replacement that leaves every other byte alone. Must not know files.

use std::ops::Range;

/// One replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Text to find.
    pub old: String,
    /// Text to put in its place.
    pub new: String,
}

/// Applies all replacements; each is looked for in the original, not in the result of another.
///
/// An old text is tried as it is, then with line ends of either kind taken as equal, then with blanks at the ends of
/// lines and the shapes of quotes taken as equal. A new text gets the line ends of the file. The error is a sentence
/// for the model.
pub fn replace_all(original: &str, replacements: &[Replacement]) -> Result<String, String> {
    let mut found = Vec::new();
    for (index, replacement) in replacements.iter().enumerate() {
        let name = if replacements.len() == 1 { "oldText".into() } else { format!("oldText of edit {}", index + 1) };
        let range = find_once(original, &replacement.old, &name)?;
        found.push((range, with_line_ends_of(original, &replacement.new)));
    }
    found.sort_by_key(|(range, _)| range.start);
    if found.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
        return Err("two edits overlap; join them into one".into());
    }
    let mut result = String::with_capacity(original.len());
    let mut done = 0;
    for (range, new) in found {
        result.push_str(&original[done..range.start]);
        result.push_str(&new);
        done = range.end;
    }
    result.push_str(&original[done..]);
    if result == original {
        return Err("the edit changes nothing: oldText and newText are the same".into());
    }
    Ok(result)
}

fn find_once(text: &str, old: &str, name: &str) -> Result<Range<usize>, String> {
    if old.is_empty() {
        return Err(format!("{name} is empty; use write to create a file"));
    }
    for fold in [Fold::Nothing, Fold::LineEnds, Fold::BlanksAndQuotes] {
        let (text, old) = (Folded::new(text, fold), Folded::new(old, fold));
        if old.text.trim().is_empty() && fold == Fold::BlanksAndQuotes {
            break;
        }
        let places = text.places(&old.text);
        match places.as_slice() {
            [] => {}
            [only] => return Ok(text.in_original(only)),
            many => {
                let count = many.len();
                return Err(format!("{name} is found {count} times; add lines around it until it is unique"));
            }
        }
    }
    Err(format!("{name} is not found; it must match the file exactly, so read the file again"))
}

/// What is taken as equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Nothing,
    LineEnds,
    BlanksAndQuotes,
}

/// A text in which what is taken as equal is equal, with the way back to the original.
struct Folded {
    text: String,
    /// For every byte of `text` the bytes of the original that its character stands for.
    origin: Vec<Range<usize>>,
}

impl Folded {
    fn new(original: &str, fold: Fold) -> Self {
        let mut folded = Self { text: String::with_capacity(original.len()), origin: Vec::new() };
        if fold == Fold::Nothing {
            folded.text.push_str(original);
            return folded;
        }
        let mut at = 0;
        for line in original.split_inclusive('\n') {
            let body = line.strip_suffix('\n').unwrap_or(line);
            let ending = line.len() > body.len();
            let body = if ending { body.strip_suffix('\r').unwrap_or(body) } else { body };
            let kept = if fold == Fold::BlanksAndQuotes { body.trim_end() } else { body };
            for (offset, character) in kept.char_indices() {
                let begin = at + offset;
                let shape = if fold == Fold::BlanksAndQuotes { plain_quote(character) } else { character };
                folded.push(shape, begin..begin + character.len_utf8());
            }
            if ending {
                folded.push('\n', at + body.len()..at + line.len());
            }
            at += line.len();
        }
        folded
    }

    fn push(&mut self, character: char, origin: Range<usize>) {
        self.text.push(character);
        self.origin.extend(std::iter::repeat_n(origin, character.len_utf8()));
    }

    /// Where the other text is found, overlapping places included, at most a thousand.
    fn places(&self, other: &str) -> Vec<Range<usize>> {
        let mut places = Vec::new();
        let mut from = 0;
        let step = other.chars().next().map_or(1, char::len_utf8);
        while places.len() < 1000
            && let Some(at) = self.text[from..].find(other)
        {
            places.push(from + at..from + at + other.len());
            from += at + step;
        }
        places
    }

    fn in_original(&self, place: &Range<usize>) -> Range<usize> {
        if self.origin.is_empty() {
            return place.clone();
        }
        self.origin[place.start].start..self.origin[place.end - 1].end
    }
}

fn plain_quote(character: char) -> char {
    match character {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' => '"',
        other => other,
    }
}

/// Line ends as most lines of the file have them; a file of one line takes the text as it is.
fn with_line_ends_of(file: &str, text: &str) -> String {
    let all = file.matches('\n').count();
    let windows = file.matches("\r\n").count();
    match all {
        0 => text.to_owned(),
        _ if windows * 2 > all => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        _ => text.replace("\r\n", "\n"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edit(original: &str, edits: &[(&str, &str)]) -> Result<String, String> {
        let replacements: Vec<Replacement> =
            edits.iter().map(|(old, new)| Replacement { old: (*old).into(), new: (*new).into() }).collect();
        replace_all(original, &replacements)
    }

    #[test]
    fn every_edit_is_looked_for_in_the_original() {
        assert_eq!(edit("one two three", &[("three", "one"), ("one", "1")]), Ok("1 two one".into()));
    }

    #[test]
    fn an_exact_match_wins_over_a_tolerant_one() {
        assert_eq!(edit("a \na\n", &[("a\n", "b\n")]), Ok("a \nb\n".into()));
    }

    #[test]
    fn blanks_and_quotes_are_forgiven_without_touching_other_lines() {
        let original = "keep  \nsay \u{201c}hi\u{201d}  \nnext\t\nlast";
        assert_eq!(edit(original, &[("say \"hi\"\nnext\n", "said\n")]), Ok("keep  \nsaid\nlast".into()));
    }

    #[test]
    fn line_ends_and_the_byte_order_mark_are_kept() {
        let original = "\u{feff}one\r\ntwo\r\nthree\r\n";
        assert_eq!(edit(original, &[("one\ntwo\n", "1\n2\n")]), Ok("\u{feff}1\r\n2\r\nthree\r\n".into()));
        assert_eq!(edit("one\ntwo\n", &[("one", "a\r\nb")]), Ok("a\nb\ntwo\n".into()));
    }

    #[test]
    fn mixed_line_ends_outside_of_the_edit_are_kept() {
        assert_eq!(edit("a\r\nb\nc\r\nd\r\n", &[("c\n", "C\n")]), Ok("a\r\nb\nC\r\nd\r\n".into()));
    }

    #[test]
    fn faults_are_named() {
        let fault = |original, edits: &[(&str, &str)]| edit(original, edits).unwrap_err();
        assert_eq!(fault("a a", &[("a", "b")]), "oldText is found 2 times; add lines around it until it is unique");
        assert_eq!(fault("aaa", &[("aa", "b")]), "oldText is found 2 times; add lines around it until it is unique");
        assert_eq!(
            fault("a", &[("a", "b"), ("x", "y")]),
            "oldText of edit 2 is not found; it must match the file exactly, so read the file again"
        );
        assert_eq!(fault("abc", &[("ab", "x"), ("bc", "y")]), "two edits overlap; join them into one");
        assert_eq!(fault("abc", &[("b", "b")]), "the edit changes nothing: oldText and newText are the same");
        assert_eq!(fault("abc", &[("", "b")]), "oldText is empty; use write to create a file");
        assert!(fault("a\n\n\nb\n  \n", &[("   ", "x")]).contains("is not found"));
    }

    proptest! {
        #[test]
        fn only_the_matched_place_changes(before in "[a-c \r\n“]{0,40}", after in "[a-c \r\n”]{0,40}", new in "[x-z\n]{0,10}") {
            let original = format!("{before}<needle>{after}");
            let result = edit(&original, &[("<needle>", &new)]).unwrap();
            prop_assert!(result.starts_with(&before) && result.ends_with(&after));
        }

        #[test]
        fn a_tolerant_match_never_splits_a_character(text in "\\PC{0,60}", old in "\\PC{1,6}") {
            // Any outcome is fine; a range inside a character would panic.
            let _ = edit(&text, &[(&old, "new")]);
        }
    }
}
