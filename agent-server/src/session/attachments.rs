//! Images and files that messages refer to, kept once by the hash of their bytes.
//!
//! Owns the store and what may enter it. Must not know messages. All methods block.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::entry::KeptImage;
use crate::storage::{make_private_dir, private_file};

/// Files of one message.
pub const MAX_FILES: usize = 20;
/// Bytes of one file.
pub const MAX_FILE_BYTES: usize = 10 * 1024 * 1024;
/// Bytes of all files of one message.
pub const MAX_TOTAL_BYTES: usize = 32 * 1024 * 1024;

/// The store under the state directory: one folder per hash with `data` and one empty file per session that uses it.
#[derive(Debug, Clone)]
pub struct Attachments {
    root: PathBuf,
    /// Held while uses begin or end: a file that loses its last use must not get another one while it goes.
    uses: Arc<Mutex<()>>,
}

/// A file found in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Content.
    pub bytes: Vec<u8>,
    /// Media type by content.
    pub media_type: &'static str,
}

impl Attachments {
    /// At a folder, made when the first file comes.
    pub fn new(root: PathBuf) -> Self {
        Self { root, uses: Arc::default() }
    }

    /// Keeps bytes for a session.
    pub fn keep(&self, session_id: &str, name: &str, bytes: &[u8]) -> std::io::Result<KeptImage> {
        let sha256 = hex(&Sha256::digest(bytes));
        let _uses = self.uses();
        let folder = self.root.join(&sha256);
        make_private_dir(&folder)?;
        let data = folder.join("data");
        if std::fs::metadata(&data).map_or(0, |found| found.len()) != bytes.len() as u64 {
            let temporary = folder.join(format!("data.{}", uuid::Uuid::now_v7().simple()));
            let written = write_synced(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, &data));
            if let Err(error) = written {
                let _best_effort = std::fs::remove_file(&temporary);
                return Err(error);
            }
        }
        private_file().write(true).create(true).truncate(true).open(folder.join(reference(session_id)))?;
        Ok(KeptImage { sha256, media_type: sniff(bytes).to_owned(), name: clean_name(name), size: bytes.len() as u64 })
    }

    /// Keeps files that are there for one more session.
    pub fn share(&self, session_id: &str, hashes: impl IntoIterator<Item = String>) -> std::io::Result<()> {
        let _uses = self.uses();
        for hash in hashes.into_iter().filter(|hash| is_hash(hash)) {
            let folder = self.root.join(hash);
            if folder.is_dir() {
                private_file().write(true).create(true).truncate(true).open(folder.join(reference(session_id)))?;
            }
        }
        Ok(())
    }

    /// Reads a file; `None` when it is not there or `sha256` is no hash.
    pub fn read(&self, sha256: &str) -> std::io::Result<Option<Attachment>> {
        if !is_hash(sha256) {
            return Ok(None);
        }
        match std::fs::read(self.root.join(sha256).join("data")) {
            Ok(bytes) => Ok(Some(Attachment { media_type: sniff(&bytes), bytes })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file as base64.
    pub fn read_base64(&self, sha256: &str) -> Option<String> {
        self.read(sha256).ok().flatten().map(|found| STANDARD.encode(found.bytes))
    }

    /// Forgets a session's use of these hashes; files that nobody uses go.
    pub fn release(&self, session_id: &str, hashes: impl IntoIterator<Item = String>) {
        let _uses = self.uses();
        for hash in hashes.into_iter().filter(|hash| is_hash(hash)) {
            let folder = self.root.join(hash);
            let _already_gone = std::fs::remove_file(folder.join(reference(session_id)));
            let used = std::fs::read_dir(&folder).map(|entries| {
                entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("used-by-"))
            });
            if matches!(used, Ok(false))
                && let Err(error) = std::fs::remove_dir_all(&folder)
            {
                tracing::warn!(kind = ?error.kind(), "an unused attachment could not be removed");
            }
        }
    }

    fn uses(&self) -> MutexGuard<'_, ()> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decodes a `data:` address into name-less bytes.
pub fn decode_data_url(url: &str) -> Option<Vec<u8>> {
    let (head, body) = url.strip_prefix("data:")?.split_once(',')?;
    head.ends_with(";base64").then(|| STANDARD.decode(body.trim()).ok())?
}

/// The media type by content; what is neither a known image, PDF nor text is `application/octet-stream`.
pub fn sniff(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        [b'%', b'P', b'D', b'F', b'-', ..] => "application/pdf",
        bytes if !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok() => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Whether models take this type as an image.
pub fn is_image(media_type: &str) -> bool {
    media_type.starts_with("image/")
}

/// 64 lower-case hex digits.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn reference(session_id: &str) -> String {
    format!("used-by-{session_id}")
}

/// A name that cannot break the placeholder's line.
fn clean_name(name: &str) -> String {
    let name: String = name.chars().filter(|c| !c.is_control() && !matches!(c, '[' | ']' | ',')).take(100).collect();
    if name.trim().is_empty() { "attachment".into() } else { name }
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = private_file().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_are_kept_once_and_go_with_their_last_session() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Attachments::new(folder.path().join("attachments"));
        let png = b"\x89PNG\r\n\x1a\nrest";
        let kept = store.keep("one", "a,[b].png\n", png).expect("keep");
        assert_eq!((kept.media_type.as_str(), kept.name.as_str(), kept.size), ("image/png", "ab.png", 12));
        assert_eq!(store.keep("two", "", png).expect("keep").sha256, kept.sha256);
        store.release("one", [kept.sha256.clone()]);
        assert_eq!(store.read(&kept.sha256).expect("read").expect("there").bytes, png);
        store.release("two", [kept.sha256.clone()]);
        assert_eq!(store.read(&kept.sha256).expect("read"), None);
        assert_eq!(store.read("../../etc/passwd").expect("read"), None);
    }

    #[test]
    fn a_file_whose_last_use_ends_while_another_begins_is_whole_for_the_other() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Attachments::new(folder.path().join("attachments"));
        std::thread::scope(|scope| {
            for session in ["one", "two", "three"] {
                let store = store.clone();
                scope.spawn(move || {
                    for _ in 0..200 {
                        let kept = store.keep(session, "", b"shared").expect("kept");
                        assert_eq!(store.read(&kept.sha256).expect("read").expect("there").bytes, b"shared");
                        store.release(session, [kept.sha256]);
                    }
                });
            }
        });
    }

    #[test]
    fn only_base64_data_addresses_are_decoded() {
        assert_eq!(decode_data_url("data:image/png;base64,aGk="), Some(b"hi".to_vec()));
        assert_eq!(decode_data_url("data:text/plain,hi"), None);
        assert_eq!(decode_data_url("https://example.com/x.png"), None);
    }
}
