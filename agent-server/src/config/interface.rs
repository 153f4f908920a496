//! What user interfaces may do: kinds of commands, and origins of pages.
//!
//! Owns these lists and their checks; pure.

/// Kinds of commands that can be configured: they stand in the tool's schema, which every request to the model carries.
const MAX_KINDS: usize = 100;
/// Bytes of one kind.
const MAX_KIND: usize = 64;

/// The names in a list separated by commas; empty ones are passed over.
fn names(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Kinds of commands: letters, digits, `.`, `-` and `_`.
pub fn ui_kinds(list: Option<&str>) -> Result<Vec<String>, String> {
    let mut kinds: Vec<String> = Vec::new();
    for kind in names(list) {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if kind.len() > MAX_KIND || !kind.bytes().all(sound) {
            return Err(format!("`{kind}` needs 1 to {MAX_KIND} letters, digits, `.`, `-` or `_`"));
        }
        if !kinds.iter().any(|known| known == kind) {
            kinds.push(kind.into());
        }
    }
    if kinds.len() > MAX_KINDS {
        return Err(format!("{} are more than {MAX_KINDS}", kinds.len()));
    }
    Ok(kinds)
}

/// Origins as browsers send them: scheme, host and port unless it is the scheme's own, nothing else.
pub fn allowed_origins(list: Option<&str>) -> Result<Vec<String>, String> {
    names(list).map(str::to_ascii_lowercase).map(check_origin).collect()
}

fn check_origin(origin: String) -> Result<String, String> {
    let fault = || format!("`{origin}` is not an origin such as https://app.example or http://localhost:3000");
    let (scheme, authority) = origin.split_once("://").ok_or_else(fault)?;
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    let default_port = if scheme == "https" { ":443" } else { ":80" };
    if !matches!(scheme, "http" | "https")
        || authority.is_empty()
        || !authority.bytes().all(sound)
        || authority.ends_with(default_port)
    {
        return Err(fault());
    }
    Ok(origin)
}

#[cfg(test)]
mod tests {
    use super::{allowed_origins, ui_kinds};

    #[test]
    fn origins_are_taken_as_browsers_send_them() {
        let good = allowed_origins(Some("https://App.example, http://localhost:3000,http://[::1]:1"));
        assert_eq!(good.expect("good"), ["https://app.example", "http://localhost:3000", "http://[::1]:1"]);
        for bad in ["*", "null", "app.example", "ftp://a", "https://", "https://a/", "https://a:443", "http://a b"] {
            assert!(allowed_origins(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_are_plain_names_each_once() {
        assert_eq!(ui_kinds(None), Ok(vec![]));
        assert_eq!(ui_kinds(Some(" a.b, c-d ,,a.b")), Ok(vec!["a.b".to_string(), "c-d".to_string()]));
        assert!(ui_kinds(Some("two words")).is_err());
        assert!(ui_kinds(Some(&"x".repeat(65))).is_err());
        let many: Vec<String> = (0..101).map(|number| number.to_string()).collect();
        assert!(ui_kinds(Some(&many.join(","))).is_err());
    }
}
