//! The body of a chat POST: read as a stream, of `messages` only the last one kept.
//!
//! Owns the wire form and its bound. Must not know what a chat does.

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::body;
use super::error::{ApiError, ApiResult, Code};

/// The SDK's default transport sends the whole history each time.
pub const MAX_CHAT_BODY: usize = 256 * 1024 * 1024;
/// The largest single message or other member: 32 MiB of files are 43 MiB in base64, and 5 MiB are left for text. One
/// value is in memory at a time, so this and not the whole body is what a reader costs.
pub const MAX_MEMBER: usize = 48 * 1024 * 1024;
/// Bodies that announce no more than this are read in one piece.
const SMALL: u64 = 256 * 1024;

/// Large bodies read at once; a quarter of the blocking threads, so that slow clients never keep storage waiting.
static READERS: Semaphore = Semaphore::const_new(16);
/// Clients that wait for a reader.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// While somebody waits, a client that sends nothing for this long loses its reader.
const PRESSED_IDLE: Duration = Duration::from_secs(2);

/// What a chat says; everything else in the body belongs to the application and is skipped.
#[derive(Debug, Default, PartialEq)]
pub struct ChatBody {
    /// `sessionId`, else `id`.
    pub session_id: Option<String>,
    /// `message`, else the last of `messages`.
    pub message: Option<Value>,
    /// `trigger`.
    pub trigger: Option<String>,
    /// `messageId`.
    pub message_id: Option<String>,
    /// `model`.
    pub model: Option<Value>,
    /// `thinkingLevel`.
    pub thinking_level: Option<Value>,
    /// `attachments`.
    pub attachments: Vec<Value>,
    /// `systemPrompt`.
    pub system_prompt: Option<String>,
}

/// Reads the body, off the asynchronous threads where it may be large.
pub async fn read(headers: &HeaderMap, body: Body) -> ApiResult<ChatBody> {
    body::require_json(headers)?;
    let announced =
        headers.get(axum::http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_CHAT_BODY as u64) {
        return Err(body::too_large(MAX_CHAT_BODY));
    }
    if announced.is_some_and(|length| length <= SMALL) {
        let bytes = body::collect(headers, body, MAX_CHAT_BODY).await?;
        return body::parse_json(&bytes);
    }
    // Each reader holds a blocking thread for as long as its client takes.
    let _slot = {
        let _waiting = Waiting::begin();
        READERS.acquire().await.map_err(ApiError::internal)?
    };
    let reader = SyncIoBridge::new(StreamReader::new(Box::pin(pieces(body))));
    let parsed = tokio::task::spawn_blocking(move || {
        let member = Cell::new(0);
        let mut bounded = Bounded { inner: reader, left: MAX_CHAT_BODY, member: &member };
        let mut source =
            serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(64 * 1024, &mut bounded));
        let parsed = BodySeed { member: &member }.deserialize(&mut source);
        let parsed = parsed.and_then(|chat| source.end().map(|()| chat));
        parsed.map_err(|error| {
            let limit = if bounded.left == 0 { MAX_CHAT_BODY } else { MAX_MEMBER };
            (error, limit)
        })
    });
    match parsed.await {
        Ok(Ok(chat)) => Ok(chat),
        Ok(Err((error, limit))) => Err(fault(&error, limit)),
        Err(error) => Err(ApiError::internal(error)),
    }
}

/// Counts a client among those that wait.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body's pieces; a client that stalls is cut off, and sooner when others wait for its reader.
fn pieces(body: Body) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(body.into_data_stream()), |body| async move {
        let mut body = body?;
        let begin = Instant::now();
        loop {
            match tokio::time::timeout(PRESSED_IDLE, body.next()).await {
                Ok(Some(Ok(bytes))) => return Some((Ok(bytes), Some(body))),
                Ok(None) => return None,
                Ok(Some(Err(error))) => return Some((Err(std::io::Error::other(error)), None)),
                Err(_) if begin.elapsed() < body::BODY_IDLE && WAITING.load(Ordering::Relaxed) == 0 => {}
                Err(_) => return Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
            }
        }
    })
}

