//! The wire: a whole stream cut and split anywhere, error classes, repetitions, keys.

use std::sync::Mutex;

use bytes::Bytes;
use futures::StreamExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::llm::key::KeySource;
use crate::llm::transport::Call;
use crate::llm::transport::Decode as _;
use crate::llm::{ModelEvent, StopReason, ThinkingLevel, Usage};

const STREAM: &str = include_str!("../../../tests/fixtures/anthropic-stream.txt");

fn expected() -> Vec<ModelEvent> {
    let usage = |output| Usage { input: 12, output, cache_read: 700, cache_write: 3 };
    vec![
        ModelEvent::Usage(usage(1)),
        ModelEvent::ThinkingStart,
        ModelEvent::ThinkingDelta("Grüße first.".into()),
        ModelEvent::ThinkingEnd { signature: Some("EqQB".into()), redacted: false },
        ModelEvent::ThinkingStart,
        ModelEvent::ThinkingEnd { signature: Some("OPAQUE".into()), redacted: true },
        ModelEvent::TextStart,
        ModelEvent::TextDelta("Hi 👋".into()),
        ModelEvent::TextEnd,
        ModelEvent::ToolCallStart { id: "toolu_1".into(), name: "bash".into() },
        ModelEvent::ToolCallDelta("{\"command\": \"l".into()),
        ModelEvent::ToolCallDelta("s\"}".into()),
        ModelEvent::ToolCallEnd,
        ModelEvent::Done { reason: StopReason::ToolUse, usage: usage(89) },
    ]
}

fn client(url: &str, key: ModelKey) -> Anthropic {
    Anthropic::new(AnthropicConfiguration {
        base_url: url.into(),
        key,
        idle_timeout: Some(Duration::from_millis(500)),
        first_delay: Some(Duration::from_millis(1)),
    })
    .expect("builds")
}

fn key(text: &str) -> ModelKey {
    ModelKey::new(KeySource::Value(text.to_owned().into()), Box::new(|_| {}))
}

fn request() -> ModelRequest {
    ModelRequest {
        model: "claude-x".into(),
        system: "Be brief.".into(),
        messages: Arc::default(),
        tools: Vec::new(),
        thinking: ThinkingLevel::Off,
        cancel: CancellationToken::new(),
    }
}

/// Making a client reads the machine's certificates, so one serves a whole test.
fn shared() -> Arc<Transport<MessagesApi>> {
    client("http://127.0.0.1:1", key("k")).transport
}

fn call(transport: &Arc<Transport<MessagesApi>>, pieces: Vec<Bytes>) -> Call<MessagesApi> {
    Call::answered(transport, pieces)
}

async fn all(mut call: Call<MessagesApi>) -> (Vec<ModelEvent>, Option<LlmError>) {
    let mut seen = Vec::new();
    while let Some(item) = call.next().await {
        match item {
            Ok(event) => seen.push(event),
            Err(error) => return (seen, Some(error)),
        }
    }
    (seen, None)
}

#[tokio::test]
async fn a_stream_split_at_any_byte_gives_the_same_events() {
    let (bytes, shared) = (Bytes::from_static(STREAM.as_bytes()), shared());
    for at in 0..=bytes.len() {
        let pieces = vec![bytes.slice(..at), bytes.slice(at..)];
        assert_eq!(all(call(&shared, pieces)).await, (expected(), None), "split at {at}");
    }
}

#[tokio::test]
async fn a_stream_cut_at_any_byte_gives_its_events_and_a_clean_error() {
    let (bytes, shared) = (Bytes::from_static(STREAM.as_bytes()), shared());
    let whole = expected();
    for at in 0..bytes.len() {
        let (seen, error) = all(call(&shared, vec![bytes.slice(..at)])).await;
        assert_eq!(seen[..], whole[..seen.len()], "cut at {at}");
        if seen.len() == whole.len() {
            // Only blank lines behind the last event are missing.
            assert_eq!(error, None);
        } else {
            assert!(matches!(error, Some(LlmError::Connection(_) | LlmError::Protocol(_))), "cut at {at}: {error:?}");
        }
    }
}

#[tokio::test]
async fn events_out_of_order_are_a_protocol_error() {
    let shared = shared();
    let start = "data: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let block = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n";
    for text in [
        block.to_owned(),
        format!("{start}{start}"),
        format!("{start}{block}{block}"),
        format!("{start}{block}data: {{\"type\":\"content_block_stop\",\"index\":1}}\n\n"),
        format!("{start}{block}data: {{\"type\":\"message_stop\"}}\n\n"),
        format!("{start}data: nonsense\n\n"),
        format!(
            "{start}{block}data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":\"x\"}}}}\n\n"
        ),
    ] {
        let (_, error) = all(call(&shared, vec![text.clone().into()])).await;
        assert!(matches!(error, Some(LlmError::Protocol(_))), "{text}: {error:?}");
    }
}

fn stream_answer() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(STREAM, "text/event-stream")
}

fn error_answer(status: u16, kind: &str, message: &str) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_json(json!({"type": "error", "error": {"type": kind, "message": message}}))
}

async fn outcome(client: &Anthropic) -> Result<Vec<ModelEvent>, LlmError> {
    client.stream(request()).await?.collect::<Vec<_>>().await.into_iter().collect()
}

