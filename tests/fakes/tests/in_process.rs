//! The double inside a Rust test: it answers, counts, and makes a test fail by itself.
#![allow(clippy::unwrap_used)]

use fakes::model::{Counters, Failure, ModelDouble};
use serde_json::{Value, json};

async fn call(double: &ModelDouble, body: &Value) -> reqwest::Response {
    // A second installation of the process-wide provider is refused, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let request = reqwest::Client::new().post(format!("{}/v1/messages", double.base_url));
    let request = request.header("x-api-key", "key").header("anthropic-version", "2023-06-01").json(body);
    request.send().await.unwrap()
}

fn say_hello() -> Value {
    let prompt = "Say it.\n```model-script\n[{\"text\":\"Hello.\"}]\n```";
    json!({ "model": "claude-scripted", "max_tokens": 100, "messages": [{ "role": "user", "content": prompt }] })
}

#[tokio::test]
async fn it_answers_as_scripted_and_counts() {
    let double = ModelDouble::start().await.unwrap();
    let message: Value = call(&double, &say_hello()).await.json().await.unwrap();
    assert_eq!(message["content"], json!([{ "type": "text", "text": "Hello." }]));
    let counters =
        Counters { requests: 1, statuses: [(200, 1)].into(), most_active: 1, finished: 1, ..Counters::default() };
    assert_eq!(double.counters(), counters);
    assert_eq!(double.request_body(1), Some(say_hello()));
}

#[tokio::test]
async fn failures_that_a_test_takes_do_not_fail_it() {
    let double = ModelDouble::start().await.unwrap();
    let status =
        call(&double, &json!({ "model": "claude-scripted", "max_tokens": 100, "messages": [] })).await.status();
    assert_eq!(status, 400);
    let message = "messages: at least one message is required".to_owned();
    assert_eq!(double.take_failures(), [Failure { request: 1, invariant: "messages", message }]);
}

#[tokio::test]
#[should_panic(expected = "the model double saw broken requests")]
async fn failures_that_nobody_takes_fail_the_test() {
    let double = ModelDouble::start().await.unwrap();
    call(&double, &json!({ "model": "claude-scripted", "max_tokens": 100, "messages": [] })).await;
}
