//! The wire: a whole stream cut and split anywhere, what servers do differently, error classes, keys.

use std::sync::Mutex;

use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::llm::key::KeySource;
use crate::llm::transport::{Call, Decode};
use crate::llm::{ModelEvent, StopReason, ThinkingLevel, Usage};

const STREAM: &str = include_str!("../../../tests/fixtures/openai-stream.txt");

fn thought(text: &[&str], field: &str) -> Vec<ModelEvent> {
    let mut events = vec![ModelEvent::ThinkingStart];
    events.extend(text.iter().map(|text| ModelEvent::ThinkingDelta((*text).into())));
    events.push(ModelEvent::ThinkingEnd { signature: Some(field.into()), redacted: false });
    events
}

fn call(id: &str, name: &str, arguments: &[&str]) -> Vec<ModelEvent> {
    let mut events = vec![ModelEvent::ToolCallStart { id: id.into(), name: name.into() }];
    events.extend(arguments.iter().map(|text| ModelEvent::ToolCallDelta((*text).into())));
    events.push(ModelEvent::ToolCallEnd);
    events
}

fn said(text: &str) -> Vec<ModelEvent> {
    vec![ModelEvent::TextStart, ModelEvent::TextDelta(text.into()), ModelEvent::TextEnd]
}

fn expected() -> Vec<ModelEvent> {
    let usage = Usage { input: 15, output: 89, cache_read: 700, cache_write: 0 };
    [
        thought(&["Grüße ", "first."], "reasoning_content"),
        said("Hi 👋"),
        call("call_1", "bash", &["{\"command\": \"l", "s\"}"]),
        call("call_2", "ls", &["{}"]),
        vec![ModelEvent::Usage(usage), ModelEvent::Done { reason: StopReason::ToolUse, usage }],
    ]
    .concat()
}

fn client(url: &str, key: ModelKey) -> Openai {
    Openai::new(OpenaiConfiguration {
        base_url: url.into(),
        key,
        idle_timeout: Some(Duration::from_millis(500)),
        first_delay: Some(Duration::from_millis(1)),
    })
    .expect("builds")
}

fn key(source: KeySource) -> ModelKey {
    ModelKey::new(source, Box::new(|_| {}))
}

fn value(text: &str) -> ModelKey {
    key(KeySource::Value(text.to_owned().into()))
}

fn request() -> ModelRequest {
    ModelRequest {
        model: "m".into(),
        system: "Be brief.".into(),
        messages: Arc::default(),
        tools: Vec::new(),
        thinking: ThinkingLevel::Off,
        cancel: CancellationToken::new(),
    }
}

async fn all(mut call: Call<ChatCompletions>) -> (Vec<ModelEvent>, Option<LlmError>) {
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
async fn a_line_without_end_is_cut_off_at_its_bound() {
    let transport = client("http://127.0.0.1:1", value("k")).transport;
    let pieces = vec![Bytes::from(vec![b'x'; 64 * 1024]); 33];
    let refused = LlmError::Protocol("a line of more than 2097152 bytes".into());
    assert_eq!(all(Call::answered(&transport, pieces)).await, (Vec::new(), Some(refused)));
}

#[tokio::test]
async fn a_stream_split_or_cut_at_any_byte_gives_the_same_events_or_a_clean_error() {
    let bytes = Bytes::from_static(STREAM.as_bytes());
    let transport = client("http://127.0.0.1:1", value("k")).transport;
    let whole = expected();
    let finished = STREAM.find("finish_reason\":\"tool_calls\"").expect("the end of the answer");
    for at in 0..=bytes.len() {
        let pieces = vec![bytes.slice(..at), bytes.slice(at..)];
        assert_eq!(all(Call::answered(&transport, pieces)).await, (whole.clone(), None), "split at {at}");
        let (seen, error) = all(Call::answered(&transport, vec![bytes.slice(..at)])).await;
        if seen.iter().any(|event| matches!(event, ModelEvent::Done { .. })) {
            // What says why the answer stopped has come; only counts or the mark of the end may be missing.
            assert!(at > finished && error.is_none(), "cut at {at}: {error:?}");
            assert_eq!(seen[..14], whole[..14], "cut at {at}");
        } else {
            assert_eq!(seen[..], whole[..seen.len()], "cut at {at}");
            assert!(matches!(error, Some(LlmError::Connection(_) | LlmError::Protocol(_))), "cut at {at}: {error:?}");
        }
    }
}

/// What a list of chunks becomes; the usual end is added.
fn decoded(chunks: &[Value]) -> Result<Vec<ModelEvent>, LlmError> {
    let mut decoder = Decoder::default();
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.take(&chunk.to_string(), &mut |event| events.push(event))?;
    }
    decoder.take("[DONE]", &mut |event| events.push(event))?;
    assert!(decoder.is_done());
    Ok(events)
}

fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": null}, "finish_reason": reason}]})
}

fn done(reason: StopReason) -> Vec<ModelEvent> {
    vec![ModelEvent::Done { reason, usage: Usage::default() }]
}

#[test]
fn servers_that_stream_calls_in_their_own_way_are_understood() {
    let calls = |calls: Value| delta(&json!({"tool_calls": calls}));
    let two = [call("a", "x", &["{}"]), call("b", "y", &["{\"k\":1}"]), done(StopReason::Stop)].concat();
    for (name, chunks) in [
        (
            "all in one",
            vec![calls(json!([
                {"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}},
                {"index": 1, "id": "b", "function": {"name": "y", "arguments": "{\"k\":1}"}},
            ]))],
        ),
        (
            "one index for all",
            vec![
                calls(json!([{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}}])),
                calls(json!([{"index": 0, "id": "b", "function": {"name": "y", "arguments": "{\"k\":1}"}}])),
            ],
        ),
        (
            "no index, arguments as an object",
            vec![
                calls(json!([{"id": "a", "function": {"name": "x", "arguments": {}}}])),
                calls(json!([{"id": "b", "function": {"name": "y", "arguments": {"k": 1}}}])),
            ],
        ),
        (
            "id and name repeated",
            vec![
                calls(json!([{"index": 0, "id": "a", "function": {"name": "x", "arguments": ""}}])),
                calls(json!([{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}}])),
                calls(json!([{"index": 1, "id": "b", "function": {"name": "y", "arguments": null}}])),
                calls(json!([{"index": 1, "id": "", "function": {"arguments": "{\"k\":1}"}}])),
            ],
        ),
    ] {
        let mut chunks = chunks;
        chunks.push(finish("stop"));
        assert_eq!(decoded(&chunks), Ok(two.clone()), "{name}");
    }
    let broken = vec![
        calls(json!([{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{"}}])),
        calls(json!([{"index": 1, "id": "b", "function": {"name": "y", "arguments": "{}"}}])),
        calls(json!([{"index": 0, "function": {"arguments": "}"}}])),
    ];
    assert_eq!(decoded(&broken), Err(LlmError::Protocol("a part of a tool call that is not open".into())));
}

#[test]
fn reasoning_keeps_the_name_of_its_field_and_a_refusal_is_a_filtered_answer() {
    let chunks =
        [delta(&json!({"reasoning": "Hm."})), delta(&json!({"content": null, "refusal": "I cannot."})), finish("stop")];
    let expected = [thought(&["Hm."], "reasoning"), said("I cannot."), done(StopReason::ContentFilter)].concat();
    assert_eq!(decoded(&chunks), Ok(expected));
}

#[test]
fn every_word_for_an_end_has_its_meaning() {
    for (word, reason) in [
        ("stop", StopReason::Stop),
        ("length", StopReason::Length),
        ("tool_calls", StopReason::ToolUse),
        ("function_call", StopReason::ToolUse),
        ("content_filter", StopReason::ContentFilter),
        ("eos", StopReason::Other),
    ] {
        assert_eq!(decoded(&[finish(word)]), Ok(done(reason)), "{word}");
    }
    assert_eq!(decoded(&[delta(&json!({"content": "x"}))]), Ok([said("x"), done(StopReason::Other)].concat()));
}

#[test]
fn an_error_in_mid_stream_has_its_class() {
    let overloaded = LlmError::Overloaded { retry_after: None };
    let limited = LlmError::RateLimited { retry_after: None };
    for (error, expected) in [
        (json!({"message": "x", "type": "server_error"}), overloaded.clone()),
        (json!({"message": "x", "code": 502}), overloaded),
        (json!({"message": "x", "type": "requests", "code": "rate_limit_exceeded"}), limited.clone()),
        (json!({"message": "x", "code": 429}), limited),
        (json!({"message": "no", "type": "invalid_request_error", "code": null}), LlmError::Refused("no".into())),
        (json!("plain words"), LlmError::Refused("plain words".into())),
        (json!({"message": "x", "code": "context_length_exceeded"}), LlmError::ContextTooLong),
    ] {
        assert_eq!(decoded(&[json!({"error": error})]), Err(expected), "{error}");
    }
}

fn stream_answer() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(STREAM, "text/event-stream")
}

fn error_answer(status: u16, kind: &str, code: &str, message: &str) -> ResponseTemplate {
    let error = json!({"message": message, "type": kind, "param": null, "code": code});
    ResponseTemplate::new(status).set_body_json(json!({"error": error}))
}

async fn outcome(client: &Openai) -> Result<Vec<ModelEvent>, LlmError> {
    client.stream(request()).await?.collect::<Vec<_>>().await.into_iter().collect()
}

#[tokio::test]
async fn every_refusal_has_its_class_and_only_passing_ones_are_repeated() {
    let refused = |message: &str| LlmError::Refused(message.into());
    let overloaded = LlmError::Overloaded { retry_after: None };
    let limited = LlmError::RateLimited { retry_after: Some(Duration::from_millis(90_000)) };
    let bad = "invalid_request_error";
    let plain = |status: u16, body: Value| ResponseTemplate::new(status).set_body_json(body);
    for (answer, expected, calls) in [
        (error_answer(503, "server_error", "", "busy"), overloaded.clone(), 4),
        (ResponseTemplate::new(502).set_body_string("<html>"), overloaded, 4),
        (
            error_answer(429, "requests", "rate_limit_exceeded", "slow").insert_header("retry-after-ms", "90000"),
            limited,
            1,
        ),
        (error_answer(429, "insufficient_quota", "insufficient_quota", "pay"), refused("pay"), 1),
        (error_answer(401, bad, "invalid_api_key", "no"), LlmError::Auth, 1),
        (plain(400, json!({"error": {"message": "API key not valid. Please pass one."}})), LlmError::Auth, 1),
        (error_answer(403, "", "unsupported_country_region_territory", "not here"), refused("not here"), 1),
        (error_answer(400, bad, "context_length_exceeded", "long"), LlmError::ContextTooLong, 1),
        (
            plain(400, json!({"object": "error", "message": "This model's maximum context length is 8 tokens."})),
            LlmError::ContextTooLong,
            1,
        ),
        (error_answer(400, "exceed_context_size_error", "", "long"), LlmError::ContextTooLong, 1),
        (ResponseTemplate::new(413), LlmError::ContextTooLong, 1),
        (error_answer(404, bad, "model_not_found", "model m"), refused("model m"), 1),
        (plain(404, json!({"error": "model m not found"})), refused("model m not found"), 1),
        (plain(422, json!({"detail": "no such field"})), refused("no such field"), 1),
        (ResponseTemplate::new(418), refused("status 418"), 1),
        (error_answer(400, bad, "", "bad key secret-key"), refused("bad key [key]"), 1),
        (
            ResponseTemplate::new(200).set_body_string("hi"),
            LlmError::Protocol("the answer is no event stream".into()),
            1,
        ),
        (
            ResponseTemplate::new(200)
                .set_body_raw("data: {\"error\": {\"message\": \"bad key secret-key\"}}\n\n", "text/event-stream"),
            refused("bad key [key]"),
            1,
        ),
        (ResponseTemplate::new(200).set_delay(Duration::from_secs(5)), LlmError::Timeout, 4),
    ] {
        let server = MockServer::start().await;
        Mock::given(method("POST")).and(path("/v1/chat/completions")).respond_with(answer).mount(&server).await;
        let result = outcome(&client(&server.uri(), value("secret-key"))).await;
        assert_eq!(result, Err(expected.clone()));
        assert_eq!(server.received_requests().await.expect("recorded").len(), calls, "{expected:?}");
    }
}

#[tokio::test]
async fn a_passing_overload_is_waited_out_and_an_error_behind_the_first_word_is_not_repeated() {
    let server = MockServer::start().await;
    let busy = error_answer(503, "server_error", "", "busy");
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(2).mount(&server).await;
    Mock::given(method("POST"))
        .and(header("authorization", "Bearer k"))
        .respond_with(stream_answer())
        .up_to_n_times(1)
        .expect(1)
        .mount(&server)
        .await;
    let text = format!(
        "data: {}\n\ndata: {}\n\n",
        delta(&json!({"content": "Hi"})),
        json!({"error": {"type": "server_error"}})
    );
    Mock::given(method("POST"))
        .respond_with(ResponseTemplate::new(200).set_body_raw(text, "text/event-stream"))
        .expect(1)
        .mount(&server)
        .await;
    let client = client(&format!("{}/v1/", server.uri()), value("k"));
    assert_eq!(outcome(&client).await, Ok(expected()));
    let items: Vec<_> = client.stream(request()).await.expect("starts").collect().await;
    let whole = [ModelEvent::TextStart, ModelEvent::TextDelta("Hi".into())].map(Ok);
    let mut whole = whole.to_vec();
    whole.push(Err(LlmError::Overloaded { retry_after: None }));
    assert_eq!(items, whole);
}

#[tokio::test]
async fn a_rejected_key_is_read_again_and_readiness_hears_of_it() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "old\n").expect("write");
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let tell = Box::new(move |state| listener.lock().expect("no panic").push(state));
    let server = MockServer::start().await;
    let refused = error_answer(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided");
    Mock::given(header("authorization", "Bearer old")).respond_with(refused).mount(&server).await;
    Mock::given(header("authorization", "Bearer new")).respond_with(stream_answer()).mount(&server).await;
    let client = client(&server.uri(), ModelKey::new(KeySource::File(file.clone()), tell));
    assert_eq!(outcome(&client).await, Err(LlmError::Auth));
    assert_eq!(client.key_state(), KeyState::Rejected);
    std::fs::write(&file, "new\n").expect("write");
    assert_eq!(outcome(&client).await, Ok(expected()));
    let mut told = told.lock().expect("no panic").clone();
    told.dedup();
    assert_eq!(told, [KeyState::Present, KeyState::Rejected, KeyState::Present]);
}

#[tokio::test]
async fn a_server_that_needs_no_key_gets_none_and_one_that_does_is_a_missing_key() {
    let open = MockServer::start().await;
    Mock::given(method("POST")).respond_with(stream_answer()).mount(&open).await;
    let client_of = |server: &MockServer| client(&server.uri(), key(KeySource::NotNeeded));
    let keyless = client_of(&open);
    assert_eq!(outcome(&keyless).await, Ok(expected()));
    let requests = open.received_requests().await.expect("recorded");
    assert!(!requests[0].headers.contains_key("authorization"));
    let closed = MockServer::start().await;
    let refused = error_answer(401, "invalid_request_error", "", "You did not provide an API key");
    Mock::given(method("POST")).respond_with(refused).expect(1).mount(&closed).await;
    let keyless = client_of(&closed);
    assert_eq!(keyless.key_state(), KeyState::Present);
    assert_eq!(outcome(&keyless).await, Err(LlmError::KeyMissing));
    assert_eq!(keyless.key_state(), KeyState::Missing);
}

#[test]
fn an_address_without_a_path_gets_the_usual_one() {
    for (base, full) in [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1/chat/completions"),
        ("https://models.example.com/api/paas/v4/", "https://models.example.com/api/paas/v4/chat/completions"),
    ] {
        assert_eq!(address(base), full);
    }
}

#[test]
fn no_stream_breaks_the_decoder() {
    crate::tests::parsers::model_streams("openai-stream", |events| {
        let mut decoder = Decoder::default();
        // Up to the first error, as the transport does.
        let failed = events.iter().any(|data| decoder.take(data, &mut |_event| {}).is_err());
        if !failed && !decoder.is_done() {
            let _whole_or_not = decoder.end(&mut |_event| {});
        }
    });
}