#[tokio::test]
async fn every_refusal_has_its_class_and_only_passing_ones_are_repeated() {
    let overloaded = LlmError::Overloaded { retry_after: None };
    let limited = LlmError::RateLimited { retry_after: Some(Duration::from_secs(3600)) };
    for (answer, expected, calls) in [
        (error_answer(529, "overloaded_error", "busy"), overloaded.clone(), 4),
        (ResponseTemplate::new(502).set_body_string("<html>"), overloaded, 4),
        (error_answer(429, "rate_limit_error", "slow").insert_header("retry-after", "3600"), limited, 1),
        (error_answer(401, "authentication_error", "no"), LlmError::Auth, 1),
        (error_answer(403, "permission_error", "no"), LlmError::Auth, 1),
        (error_answer(400, "invalid_request_error", "prompt is too long: 9 > 8"), LlmError::ContextTooLong, 1),
        (error_answer(413, "request_too_large", "big"), LlmError::ContextTooLong, 1),
        (error_answer(404, "not_found_error", "model: x"), LlmError::Refused("model: x".into()), 1),
        (
            error_answer(400, "invalid_request_error", "bad key secret-key"),
            LlmError::Refused("bad key [key]".into()),
            1,
        ),
        (
            ResponseTemplate::new(200).set_body_string("hello"),
            LlmError::Protocol("the answer is no event stream".into()),
            1,
        ),
        (ResponseTemplate::new(200).set_delay(Duration::from_secs(5)), LlmError::Timeout, 4),
    ] {
        let server = MockServer::start().await;
        Mock::given(method("POST")).and(path("/v1/messages")).respond_with(answer).mount(&server).await;
        let result = outcome(&client(&server.uri(), key("secret-key"))).await;
        assert_eq!(result, Err(expected.clone()));
        assert_eq!(server.received_requests().await.expect("recorded").len(), calls, "{expected:?}");
    }
}

#[tokio::test]
async fn a_passing_overload_is_waited_out_and_the_answer_comes_once() {
    let server = MockServer::start().await;
    let first = error_answer(529, "overloaded_error", "busy").insert_header("retry-after", "0");
    Mock::given(method("POST")).respond_with(first).up_to_n_times(2).mount(&server).await;
    let event = "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let early = ResponseTemplate::new(200).set_body_raw(event, "text/event-stream");
    Mock::given(method("POST")).respond_with(early).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST"))
        .and(header("x-api-key", "k"))
        .and(header("anthropic-version", "2023-06-01"))
        .respond_with(stream_answer())
        .expect(1)
        .mount(&server)
        .await;
    let seen = outcome(&client(&format!("{}/v1/", server.uri()), key("k"))).await.expect("answers");
    let shown = |events: Vec<ModelEvent>| {
        events.into_iter().filter(|event| !matches!(event, ModelEvent::Usage(_))).collect::<Vec<_>>()
    };
    assert_eq!(shown(seen), shown(expected()));
}

#[tokio::test]
async fn an_error_behind_the_first_word_is_not_repeated() {
    let server = MockServer::start().await;
    let text = concat!(
        "data: {\"type\":\"message_start\",\"message\":{}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
        "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
    );
    let answer = ResponseTemplate::new(200).set_body_raw(text, "text/event-stream");
    Mock::given(method("POST")).respond_with(answer).expect(1).mount(&server).await;
    let client = client(&server.uri(), key("k"));
    let items: Vec<_> = client.stream(request()).await.expect("starts").collect().await;
    assert_eq!(items.last(), Some(&Err(LlmError::Overloaded { retry_after: None })));
    assert!(items.contains(&Ok(ModelEvent::TextDelta("Hi".into()))));
}

#[tokio::test]
async fn a_rejected_key_is_read_again_once_and_readiness_hears_of_it() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "old\n").expect("write");
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let tell = Box::new(move |state| listener.lock().expect("no panic").push(state));
    let server = MockServer::start().await;
    let refused = error_answer(401, "authentication_error", "invalid x-api-key");
    Mock::given(method("POST")).and(header("x-api-key", "old")).respond_with(refused).mount(&server).await;
    Mock::given(method("POST")).and(header("x-api-key", "new")).respond_with(stream_answer()).mount(&server).await;
    let client = client(&server.uri(), ModelKey::new(KeySource::File(file.clone()), tell));
    assert_eq!(outcome(&client).await, Err(LlmError::Auth));
    assert_eq!(client.key_state(), KeyState::Rejected);
    std::fs::write(&file, "new\n").expect("write");
    assert_eq!(client.key_state(), KeyState::Present);
    assert_eq!(outcome(&client).await, Ok(expected()));
    // The key is exchanged while a call is under way: the same call goes on with it.
    std::fs::write(&file, "old\n").expect("write");
    client.transport.key.rejected(Some(&"new".to_owned().into()));
    std::fs::write(&file, "new\n").expect("write");
    assert_eq!(outcome(&client).await, Ok(expected()));
    let told = told.lock().expect("no panic");
    assert_eq!(told[..3], [KeyState::Present, KeyState::Rejected, KeyState::Present]);
}

#[tokio::test]
async fn a_stop_ends_a_call_that_waits() {
    let server = MockServer::start().await;
    let slow = stream_answer().set_delay(Duration::from_secs(30));
    Mock::given(method("POST")).respond_with(slow).mount(&server).await;
    let client = client(&server.uri(), key("k"));
    let request = request();
    let cancel = request.cancel.clone();
    let (result, ()) = tokio::join!(client.stream(request), async { cancel.cancel() });
    assert_eq!(result.err(), Some(LlmError::Cancelled));
}

#[test]
fn no_stream_breaks_the_decoder() {
    crate::tests::parsers::model_streams("anthropic-stream", |events| {
        let mut decoder = Decoder::default();
        // Up to the first error, as the transport does.
        let failed = events.iter().any(|data| decoder.take(data, &mut |_event| {}).is_err());
        if !failed && !decoder.is_done() {
            let _whole_or_not = decoder.end(&mut |_event| {});
        }
    });
}
