//! The session file on disk: made whole, appended to durably, held by one process.
//!
//! Owns locking, syncing and the torn tail. Must not know what lines mean. All methods block.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::error::SessionError;
use super::transcript::{Read, Transcript};
use crate::storage::{make_private_dir, private_file};

/// Levels of nesting that a line may have. The parser refuses 128, and a line that cannot be read back would take
/// everything before it out of the conversation.
const MAX_LINE_DEPTH: usize = 120;

/// A session file that this process writes.
#[derive(Debug)]
pub struct SessionFile {
    file: File,
    size: u64,
}

impl SessionFile {
    /// Makes a file with its first lines. It appears under its name only when it is whole, so that no reader ever meets a
    /// torn header. It is named before it is synced: the file system then brings content and name to disk in one go. A
    /// machine that dies in between can leave a file without a header; nothing was acknowledged then, and
    /// [`SessionFile::open`] removes it.
    pub fn create(folder: &Path, name: &str, lines: &str) -> Result<Self, SessionError> {
        refuse_deep(lines)?;
        make_private_dir(folder)?;
        let temporary = folder.join(format!("{name}.new"));
        let made = (|| {
            let mut file = private_file().read(true).append(true).create_new(true).open(&temporary)?;
            file.write_all(lines.as_bytes())?;
            lock(&file, name)?;
            std::fs::rename(&temporary, folder.join(name))?;
            file.sync_all()?;
            File::open(folder)?.sync_all()?;
            Ok(Self { file, size: lines.len() as u64 })
        })();
        if made.is_err() {
            let _best_effort = std::fs::remove_file(&temporary).or_else(|_| std::fs::remove_file(folder.join(name)));
        }
        made
    }

