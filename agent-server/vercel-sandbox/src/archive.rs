//! Files as the service takes them: a compressed tar of regular files with names relative to one folder.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use crate::error::Error;

/// Longest name that every reader of tar takes in its first form.
const SHORT: usize = 100;

/// One file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path below the folder of the call; no `..`.
    pub path: String,
    /// Content.
    pub content: Bytes,
    /// Mode, 0644 unless another is given.
    pub mode: u32,
}

impl File {
    /// A file of mode 0644.
    pub fn new(path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        Self { path: path.into(), content: content.into(), mode: 0o644 }
    }
}

/// Packs the files.
pub fn pack(files: &[File]) -> Result<Bytes, Error> {
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for file in files {
        add(&mut archive, file).map_err(Error::Archive)?;
    }
    let packed = archive.into_inner().and_then(GzEncoder::finish).map_err(Error::Archive)?;
    Ok(packed.into())
}

/// Long names and names beyond ASCII go before their file as an extension record, as the vendor's own client sends them.
fn add(archive: &mut Builder<impl Write>, file: &File) -> io::Result<()> {
    let path = file.path.trim_matches('/');
    if path.is_empty() || path.contains('\0') || path.split('/').any(|part| matches!(part, "." | ".." | "")) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{:?} is no path below a folder", file.path)));
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_size(file.content.len() as u64);
    header.set_mode(file.mode);
    if path.is_ascii() && path.len() <= SHORT {
        header.set_path(path)?;
    } else {
        archive.append_pax_extensions([("path", path.as_bytes())])?;
        header.set_path("PaxHeader")?;
    }
    header.set_cksum();
    archive.append(&header, &file.content[..])
}
