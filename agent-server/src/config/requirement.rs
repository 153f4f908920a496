//! Names of Python libraries with their versions.
//!
//! Owns the grammar: a name, extras, version bounds; no options, addresses, paths or blanks, so that a list of them can stand
//! in one variable and in the arguments of a command.

use std::sync::LazyLock;

use regex::Regex;
use serde::Serialize;

/// Libraries of one workspace at most.
pub const MAX_REQUIREMENTS: usize = 64;
/// Longest of them.
const MAX_BYTES: usize = 200;

static GRAMMAR: LazyLock<Regex> = LazyLock::new(|| {
    let bound = "(===?|!=|~=|<=?|>=?)[A-Za-z0-9][A-Za-z0-9.*+!_-]*";
    let pattern =
        format!(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?({bound}(,{bound})*)?$");
    Regex::new(&pattern).expect("a constant pattern")
});

/// One library, such as `pandas`, `numpy>=2,<3` or `uvicorn[standard]==0.30.1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Requirement(String);

impl Requirement {
    /// The text as pip takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads a list separated by blanks or line ends, with or without commas behind the entries; sorted, each once. The errors are
/// the entries that are none.
pub fn parse_requirements(text: &str) -> Result<Vec<Requirement>, Vec<String>> {
    let mut requirements = Vec::new();
    let mut wrong = Vec::new();
    for entry in text.split_whitespace().map(|entry| entry.trim_end_matches(',')).filter(|entry| !entry.is_empty()) {
        if entry.len() <= MAX_BYTES && GRAMMAR.is_match(entry) {
            requirements.push(Requirement(entry.to_owned()));
        } else {
            wrong.push(entry.to_owned());
        }
    }
    requirements.sort();
    requirements.dedup();
    if wrong.is_empty() { Ok(requirements) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_sorted_and_what_is_no_library_is_told() {
        let names = |text: &str| {
            let parsed = parse_requirements(text);
            parsed.map(|all| all.iter().map(|one| one.as_str().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            names("pandas, numpy>=2,<3\n , uvicorn[standard]==0.30.1 pandas a"),
            Ok(["a", "numpy>=2,<3", "pandas", "uvicorn[standard]==0.30.1"].map(str::to_owned).to_vec())
        );
        assert_eq!(names(" "), Ok(Vec::new()));
        for wrong in [
            "--index-url=http://x",
            "-r",
            "a@https://x/y.whl",
            "./local",
            "git+https://x",
            "a;python_version<'3'",
            "a==",
            "a[",
            "a'b",
            "a$(id)",
            &"a".repeat(201),
        ] {
            assert_eq!(names(&format!("ok {wrong}")), Err(vec![wrong.to_owned()]), "{wrong}");
        }
    }
}
