//! Which requests wake a sleeping workspace.
//!
//! Pure. Owns the list of `docs/contract.md` ("Requests that never count as activity and never wake"); a test compares both.
//! Must not know the state of any workspace.

use axum::http::{HeaderMap, HeaderValue, Method, header::ACCEPT, uri::PathAndQuery};

/// Says "wake it" for a program's GET.
const WAKE: &str = "x-workspace-wake";
/// Says "do not count me".
const BACKGROUND: &str = "x-workspace-background";
/// Of browsers: a page that is fetched before anybody asked for it.
const PURPOSE: [&str; 2] = ["purpose", "sec-purpose"];

/// Paths that are polled or streamed by open pages, or ask about the workspace itself.
const NEVER: [&str; 9] = [
    "/health",
    "/ready",
    "/api/v1/ready-status",
    "/metrics",
    "/api/v1/activity",
    "/api/v1/runtime",
    "/api/v1/fs/events",
    "/api/v1/events",
    "/api/v1/ui/commands/next",
];
/// The state that pages read again and again; writing it is an act of the user.
const UI_STATE: &str = "/api/v1/ui/state";

/// Whether a request wakes a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// It does unless its body says `causedBy: restore`: then a page only writes back what it was given.
    UnlessRestored,
}

/// Sorts a request. `has_body` is true when a body comes with it.
pub fn wakes(method: &Method, rest: &PathAndQuery, headers: &HeaderMap, has_body: bool) -> Waking {
    if *method == Method::HEAD || *method == Method::OPTIONS || is_background(method, rest.path(), headers) {
        Waking::No
    } else if *method == Method::PUT && rest.path() == UI_STATE {
        Waking::UnlessRestored
    } else if has_body || says(headers, WAKE) || (*method == Method::GET && accepts_html(headers)) {
        Waking::Yes
    } else {
        Waking::No
    }
}

/// Whether the body of a written UI state says that a page only restored it.
pub fn is_restore(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|state| state["causedBy"] == "restore")
}

/// Whether the caller is a browser that shows what it gets.
pub fn accepts_html(headers: &HeaderMap) -> bool {
    let html = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("text/html"));
    headers.get_all(ACCEPT).iter().any(html)
}

fn is_background(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    NEVER.contains(&path)
        || (path.starts_with(UI_STATE) && *method == Method::GET)
        || headers.contains_key("last-event-id")
        || says(headers, BACKGROUND)
        || PURPOSE.iter().any(|name| {
            headers.get(*name).is_some_and(|value| value.to_str().is_ok_and(|text| text.contains("prefetch")))
        })
}

fn says(headers: &HeaderMap, name: &str) -> bool {
    headers.get(name).is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, path: &str, headers: &[(&'static str, &'static str)], has_body: bool) -> bool {
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
        wakes(&method.parse().unwrap(), &path.parse().unwrap(), &headers, has_body) == Waking::Yes
    }

    const PAGE: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

    #[test]
    fn pages_bodies_and_those_who_ask_for_it_wake() {
        assert!(asked("GET", "/", &[PAGE], false));
        assert!(asked("POST", "/api/v1/agent/chat", &[], true));
        assert!(asked("GET", "/api/v1/tree", &[("x-workspace-wake", "1")], false));
    }

    #[test]
    fn a_program_that_only_looks_does_not_wake() {
        assert!(!asked("GET", "/api/v1/tree", &[("accept", "*/*")], false));
        assert!(!asked("HEAD", "/", &[PAGE], false));
        assert!(!asked("OPTIONS", "/", &[PAGE], true));
        assert!(!asked("GET", "/", &[PAGE, ("sec-purpose", "prefetch;prerender")], false));
        assert!(!asked("DELETE", "/api/v1/sessions/a", &[], false));
    }

    #[test]
    fn what_open_pages_do_by_themselves_does_not_wake_whatever_it_says() {
        for path in NEVER.iter().chain(&["/api/v1/ui/state", "/api/v1/ui/state/latest"]) {
            assert!(!asked("GET", path, &[PAGE, ("x-workspace-wake", "1")], false), "{path}");
        }
        assert!(!asked("POST", "/api/v1/agent/chat", &[("last-event-id", "7")], true));
        assert!(!asked("POST", "/api/v1/files", &[("x-workspace-background", "1")], true));
    }

    #[test]
    fn a_written_ui_state_wakes_unless_a_page_restored_it() {
        let path = PathAndQuery::from_static("/api/v1/ui/state");
        assert_eq!(wakes(&Method::PUT, &path, &HeaderMap::new(), true), Waking::UnlessRestored);
        assert!(is_restore(br#"{"state":{},"causedBy":"restore"}"#));
        assert!(!is_restore(br#"{"state":{"causedBy":"restore"},"causedBy":"user"}"#));
        assert!(!is_restore(b"{"));
    }

    #[test]
    fn the_list_is_the_one_of_the_contract() {
        let contract = include_str!("../../../docs/contract.md");
        let list = contract.split("never count as activity and never wake:").nth(1).unwrap();
        let list = list.split("\n## ").next().unwrap();
        let paths: Vec<&str> =
            list.split('`').filter(|word| word.starts_with('/') || word.starts_with("GET /")).collect();
        let ours: Vec<String> =
            NEVER.iter().map(|path| (*path).to_owned()).chain([format!("GET {UI_STATE}*")]).collect();
        let sorted = |mut words: Vec<String>| {
            words.sort();
            words
        };
        assert_eq!(sorted(paths.iter().map(|path| (*path).to_owned()).collect()), sorted(ours));
    }
}