fn fault(error: &serde_json::Error, limit: usize) -> ApiError {
    match error.io_error_kind() {
        Some(std::io::ErrorKind::FileTooLarge) if limit == MAX_CHAT_BODY => body::too_large(limit),
        Some(std::io::ErrorKind::FileTooLarge) => {
            let text = format!("one message or other member of the body is larger than {limit} bytes");
            ApiError::new(Code::PayloadTooLarge, text).with_extra("limit", limit)
        }
        Some(std::io::ErrorKind::TimedOut) => body::stalled(),
        Some(_) => ApiError::new(Code::ValidationError, "the body broke off or is not well framed"),
        None => ApiError::new(Code::ValidationError, error.to_string()),
    }
}

/// A reader that fails behind its bounds.
struct Bounded<'a, R> {
    inner: R,
    left: usize,
    /// Bytes since the last member or message began; the parser sets it back.
    member: &'a Cell<usize>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let room = buffer.len().min(self.left).min(MAX_MEMBER.saturating_sub(self.member.get()));
        if room == 0 && !buffer.is_empty() {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        let count = self.inner.read(&mut buffer[..room])?;
        self.left -= count;
        self.member.set(self.member.get() + count);
        Ok(count)
    }
}

impl<'de> Deserialize<'de> for ChatBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BodySeed { member: &Cell::new(0) }.deserialize(deserializer)
    }
}

struct BodySeed<'a> {
    member: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = ChatBody;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ChatBody, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = ChatBody;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `message` or `messages`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatBody, A::Error> {
        let mut chat = ChatBody::default();
        let mut id = None;
        let mut last = None;
        while let Some(key) = map.next_key::<String>()? {
            self.member.set(0);
            match key.as_str() {
                "sessionId" => chat.session_id = map.next_value()?,
                "id" => id = map.next_value()?,
                "message" => chat.message = map.next_value()?,
                "messages" => last = map.next_value_seed(LastMessage { member: self.member })?,
                "trigger" => chat.trigger = map.next_value()?,
                "messageId" => chat.message_id = map.next_value()?,
                "model" => chat.model = map.next_value()?,
                "thinkingLevel" => chat.thinking_level = map.next_value()?,
                "attachments" => chat.attachments = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "systemPrompt" => chat.system_prompt = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        chat.session_id = chat.session_id.or(id);
        chat.message = chat.message.or(last);
        Ok(chat)
    }
}

/// Keeps the last element; the one before is dropped before the next is read.
struct LastMessage<'a> {
    member: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for LastMessage<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for LastMessage<'_> {
    type Value = Option<Value>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut last = None;
        while let Some(next) = items.next_element_seed(Message)? {
            last = Some(next);
            self.member.set(0);
        }
        Ok(last)
    }
}

/// One message. Of one that is not a user's only the role is kept, as soon as it is known: such a message is refused
/// when it is the last, and skipped when it is not.
struct Message;

impl<'de> DeserializeSeed<'de> for Message {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Message {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut message = Map::new();
        let mut foreign = false;
        while let Some(key) = map.next_key::<String>()? {
            if foreign {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: Value = map.next_value()?;
            if key == "role" && value != "user" {
                foreign = true;
                message.clear();
            }
            message.insert(key, value);
        }
        Ok(Value::Object(message))
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::json;

    use super::*;

    fn headers(length: Option<usize>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse().expect("value"));
        if let Some(length) = length {
            headers.insert("content-length", length.into());
        }
        headers
    }

