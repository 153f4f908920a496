//! From a request to its answer: the script of faults, the checks that hold for all, and which part answers.

use std::io;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::check::{self, Asked};
use super::faults::{self, Action, Fault};
use super::wire::{Answer, Refusal, body_response, json_response, refuse};
use super::{Call, VercelDouble, named, sessions, snapshots};

/// Largest body that is taken: 256 MiB.
const LARGEST: usize = 256 << 20;

/// Answers one request; an error closes the connection without an answer.
pub async fn answer(double: &VercelDouble, request: Request) -> io::Result<Response> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, LARGEST).await.map_err(io::Error::other)?;
    let target = head.uri.path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
    if let Some(rest) = target.strip_prefix("/double/") {
        return Ok(control(double, head.method.as_str(), rest, &body));
    }
    let text = match std::str::from_utf8(&body) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{} bytes", body.len()),
    };
    let action = {
        let mut store = double.store();
        store.now += 1;
        store.settle();
        store.calls.push(Call { method: head.method.to_string(), target: target.clone(), body: text });
        faults::take(&mut store.faults, head.method.as_str(), &target)
    };
    match &action {
        Some(Action::Refused) => return Err(io::Error::other("scripted refusal")),
        Some(Action::NoHeaders) => std::future::pending().await,
        Some(Action::Status { status, body, retry_after }) => return Ok(scripted(*status, body, *retry_after)),
        _ => {}
    }
    let (path, query) = check::parts(&target);
    let asked = Asked { method: head.method.as_str(), path, query, headers: &head.headers, body: &body };
    let response = match dispatch(double, &asked).await {
        Ok(response) => response,
        Err(refusal) => {
            if refusal.1 == "bad_request" && refusal.2.starts_with("Invalid request") {
                double.store().failures.push(format!("{} {target}: {}", head.method, refusal.2));
            }
            refuse(&refusal)
        }
    };
    match action {
        Some(Action::LostAnswer) => Err(io::Error::other("scripted loss")),
        Some(Action::Cut { bytes }) => Ok(faults::cut(response, bytes)),
        Some(Action::Pieces { bytes }) => Ok(faults::pieces(response, bytes)),
        _ => Ok(response),
    }
}

fn scripted(status: u16, body: &Value, retry_after: Option<u64>) -> Response {
    let mut response = match body {
        Value::Null => body_response(status, "text/plain", Body::empty()),
        Value::String(text) => body_response(status, "text/html", Body::from(text.clone())),
        body => json_response(status, body),
    };
    if let Some(seconds) = retry_after {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

async fn dispatch(double: &VercelDouble, asked: &Asked<'_>) -> Answer {
    check::caller(asked, &double.store().options)?;
    let path: Vec<&str> = asked.path.iter().map(String::as_str).collect();
    match (asked.method, path.as_slice()) {
        ("POST", ["v1" | "v2" | "v3", "sandboxes"]) => named::create(double, asked),
        ("GET", ["v1", "sandboxes"] | ["v2", "sandboxes", "sessions"]) => sessions::list(double, asked),
        ("GET", ["v2", "sandboxes"]) => named::list(double, asked),
        ("GET", ["v1" | "v2", "sandboxes", "snapshots"]) => snapshots::list(double, asked),
        ("GET", ["v1" | "v2", "sandboxes", "snapshots", id]) => snapshots::one(double, asked, id, false),
        ("DELETE", ["v1" | "v2", "sandboxes", "snapshots", id]) => snapshots::one(double, asked, id, true),
        (_, ["v1", "sandboxes", id, rest @ ..] | ["v2", "sandboxes", "sessions", id, rest @ ..]) => {
            sessions::call(double, asked, id, rest).await
        }
        (_, ["v2", "sandboxes", name, rest @ ..]) if !matches!(*name, "sessions" | "snapshots" | "drives") => {
            named::call(double, asked, name, rest)
        }
        _ => Err(Refusal::absent("Not found.")),
    }
}

/// The test's own calls: script a fault, move the clock, read the ledger and the broken rules.
fn control(double: &VercelDouble, method: &str, path: &str, body: &[u8]) -> Response {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match (method, path) {
        ("POST", "faults") => match serde_json::from_value::<Fault>(value) {
            Ok(fault) => double.script(fault),
            Err(error) => return json_response(400, &json!({"error": error.to_string()})),
        },
        ("POST", "clock") => double.advance(value["advance"].as_u64().unwrap_or_default()),
        ("GET", "calls") => return json_response(200, &json!({"calls": double.calls()})),
        ("GET", "failures") => return json_response(200, &json!({"failures": double.failures()})),
        ("GET", "running") => return json_response(200, &json!({"running": double.running()})),
        _ => return json_response(404, &json!({"error": "not found"})),
    }
    json_response(200, &json!({}))
}
