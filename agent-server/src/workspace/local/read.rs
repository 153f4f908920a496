//! Reading: metadata, validators, whole files and streams.
//!
//! Owns the validator. A file of at most [`SMALL`] bytes has its content's hash: it stays the same when the file is
//! copied, restored or written again with the same content, and no clock takes part. A larger one has a hash of
//! inode, size and both times; a write in place within one tick of the file system's clock that also keeps the size
//! is the one change it cannot see, and this server's own writes always make a new inode.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use rustix::fs::{AtFlags, Stat as RawStat, readlinkat, statat};
use sha2::{Digest, Sha256};

use super::confine::{Root, from_errno, kind_of, open_child_file, stat_of};
use super::run_blocking;
use crate::workspace::{Kind, OpenFile, Stat, WorkspaceError, WorkspacePath};

/// Files up to this size are read at once, on the calling thread when the storage is quick: 64 KiB take about 20 µs
/// from the page cache, less than handing the work to another thread and back.
pub const SMALL: u64 = 64 * 1024;
/// Bytes per chunk of a stream: four system calls per MiB.
const CHUNK: u64 = 256 * 1024;

/// Milliseconds since the Unix epoch.
pub fn mtime_ms(stat: &RawStat) -> i64 {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    stat.st_mtime.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// Size in bytes; never negative for what we look at.
pub fn size_of(stat: &RawStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Validator of a content.
pub fn content_etag(content: &[u8]) -> String {
    quoted(&Sha256::digest(content))
}

/// Validator of a file that is too large to hash on each look.
fn metadata_etag(stat: &RawStat) -> String {
    let mut hash = Sha256::new_with_prefix(b"metadata");
    for number in [
        i128::from(stat.st_ino),
        i128::from(stat.st_size),
        i128::from(stat.st_mtime),
        i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime),
        i128::from(stat.st_ctime_nsec),
    ] {
        hash.update(number.to_le_bytes());
    }
    quoted(&hash.finalize())
}

/// 128 bits in hexadecimal, in the quotes of the header.
fn quoted(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(34);
    text.push('"');
    for byte in &digest[..16] {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('"');
    text
}

/// Validator of an open regular file.
pub fn etag_of(file: &File, stat: &RawStat, path: &WorkspacePath) -> Result<String, WorkspaceError> {
    if size_of(stat) > SMALL {
        return Ok(metadata_etag(stat));
    }
    Ok(content_etag(&read_whole(file, size_of(stat), path)?))
}

/// Metadata without validator and target.
pub fn plain(stat: &RawStat) -> Stat {
    Stat { kind: kind_of(stat), size: size_of(stat), mtime_ms: mtime_ms(stat), etag: None, target: None }
}

/// `size` bytes from the start, fewer if the file was cut meanwhile. Growth after the size was taken is not read.
fn read_whole(file: &File, size: u64, path: &WorkspacePath) -> Result<Vec<u8>, WorkspaceError> {
    read_range(file, 0, size, path)
}

fn read_range(file: &File, offset: u64, length: u64, path: &WorkspacePath) -> Result<Vec<u8>, WorkspaceError> {
    let length = usize::try_from(length).map_err(|_| WorkspaceError::Io(path.clone()))?;
    let mut content = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut content[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(super::confine::from_io(&error, path)),
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// Metadata of a path; a link at its end is reported, not followed.
pub fn stat(root: &Root, path: &WorkspacePath) -> Result<Stat, WorkspaceError> {
    if path.is_root() {
        return Ok(plain(&stat_of(root.directory(path)?, path)?));
    }
    let (parent, name) = root.parent(path)?;
    let raw = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| from_errno(errno, path))?;
    let mut stat = plain(&raw);
    match stat.kind {
        Kind::File => {
            let opened = open_child_file(&parent, name).map_err(|errno| from_errno(errno, path))?;
            let (file, raw) = opened.ok_or_else(|| WorkspaceError::NotRegular(path.clone()))?;
            stat = plain(&raw);
            stat.etag = Some(etag_of(&file, &raw, path)?);
        }
        Kind::Symlink => {
            let target = readlinkat(&parent, name, Vec::new()).map_err(|errno| from_errno(errno, path))?;
            stat.target = Some(target.to_string_lossy().into_owned());
        }
        Kind::Dir | Kind::Other => {}
    }
    Ok(stat)
}

/// A file opened for one read, with its metadata; small ones are already read.
pub struct Opened {
    file: File,
    raw: RawStat,
    /// The content of a small file.
    small: Option<Vec<u8>>,
}

/// Opens a regular file; reads it when it is small.
pub fn open(root: &Root, path: &WorkspacePath) -> Result<Opened, WorkspaceError> {
    let (file, raw) = root.file(path)?;
    let small = if size_of(&raw) <= SMALL { Some(read_whole(&file, size_of(&raw), path)?) } else { None };
    Ok(Opened { file, raw, small })
}

impl Opened {
    fn stat(&self) -> Stat {
        let mut stat = plain(&self.raw);
        match &self.small {
            Some(content) => {
                // What was read is what is told, also when the file was cut in between.
                stat.size = content.len() as u64;
                stat.etag = Some(content_etag(content));
            }
            None => stat.etag = Some(metadata_etag(&self.raw)),
        }
        stat
    }

    /// The whole content.
    pub async fn whole(self, path: &WorkspacePath, max_bytes: u64) -> Result<(Stat, Bytes), WorkspaceError> {
        let mut stat = self.stat();
        if stat.size > max_bytes {
            return Err(WorkspaceError::TooLarge { path: path.clone(), size: stat.size, limit: max_bytes });
        }
        if let Some(content) = self.small {
            return Ok((stat, content.into()));
        }
        let (file, size, owned) = (self.file, stat.size, path.clone());
        let content = run_blocking(path, move || read_whole(&file, size, &owned)).await?;
        stat.size = content.len() as u64;
        Ok((stat, content.into()))
    }

    /// The content, or a part of it, as a stream. A file that is cut meanwhile ends the stream with an error.
    pub fn stream(self, path: &WorkspacePath, range: Option<(u64, u64)>) -> OpenFile {
        let stat = self.stat();
        let (offset, length) = range.unwrap_or((0, stat.size));
        let offset = offset.min(stat.size);
        let length = length.min(stat.size - offset);
        if let Some(content) = self.small {
            let content = Bytes::from(content);
            let (from, to) = (clamped(offset, content.len()), clamped(offset + length, content.len()));
            let part = content.slice(from..to);
            return OpenFile { stat, content: futures::stream::iter([Ok(part)]).boxed() };
        }
        OpenFile { stat, content: chunks(self.file, offset, length, path.clone()) }
    }
}

fn clamped(offset: u64, length: usize) -> usize {
    usize::try_from(offset).unwrap_or(length).min(length)
}

fn chunks(
    file: File,
    offset: u64,
    length: u64,
    path: WorkspacePath,
) -> BoxStream<'static, Result<Bytes, WorkspaceError>> {
    let file = std::sync::Arc::new(file);
    futures::stream::unfold((offset, length), move |(offset, remaining)| {
        let (file, path) = (file.clone(), path.clone());
        async move {
            if remaining == 0 {
                return None;
            }
            let wanted = remaining.min(CHUNK);
            let owned = path.clone();
            let read = run_blocking(&path, move || read_range(&file, offset, wanted, &owned)).await;
            Some(match read {
                Ok(bytes) if bytes.len() as u64 == wanted => {
                    (Ok(Bytes::from(bytes)), (offset + wanted, remaining - wanted))
                }
                Ok(_) => (Err(WorkspaceError::Io(path)), (offset, 0)),
                Err(error) => (Err(error), (offset, 0)),
            })
        }
    })
    .boxed()
}
