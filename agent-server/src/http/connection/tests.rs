//! Tests on a real socket.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// Longest wait for anything.
const WAIT: Duration = Duration::from_secs(30);

struct Place {
    client: TcpStream,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn place() -> Place {
    let router =
        Router::new().route("/", get(|| async { "whole" })).route("/slow", get(slow)).route("/endless", get(endless));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let client = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connected");
    let (socket, _) = listener.accept().await.expect("accepted");
    let stop = CancellationToken::new();
    let serving = tokio::spawn(connection(socket, Switch::new(router), stop.clone()));
    Place { client, stop, serving }
}

/// A first part at once, and the rest half a second later.
async fn slow() -> Body {
    let parts = futures::stream::iter(["first ", "last"]).then(|part| async move {
        if part == "last" {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok::<_, Infallible>(part)
    });
    Body::from_stream(parts)
}

/// A first part at once, and then nothing.
async fn endless() -> Body {
    let first = futures::stream::iter([Ok::<_, Infallible>("first ")]);
    Body::from_stream(first.chain(futures::stream::pending()))
}

impl Place {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.client.write_all(bytes.as_ref()).await.expect("sent");
    }

    /// Everything until the server closes.
    async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(WAIT, self.client.read_to_end(&mut rest)).await.expect("closed in time");
        // A server that closes with unread bytes resets; what came before counts.
        drop(read);
        String::from_utf8(rest).expect("text")
    }

    async fn until(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(part) {
            let byte = tokio::time::timeout(WAIT, self.client.read_u8()).await.expect("in time").expect("open");
            seen.push(byte);
        }
        String::from_utf8(seen).expect("text")
    }
}

/// The status, code and body of an answer in the one error shape.
fn error(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("JSON, not {body:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body["error"]["code"].as_str().expect("a code").to_string())
}

#[tokio::test]
async fn a_head_is_refused_beyond_its_limit_and_taken_below_it() {
    let head = |filler: usize| format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(filler));
    let fixed = head(0).len();
    for (bytes, expected) in [(MAX_HEAD_BYTES + 1, 431), (2 * MAX_HEAD_BYTES - 100, 431), (4 * MAX_HEAD_BYTES, 431)] {
        let mut place = place().await;
        let head = head(bytes - fixed);
        let (mut reader, mut writer) = place.client.split();
        // The server may close before it took everything.
        let sending = async {
            let _closed = writer.write_all(head.as_bytes()).await;
        };
        let reading = async {
            let mut answer = vec![0; 4096];
            let count =
                tokio::time::timeout(WAIT, reader.read(&mut answer)).await.expect("in time").expect("an answer");
            String::from_utf8(answer[..count].to_vec()).expect("text")
        };
        let ((), answer) = tokio::join!(sending, reading);
        assert_eq!(error(&answer), (expected, "head_too_large".into()), "{bytes}");
    }
    let mut place = place().await;
    place.send(head(MAX_HEAD_BYTES - fixed)).await;
    assert!(place.until("whole").await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn what_is_no_http_gets_the_one_error_shape() {
    for (bytes, expected) in [
        ("\u{16}\u{3}\u{1}\u{2}\u{0}not http\r\n\r\n".to_string(), (400, "validation_error")),
        ("GET / HTTP/9.9\r\n\r\n".into(), (400, "validation_error")),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n".into(), (400, "validation_error")),
        ("GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n".into(), (400, "validation_error")),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200)), (431, "head_too_large")),
    ] {
        let mut place = place().await;
        place.send(&bytes).await;
        let answer = place.rest().await;
        assert_eq!(error(&answer), (expected.0, expected.1.to_string()), "{bytes:?}");
    }
}

#[tokio::test]
async fn half_a_head_does_not_keep_the_server_from_stopping() {
    let mut place = place().await;
    place.send("GET / HTTP/1.1\r\nhost: local").await;
    let begin = Instant::now();
    // The bytes may arrive after the order; both must end soon, well before the time for a head.
    place.stop.cancel();
    tokio::time::timeout(WAIT / 2, place.serving).await.expect("ended").expect("no panic");
    assert!(begin.elapsed() < HEADER_TIMEOUT / 2);
}

#[tokio::test]
async fn a_client_that_shuts_its_side_counts_as_gone() {
    let mut place = place().await;
    place.send("GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    place.until("first ").await;
    place.client.shutdown().await.expect("shut");
    tokio::time::timeout(WAIT, place.serving).await.expect("ended").expect("no panic");
}

#[tokio::test]
async fn an_answer_in_progress_is_sent_to_its_end() {
    let mut place = place().await;
    place.send("GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    place.until("first ").await;
    place.stop.cancel();
    let rest = place.rest().await;
    assert!(rest.contains("last") && rest.ends_with("0\r\n\r\n"), "{rest:?}");
    tokio::time::timeout(WAIT, place.serving).await.expect("ended").expect("no panic");
}
