//! Ids and times of sessions. Owns their syntax.

use jiff::Timestamp;
use rand::Rng;

/// Longest session, turn or message id of a client.
pub const MAX_ID: usize = 128;
/// Words of routes, so never ids of turns or sessions.
const RESERVED: [&str; 4] = ["stream", "messages", "stop", "followup"];

/// Whether a client may use this as a session id.
pub fn is_session_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Whether this can name a turn.
pub fn is_turn_id(text: &str) -> bool {
    is_session_id(text) && !RESERVED.contains(&text)
}

/// A new id with a prefix; sorts by time.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::now_v7().simple())
}

/// A new entry id: 8 hex digits that `taken` does not know.
pub fn new_entry_id(taken: impl Fn(&str) -> bool) -> String {
    loop {
        let id = format!("{:08x}", rand::rng().random::<u32>());
        if !taken(&id) {
            return id;
        }
    }
}

/// Now, with milliseconds and `Z`.
pub fn now() -> String {
    iso(Timestamp::now().as_millisecond())
}

/// Milliseconds since the Unix epoch as a timestamp.
pub fn iso(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

/// A timestamp as milliseconds; 0 when unreadable.
pub fn milliseconds(timestamp: &str) -> i64 {
    timestamp.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_milliseconds_and_survive_a_round_trip() {
        assert_eq!(iso(1_796_047_201_000), "2026-11-30T14:00:01.000Z");
        assert_eq!(milliseconds("2026-11-30T14:00:01.010Z"), 1_796_047_201_010);
    }

    #[test]
    fn ids_of_clients_are_short_and_plain() {
        for (id, good) in [("a-B_9", true), ("", false), ("a/b", false), ("..", false), (&*"x".repeat(129), false)] {
            assert_eq!(is_session_id(id), good, "{id}");
        }
        assert!(!is_turn_id("stream"));
    }
}
