//! The end of a command's output, in bounded memory, with the whole of it in an artifact once it is too long to show.
//!
//! Owns what is kept and how it is shown. Must not know how a command runs.

use super::artifacts::{Artifact, ArtifactError, ArtifactWriter, Artifacts};
use super::results::append_notice;
use super::truncation::{MAX_BYTES, last_bytes, size, tail};
use crate::sandbox::OutputStream;

/// Kept in memory: more than can be shown, so that the cut falls on a line border.
const KEEP_BYTES: usize = 2 * MAX_BYTES;
/// Memory is cut back to `KEEP_BYTES` when it grows past this, so that bytes are moved once per that many.
const MOVE_BYTES: usize = 4 * KEEP_BYTES;
/// A preliminary view.
const PREVIEW_BYTES: usize = 8 * 1024;

/// Collects both streams in order of arrival.
pub struct OutputTail {
    artifacts: Artifacts,
    text: Vec<u8>,
    bytes: u64,
    line_ends: u64,
    /// The beginning of a character that a stream has not finished; the other stream may come between.
    unfinished: [Vec<u8>; 2],
    whole: Whole,
}

/// Where the whole output is.
enum Whole {
    InMemory,
    OnDisk(Box<ArtifactWriter>),
    Lost(ArtifactError),
}

impl OutputTail {
    /// Nothing so far.
    pub fn new(artifacts: Artifacts) -> Self {
        Self {
            artifacts,
            text: Vec::new(),
            bytes: 0,
            line_ends: 0,
            unfinished: [Vec::new(), Vec::new()],
            whole: Whole::InMemory,
        }
    }

    /// Adds what a stream wrote.
    pub async fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let pending = &mut self.unfinished[usize::from(stream == OutputStream::Stderr)];
        let mut piece = std::mem::take(pending);
        piece.extend_from_slice(bytes);
        *pending = piece.split_off(piece.len() - unfinished_character(&piece));
        self.append(&piece).await;
    }

    async fn append(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.line_ends += piece.split(|byte| *byte == b'\n').count() as u64 - 1;
        if let Whole::OnDisk(writer) = &mut self.whole
            && let Err(error) = writer.write(piece).await
        {
            self.lose(error);
        }
        self.text.extend_from_slice(piece);
        if self.text.len() > KEEP_BYTES && matches!(self.whole, Whole::InMemory) {
            self.move_to_disk().await;
        }
        if self.text.len() > MOVE_BYTES {
            self.text.drain(..self.text.len() - KEEP_BYTES);
        }
    }

    async fn move_to_disk(&mut self) {
        let begun = async {
            let mut writer = self.artifacts.create().await?;
            writer.write(&self.text).await?;
            Ok(writer)
        };
        match begun.await {
            Ok(writer) => self.whole = Whole::OnDisk(Box::new(writer)),
            Err(error) => self.lose(error),
        }
    }

    fn lose(&mut self, error: ArtifactError) {
        tracing::warn!(%error, "the whole output of a command could not be kept");
        self.whole = Whole::Lost(error);
    }

    /// At most the last 8 KiB so far.
    pub fn preview(&self) -> String {
        // A character has at most four bytes, so this many surely hold the last 8 KiB of the decoded text.
        let last = &self.text[self.text.len().saturating_sub(PREVIEW_BYTES + 3)..];
        last_bytes(&String::from_utf8_lossy(last), PREVIEW_BYTES).to_owned()
    }

    /// The text to show, with notices about what is missing, and the artifact if there is one.
    pub async fn finish(mut self) -> (String, Option<Artifact>) {
        for stream in 0..2 {
            let rest = std::mem::take(&mut self.unfinished[stream]);
            self.append(&rest).await;
        }
        let decoded = String::from_utf8_lossy(&self.text).into_owned();
        let is_utf8 = std::str::from_utf8(&self.text).is_ok();
        let cut = tail(&decoded);
        let is_cut = cut.is_shortened || self.bytes > self.text.len() as u64;
        if is_cut && matches!(self.whole, Whole::InMemory) {
            self.move_to_disk().await;
        }
        let mut shown = cut.text.to_owned();
        let mut artifact = None;
        if is_cut {
            let mut notice =
                format!("the last {} lines ({}) of {}", cut.lines, size(cut.text.len() as u64), self.extent());
            match self.whole {
                Whole::OnDisk(writer) => match writer.finish().await {
                    Ok(kept) => {
                        notice.push_str(&where_kept(&kept));
                        artifact = Some(kept);
                    }
                    Err(error) => notice.push_str(&lost(&error)),
                },
                Whole::Lost(error) => notice.push_str(&lost(&error)),
                Whole::InMemory => {}
            }
            append_notice(&mut shown, &notice);
        }
        if !is_utf8 {
            append_notice(&mut shown, "not all of the output is UTF-8; other bytes are shown as \u{fffd}");
        }
        (shown, artifact)
    }

    fn extent(&self) -> String {
        let unfinished_line = u64::from(self.text.last().is_some_and(|last| *last != b'\n'));
        format!("{} lines ({})", self.line_ends + unfinished_line, size(self.bytes))
    }
}

