//! How long chunk logs are kept: 24 hours, the last 20 of a session. Owns that rule; all functions block.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::entry::{Block, Entry, FollowUpData, Kind, ToolResult};

const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_LOGS: usize = 20;

/// Removes the old logs of all sessions.
pub fn sweep(turns: &Path) {
    let Ok(folders) = std::fs::read_dir(turns) else { return };
    for folder in folders.flatten() {
        sweep_session(&folder.path());
    }
}

/// Removes the old logs of one session.
pub fn sweep_session(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut logs: Vec<(SystemTime, std::path::PathBuf)> =
        entries.flatten().filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    logs.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    let now = SystemTime::now();
    for (index, (modified, path)) in logs.iter().enumerate() {
        let old = now.duration_since(*modified).is_ok_and(|age| age > MAX_AGE);
        if (old || index >= MAX_LOGS)
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(kind = ?error.kind(), "an old chunk log could not be removed");
        }
    }
}

/// Removes all logs of a session.
pub fn remove_session(turns: &Path, session_id: &str) {
    match std::fs::remove_dir_all(turns.join(session_id)) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(kind = ?error.kind(), "the chunk logs of a session could not be removed"),
    }
}

/// Hashes of everything that lines of a session keep in the attachment store.
pub fn kept_hashes(entries: &[Entry]) -> Vec<String> {
    let mut hashes = Vec::new();
    for entry in entries {
        match &entry.kind {
            Kind::User { content } | Kind::ToolResult(ToolResult { content, .. }) => {
                hashes.extend(content.iter().filter_map(|block| match block {
                    Block::Kept(image) => Some(image.sha256.clone()),
                    _ => None,
                }));
            }
            Kind::Turn(turn) => hashes.extend(turn.user_parts.iter().flatten().filter_map(hash_of)),
            Kind::FollowUp(data) => {
                if let FollowUpData::Queued(queued) = &**data {
                    hashes.extend(queued.message["parts"].as_array().into_iter().flatten().filter_map(hash_of));
                }
            }
            _ => {}
        }
    }
    hashes
}

/// The hash in the address of a file part.
fn hash_of(part: &Value) -> Option<String> {
    Some(part["url"].as_str()?.strip_prefix(&super::history::attachment_url(""))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_twenty_logs_of_a_day_stay() {
        let folder = tempfile::tempdir().expect("folder");
        let session = folder.path().join("s");
        std::fs::create_dir(&session).expect("folder");
        let now = SystemTime::now();
        for number in 0..25_u64 {
            let file = std::fs::File::create(session.join(format!("{number:02}.log"))).expect("log");
            let age = if number == 3 { MAX_AGE * 2 } else { Duration::from_secs(number) };
            file.set_modified(now - age).expect("time");
        }
        sweep(folder.path());
        let mut left: Vec<String> = std::fs::read_dir(&session)
            .expect("list")
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        let expected: Vec<String> =
            (0..21).filter(|number| *number != 3).map(|number| format!("{number:02}.log")).collect();
        assert_eq!(left, expected);
        remove_session(folder.path(), "s");
        assert!(!session.exists());
    }
}