    /// Opens, locks and reads a file; cuts a torn tail. A file without one whole line is removed and `None` returned.
    pub fn open(path: &Path, id: &str) -> Result<Option<(Self, Transcript)>, SessionError> {
        let mut file = match OpenOptions::new().read(true).append(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(SessionError::NotFound(id.to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        lock(&file, id)?;
        let (read, size) = read_all(&mut file)?;
        if read.sound_bytes == 0 {
            tracing::warn!(session = id, bytes = size, "removing a session file without a whole line");
            std::fs::remove_file(path)?;
            return Ok(None);
        }
        let mut opened = Self { file, size };
        opened.cut_tail(read.sound_bytes)?;
        warn_unreadable(id, &read);
        Ok(Some((opened, read.transcript)))
    }

    /// Reads a file again when another hand has grown it; `None` when nothing changed.
    pub fn refresh(&mut self, id: &str) -> Result<Option<Transcript>, SessionError> {
        if self.file.metadata()?.len() == self.size {
            return Ok(None);
        }
        let (read, size) = read_all(&mut self.file)?;
        self.size = size;
        self.cut_tail(read.sound_bytes)?;
        warn_unreadable(id, &read);
        Ok(Some(read.transcript))
    }

    /// Appends whole lines and syncs them. After a failure nothing of them stays. A line that no reader could take is
    /// refused.
    pub fn append(&mut self, lines: &str) -> Result<(), SessionError> {
        refuse_deep(lines)?;
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.size += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                if let Err(cut) = self.file.set_len(self.size) {
                    tracing::error!(kind = ?cut.kind(), "a half-written session line could not be cut");
                }
                Err(error.into())
            }
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn cut_tail(&mut self, sound_bytes: u64) -> Result<(), SessionError> {
        if sound_bytes < self.size {
            tracing::warn!(bytes = self.size - sound_bytes, "cutting a torn last line of a session file");
            self.file.set_len(sound_bytes)?;
            self.size = sound_bytes;
        }
        Ok(())
    }
}

fn refuse_deep(lines: &str) -> Result<(), SessionError> {
    if lines.lines().any(|line| depth(line) > MAX_LINE_DEPTH) {
        return Err(SessionError::Invalid {
            field: "message",
            message: format!("nested too deeply: a line of a session has at most {MAX_LINE_DEPTH} levels"),
        });
    }
    Ok(())
}

/// Levels of nesting of a JSON text.
fn depth(json: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                now += 1;
                most = most.max(now);
            }
            b'}' | b']' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

fn lock(file: &File, id: &str) -> Result<(), SessionError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(SessionError::Locked(id.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn read_all(file: &mut File) -> Result<(Read, u64), SessionError> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok((Transcript::read(&bytes), bytes.len() as u64))
}

fn warn_unreadable(id: &str, read: &Read) {
    if read.unreadable > 0 {
        tracing::warn!(session = id, lines = read.unreadable, "a session file has unreadable lines");
    }
}

/// Name of a session's file.
pub fn file_name(created_at: &str, id: &str) -> String {
    format!("{}_{id}.jsonl", created_at.replace([':', '.'], "-"))
}

/// The session id in a file name.
pub fn id_in_name(name: &str) -> Option<&str> {
    name.strip_suffix(".jsonl")?.split_once('_').map(|(_, id)| id)
}

/// Whether a regular file is there, links not followed.
pub fn is_regular(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|stat| stat.is_file())
}

/// The name of the file of a session that the index does not know. Names alone are read, as every new session comes here.
pub fn find(folder: &Path, id: &str) -> Result<Option<String>, SessionError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| id_in_name(name) == Some(id)) && is_regular(&entry.path()) {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// All session files of a folder with their sizes. Only regular files count: a link would lead writes elsewhere, and
/// a FIFO would hold the reader for ever.
pub fn list(folder: &Path) -> std::io::Result<Vec<(PathBuf, String, u64)>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(id) = id_in_name(&name).filter(|id| super::ids::is_session_id(id)) {
            // Of the entry itself, links not followed.
            match entry.metadata() {
                Ok(stat) if stat.is_file() => found.push((entry.path(), id.to_owned(), stat.len())),
                Ok(_) => {
                    tracing::warn!(session = id, "an entry of the session folder is no regular file; it is left out");
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_and_a_torn_tail_is_cut_before_the_next_line() {
        let folder = tempfile::tempdir().expect("folder");
        let name = file_name("2026-11-30T14:00:00.000Z", "abc");
        assert_eq!(name, "2026-11-30T14-00-00-000Z_abc.jsonl");
        assert_eq!(id_in_name(&name), Some("abc"));
        let file = SessionFile::create(folder.path(), &name, "{\"type\":\"session\"}\n").expect("create");
        let path = folder.path().join(&name);
        assert_eq!(SessionFile::open(&path, "abc").err(), Some(SessionError::Locked("abc".into())));
        drop(file);
        std::fs::OpenOptions::new().append(true).open(&path).and_then(|mut f| f.write_all(b"{\"torn")).expect("tear");
        let (mut file, _) = SessionFile::open(&path, "abc").expect("open").expect("there");
        file.append("{\"type\":\"label\"}\n").expect("append");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text, "{\"type\":\"session\"}\n{\"type\":\"label\"}\n");
        assert_eq!(file.size(), text.len() as u64);
        assert_eq!(list(folder.path()).expect("list"), [(path, "abc".to_owned(), text.len() as u64)]);
    }

    #[test]
    fn a_line_that_could_not_be_read_back_is_refused_and_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("folder");
        let mut file = SessionFile::create(folder.path(), "s.jsonl", "{\"type\":\"session\"}\n").expect("made");
        let nested = |levels: usize| format!("{}1{}\n", "{\"a\":".repeat(levels), "}".repeat(levels));
        file.append(&nested(MAX_LINE_DEPTH)).expect("appended");
        let before = file.size();
        let refused = file.append(&nested(MAX_LINE_DEPTH + 1));
        assert!(matches!(refused, Err(SessionError::Invalid { field: "message", .. })), "{refused:?}");
        assert_eq!(std::fs::metadata(folder.path().join("s.jsonl")).expect("there").len(), before);
        assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_LINE_DEPTH)).is_ok(), "the parser takes it");
    }

    #[test]
    fn brackets_in_strings_are_no_nesting() {
        assert_eq!(depth(r#"{"a": "[[{\"[", "b": ["\\", [1]]}"#), 3);
    }
}