fn where_kept(kept: &Artifact) -> String {
    let part = if kept.is_complete { "all of it".into() } else { format!("its first {}", size(kept.bytes)) };
    format!("; read {} for {part}", kept.uri)
}

fn lost(error: &ArtifactError) -> String {
    format!("; the rest is lost ({error}), redirect output to a file to keep it")
}

/// How many bytes at the end are the beginning of a character that is not finished.
fn unfinished_character(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let needs = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if back < needs { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::super::artifacts::ArtifactLimits;
    use super::*;

    fn store(folder: &tempfile::TempDir) -> Artifacts {
        let limits = ArtifactLimits { bytes_each: 1 << 20, ..ArtifactLimits::default() };
        Artifacts::open(&folder.path().join("artifacts"), limits).unwrap()
    }

    #[tokio::test]
    async fn short_output_is_shown_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = OutputTail::new(store(&folder));
        output.push(OutputStream::Stdout, b"a\n").await;
        output.push(OutputStream::Stderr, b"b").await;
        assert_eq!(output.finish().await, ("a\nb".into(), None));
    }

    #[tokio::test]
    async fn a_character_split_over_two_reads_is_whole_also_with_the_other_stream_between() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = OutputTail::new(store(&folder));
        output.push(OutputStream::Stdout, &"é".as_bytes()[..1]).await;
        output.push(OutputStream::Stderr, b"!").await;
        output.push(OutputStream::Stdout, &"é".as_bytes()[1..]).await;
        assert_eq!(output.finish().await, ("!é".into(), None));
    }

    #[tokio::test]
    async fn long_output_keeps_its_end_and_the_whole_in_an_artifact() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let mut output = OutputTail::new(store.clone());
        let whole: String = (1..=100_000).map(|number| number.to_string() + "\n").collect();
        for piece in whole.as_bytes().chunks(7001) {
            output.push(OutputStream::Stdout, piece).await;
        }
        assert!(output.preview().ends_with("\n100000\n") && output.preview().len() <= PREVIEW_BYTES);
        let (shown, artifact) = output.finish().await;
        let artifact = artifact.unwrap();
        assert_eq!(store.read(&artifact.uri).await.unwrap(), whole.as_bytes());
        let notice = format!(
            "100000\n\n[the last 2000 lines (12 KiB) of 100000 lines (576 KiB); read {} for all of it]",
            artifact.uri
        );
        assert!(shown.starts_with("98001\n") && shown.ends_with(&notice), "{shown}");
    }

    #[tokio::test]
    async fn output_over_the_artifacts_bound_says_how_much_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = OutputTail::new(store(&folder));
        for _ in 0..40 {
            output.push(OutputStream::Stdout, &vec![b'x'; 64 * 1024]).await;
        }
        let (shown, artifact) = output.finish().await;
        assert_eq!(artifact.map(|artifact| (artifact.bytes, artifact.is_complete)), Some((1 << 20, false)));
        assert!(shown.contains("the last 1 lines (50 KiB) of 1 lines (2.5 MiB)"), "{}", &shown[shown.len() - 200..]);
        assert!(shown.ends_with("for its first 1.0 MiB]"), "{}", &shown[shown.len() - 200..]);
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_marked() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = OutputTail::new(store(&folder));
        output.push(OutputStream::Stdout, b"a\xff\xfeb").await;
        let (shown, _) = output.finish().await;
        assert_eq!(shown, "a\u{fffd}\u{fffd}b\n\n[not all of the output is UTF-8; other bytes are shown as \u{fffd}]");
    }

    #[test]
    fn unfinished_characters_are_found() {
        let cases: [(&[u8], usize); 6] =
            [(b"a", 0), (b"a\xc3", 1), (b"\xe2\x82", 2), (b"\xf0\x9f\x98", 3), ("é".as_bytes(), 0), (b"\xff", 0)];
        assert_eq!(cases.map(|(bytes, _)| unfinished_character(bytes)), cases.map(|(_, count)| count));
    }
}
