//! Parsers against hostile input: a stored corpus (`agent-server/fuzz-corpus`), changed at random, and random bytes.
//!
//! Owns the corpus and how it is changed. What must hold stands in each target below. An input that once broke a parser
//! is added to the corpus as a file of its own. The number of random inputs is proptest's (`PROPTEST_CASES`): 256, or
//! 20,000 with `make test-long`. Coverage-guided fuzzing needs a nightly toolchain, which this repository does not use.

use std::path::Path;

use bytes::BytesMut;
use futures::{StreamExt as _, stream};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::http::sse::Frame;
use crate::session::transcript::Transcript;
use crate::workspace::WorkspacePath;

fn corpus(parser: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus").join(parser);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|_| panic!("{}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

/// One change of an input; places are taken modulo its length.
#[derive(Debug, Clone)]
enum Change {
    Cut(usize),
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Double(usize, usize),
    Remove(usize, usize),
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>) {
        let at = |place: usize, input: &Vec<u8>| place % (input.len() + 1);
        match self {
            Self::Cut(place) => input.truncate(at(*place, input)),
            Self::Set(place, byte) => {
                let place = at(*place, input);
                if let Some(known) = input.get_mut(place) {
                    *known = *byte;
                }
            }
            Self::Insert(place, bytes) => {
                let place = at(*place, input);
                input.splice(place..place, bytes.iter().copied());
            }
            Self::Double(place, length) => {
                let place = at(*place, input);
                let end = (place + length).min(input.len());
                let piece = input[place..end].to_vec();
                input.splice(place..place, piece);
            }
            Self::Remove(place, length) => {
                let place = at(*place, input);
                let end = (place + length).min(input.len());
                input.drain(place..end);
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    // Bytes that mean something to one of the parsers, more often than others.
    let byte = || prop_oneof![any::<u8>(), prop::sample::select(b"\0\n\r/.:-=,{}[]\"\\ 09\xff".to_vec())];
    prop_oneof![
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), byte()).prop_map(|(place, byte)| Change::Set(place, byte)),
        (any::<usize>(), prop::collection::vec(byte(), 1..8)).prop_map(|(place, bytes)| Change::Insert(place, bytes)),
        (any::<usize>(), 1..64_usize).prop_map(|(place, length)| Change::Double(place, length)),
        (any::<usize>(), 1..64_usize).prop_map(|(place, length)| Change::Remove(place, length)),
    ]
}

/// The corpus as it is, then changed, then random bytes.
fn fuzz(parser: &str, target: impl Fn(&[u8])) {
    let corpus = corpus(parser);
    for input in &corpus {
        target(input);
    }
    let changed =
        (prop::sample::select(corpus), prop::collection::vec(change(), 1..6)).prop_map(|(mut input, changes)| {
            for change in &changes {
                change.apply(&mut input);
            }
            input
        });
    let input = prop_oneof![3 => changed, 1 => prop::collection::vec(any::<u8>(), 0..256)];
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&input, |input| {
        target(&input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{parser}: {error}");
    }
}

#[test]
fn paths() {
    fuzz("path", |input| {
        let text = String::from_utf8_lossy(input);
        for parsed in [WorkspacePath::parse(&text), WorkspacePath::parse_for_tool(&text, "/workspace")] {
            let Ok(path) = parsed else { continue };
            assert_eq!(WorkspacePath::parse(path.as_str()), Ok(path.clone()), "{text:?}");
            let plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
            assert!(path.is_root() || path.as_str().split('/').all(plain), "{text:?}");
        }
    });
}

#[test]
fn ranges() {
    fuzz("range", |input| {
        let text = String::from_utf8_lossy(input);
        for size in [0, 1, 10, u64::MAX] {
            if let Some((offset, length)) = crate::http::raw::part_of(&text, size) {
                assert!(length > 0 && offset < size && length <= size - offset, "{text:?} of {size}");
            }
        }
    });
}

#[test]
fn chat_bodies_read_whole_and_in_pieces_are_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    fuzz("body", |input| {
        let whole = crate::http::body::parse_json::<crate::http::chat_body::ChatBody>(input).ok();
        let pieces: Vec<_> = input.chunks(5).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let mut headers = axum::http::HeaderMap::new();
        headers.insert("content-type", axum::http::HeaderValue::from_static("application/json"));
        let body = axum::body::Body::from_stream(stream::iter(pieces));
        let streamed = runtime.block_on(crate::http::chat_body::read(&headers, body)).ok();
        assert_eq!(streamed, whole, "{:?}", String::from_utf8_lossy(input));
    });
}

#[test]
fn session_files() {
    fuzz("session-file", |input| {
        let read = Transcript::read(input);
        assert_eq!(read, Transcript::read_generally(input), "our own lines are read as all others");
        let sound = usize::try_from(read.sound_bytes).expect("small");
        assert!(sound <= input.len());
        assert_eq!(Transcript::read(&input[..sound]), read, "a torn tail changes nothing");
    });
}

#[test]
fn events_come_back_from_a_reader_as_they_were_sent() {
    use eventsource_stream::Eventsource as _;

    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    fuzz("sse", |input| {
        let data = String::from_utf8_lossy(input).into_owned();
        let mut encoded = BytesMut::new();
        Frame::event("change", &*data).with_id(&*data).encode(&mut encoded);
        Frame::data("next").encode(&mut encoded);
        let pieces: Vec<_> = encoded.chunks(3).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let events: Vec<_> = runtime.block_on(stream::iter(pieces).eventsource().collect());
        let events: Vec<_> = events.into_iter().map(|event| event.expect("well formed")).collect();
        let lines = data.replace("\r\n", "\n").replace('\r', "\n");
        let shown: Vec<_> = events.iter().map(|event| (event.event.as_str(), event.data.as_str())).collect();
        assert_eq!(shown, [("change", lines.as_str()), ("message", "next")], "{data:?}");
    });
}

#[test]
fn reports_of_supervisors() {
    fuzz("report", |input| {
        // The server takes a line that is no report for the loss of the supervisor; it must only never break.
        let Ok(report) = serde_json::from_slice::<crate::sandbox::protocol::Report>(input) else { return };
        let line = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(serde_json::from_slice::<crate::sandbox::protocol::Report>(&line).expect("a report"), report);
    });
}

/// Streams of a model provider as a connection gives them, in small pieces: the data of their events, for a decoder.
pub fn model_streams(parser: &str, decode: impl Fn(&[String])) {
    use eventsource_stream::Eventsource as _;

    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    fuzz(parser, |input| {
        let pieces: Vec<_> = input.chunks(7).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let events: Vec<_> = runtime.block_on(stream::iter(pieces).eventsource().collect());
        let data: Vec<_> = events.into_iter().map_while(Result::ok).map(|event| event.data).collect();
        decode(&data);
    });
}