    #[tokio::test]
    async fn only_the_last_message_is_kept_whichever_way_the_body_is_read() {
        let user = json!({"parts": [{"type": "text", "text": "now"}], "id": "u2", "role": "user"});
        let sent = json!({
            "id": "s1", "application": {"anything": [1, 2]}, "trigger": "submit-message",
            "messages": [
                {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "then"}]},
                {"id": "a1", "role": "assistant", "parts": [{"type": "text", "text": "x".repeat(1000)}]},
                user,
            ],
        });
        let expected = ChatBody {
            session_id: Some("s1".into()),
            message: Some(user),
            trigger: Some("submit-message".into()),
            ..ChatBody::default()
        };
        let text = sent.to_string();
        let whole = read(&headers(Some(text.len())), Body::from(text.clone())).await.expect("fits");
        assert_eq!(whole, expected);
        let pieces: Vec<_> = text.as_bytes().chunks(7).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let streamed = read(&headers(None), Body::from_stream(stream::iter(pieces))).await.expect("fits");
        assert_eq!(streamed, expected);
    }

    #[tokio::test]
    async fn a_long_history_passes_and_a_single_message_that_fills_the_memory_does_not() {
        const PIECE: usize = 1024 * 1024;
        let body =
            |head: &'static str, before: &'static str, pieces: usize, between: &'static str, tail: &'static str| {
                let filler = bytes::Bytes::from(vec![b'a'; PIECE]);
                let middle = (0..pieces).flat_map(move |_| [before.into(), filler.clone(), between.into()]);
                let all = std::iter::once(head.into()).chain(middle).chain([bytes::Bytes::from(tail)]);
                Body::from_stream(stream::iter(all.map(Ok::<_, std::io::Error>)))
            };
        let pieces = MAX_MEMBER / PIECE + 2;
        let old = "{\"role\":\"assistant\",\"x\":\"";
        let history = body("{\"messages\":[", old, pieces, "\"},", "{\"role\":\"user\"}]}");
        let chat = read(&headers(None), history).await.expect("each message is small");
        assert_eq!(chat.message, Some(json!({"role": "user"})));
        for head in ["{\"message\":\"", "{\"messages\":[\"", "{\"other\":\"", "{\""] {
            let error = read(&headers(None), body(head, "", pieces, "", "\"}")).await.expect_err("too large");
            assert_eq!((error.code(), &error.body()["error"]["limit"]), (Code::PayloadTooLarge, &json!(MAX_MEMBER)));
        }
    }

    #[tokio::test]
    async fn stalled_clients_do_not_keep_others_from_being_read() {
        let (clients, bodies): (Vec<_>, Vec<_>) =
            (0..16).map(|_| futures::channel::mpsc::unbounded::<std::io::Result<Bytes>>()).unzip();
        for client in &clients {
            client.unbounded_send(Ok(Bytes::from_static(b"{\"messages\":["))).expect("open");
        }
        let read_stalled = |body| tokio::spawn(async move { read(&headers(None), Body::from_stream(body)).await });
        let readers: Vec<_> = bodies.into_iter().map(read_stalled).collect();
        // Each has its reader once its first piece was asked for; the next client then finds none free.
        let taken = async {
            while READERS.available_permits() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(body::BODY_IDLE, taken).await.expect("sixteen readers");
        let begin = std::time::Instant::now();
        let whole = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("{\"messages\":[{\"role\":\"user\"}]}")]));
        let chat = read(&headers(None), whole).await.expect("read");
        assert_eq!(chat.message, Some(json!({"role": "user"})));
        assert!(begin.elapsed() < body::BODY_IDLE * 2 / 3, "{:?}", begin.elapsed());
        drop(clients);
        for reader in readers {
            reader.await.expect("no panic").expect_err("none of them was whole");
        }
    }

    #[tokio::test]
    async fn a_message_of_another_role_keeps_its_role_and_a_broken_body_is_a_validation_error() {
        let text = json!({"messages": [{"role": "assistant", "parts": [1]}]}).to_string();
        let chat = read(&headers(None), Body::from(text)).await.expect("fits");
        assert_eq!(chat.message, Some(json!({"role": "assistant"})));
        let error = read(&headers(None), Body::from("{\"messages\": [")).await.expect_err("cut");
        assert_eq!(error.code(), Code::ValidationError);
    }
}
