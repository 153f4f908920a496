//! The account as JSON. Optional fields that have no value are left out, never null.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use serde_json::{Map, Value, json};

use super::store::{CWD, Command, Named, Session, Snapshot, Store};

/// A refusal in the service's form.
pub struct Refusal(pub u16, pub &'static str, pub String);

impl Refusal {
    pub fn bad(message: impl Into<String>) -> Self {
        Self(400, "bad_request", message.into())
    }

    pub fn absent(message: impl Into<String>) -> Self {
        Self(404, "not_found", message.into())
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self(500, "internal_server_error", error.to_string())
    }
}

pub type Answer = Result<Response, Refusal>;

#[expect(clippy::unnecessary_wraps, reason = "the last expression of calls that can refuse")]
pub fn json_answer(value: &Value) -> Answer {
    Ok(json_response(200, value))
}

pub fn json_response(status: u16, value: &Value) -> Response {
    body_response(status, "application/json", Body::from(value.to_string()))
}

pub fn body_response(status: u16, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert("content-type", axum::http::HeaderValue::from_static(kind));
    response
}

pub fn refuse(Refusal(status, code, message): &Refusal) -> Response {
    json_response(*status, &json!({"error": {"code": code, "message": message}}))
}

/// An object without its null members.
fn compact(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(map.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        other => other,
    }
}

pub fn session(session: &Session) -> Value {
    let stopped = session.status == "stopped";
    compact(json!({
        "id": session.id, "memory": session.config.vcpus * 2048, "vcpus": session.config.vcpus,
        "region": session.config.region, "runtime": session.config.runtime, "timeout": session.config.timeout,
        "status": session.status, "requestedAt": session.created_at, "createdAt": session.created_at, "cwd": CWD,
        "updatedAt": session.updated_at, "startedAt": session.created_at, "stoppedAt": session.stopped_at,
        "duration": session.stopped_at.map(|at| at - session.created_at), "sourceSnapshotId": session.source,
        "snapshottedAt": session.snapshotted_at, "networkPolicy": session.config.policy,
        "activeCpuDurationMs": stopped.then_some(10),
        "networkTransfer": stopped.then(|| json!({"ingress": 100, "egress": 50})),
    }))
}

pub fn named(store: &Store, named: &Named) -> Value {
    let current = store.sessions.get(&named.session);
    compact(json!({
        "name": named.name, "persistent": named.config.persistent, "region": named.config.region,
        "vcpus": named.config.vcpus, "memory": named.config.vcpus * 2048, "runtime": named.config.runtime,
        "image": named.config.image, "timeout": named.config.timeout, "networkPolicy": named.config.policy,
        "createdAt": named.created_at, "updatedAt": named.updated_at, "currentSessionId": named.session,
        "currentSnapshotId": named.snapshot, "status": current.map_or("stopped", |session| session.status),
        "statusUpdatedAt": current.map(|session| session.updated_at), "cwd": CWD, "tags": named.config.tags,
        "expiresAt": current.filter(|session| session.status == "running")
            .map(|session| session.created_at + session.config.timeout),
        "snapshotExpiration": named.config.expiration, "keepLastSnapshots": named.config.keep_last,
    }))
}

pub fn routes(session: &Session) -> Value {
    let route = |port: &u16| {
        let subdomain = format!("{}-{port}", session.id.replace('_', "-"));
        json!({"url": format!("https://{subdomain}.vercel.run"), "subdomain": subdomain, "port": port})
    };
    Value::Array(session.config.ports.iter().map(route).collect())
}

pub fn snapshot(snapshot: &Snapshot, first_generation: bool) -> Value {
    let source = if first_generation { "sourceSandboxId" } else { "sourceSessionId" };
    let mut value = compact(json!({
        "id": snapshot.id, "region": "iad1", "status": if snapshot.deleted { "deleted" } else { "created" },
        "sizeBytes": snapshot.size, "createdAt": snapshot.created_at, "updatedAt": snapshot.updated_at,
        "expiresAt": snapshot.expires_at, "parentId": snapshot.parent.as_ref().filter(|_| !first_generation),
    }));
    value[source] = json!(snapshot.session);
    value
}

pub fn command(command: &Command, now: u64, first_generation: bool) -> Value {
    let mut value = json!({
        "id": command.id, "name": command.program, "args": command.args, "cwd": command.cwd,
        "exitCode": command.exit, "startedAt": command.started_at,
    });
    if command.exit.is_some() {
        value["durationMs"] = json!(now.saturating_sub(command.started_at));
    }
    value[if first_generation { "sandboxId" } else { "sessionId" }] = json!(command.session);
    value
}

/// One page of items with their times of creation, newest first, in the manner of `/v1`: bounds in milliseconds.
pub fn page_by_time(mut items: Vec<(u64, Value)>, query: &Map<String, Value>) -> Result<(Vec<Value>, Value), Refusal> {
    items.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    if let Some(until) = number(query, "until")? {
        items.retain(|(at, _)| *at < until);
    }
    if let Some(since) = number(query, "since")? {
        items.retain(|(at, _)| *at >= since);
    }
    let limit = limit(query)?;
    let next = (items.len() > limit).then(|| items[limit - 1].0);
    items.truncate(limit);
    let pagination = json!({"count": items.len(), "next": next, "prev": null});
    Ok((items.into_iter().map(|(_, value)| value).collect(), pagination))
}

/// One page in the manner of `/v2`: an opaque cursor.
pub fn page_by_cursor(items: Vec<Value>, query: &Map<String, Value>) -> Result<(Vec<Value>, Value), Refusal> {
    let engine = base64::engine::general_purpose::STANDARD;
    let from = match query.get("cursor").and_then(Value::as_str) {
        None => 0,
        Some(cursor) => engine
            .decode(cursor)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
            .and_then(|value| value["offset"].as_u64())
            .and_then(|offset| usize::try_from(offset).ok())
            .ok_or_else(|| Refusal::bad("cursor is not one that was given out"))?,
    };
    let limit = limit(query)?;
    let more = items.len() > from + limit;
    let page: Vec<Value> = items.into_iter().skip(from).take(limit).collect();
    let next = more.then(|| engine.encode(json!({"offset": from + limit}).to_string()));
    let pagination = json!({"count": page.len(), "next": next});
    Ok((page, pagination))
}

fn number(query: &Map<String, Value>, name: &str) -> Result<Option<u64>, Refusal> {
    match query.get(name).and_then(Value::as_str) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| Refusal::bad(format!("`{name}` should be a number"))),
    }
}

/// Fifty items unless the query says less; a hundred at most.
fn limit(query: &Map<String, Value>) -> Result<usize, Refusal> {
    match number(query, "limit")? {
        None => Ok(50),
        Some(limit @ 1..=100) => Ok(usize::try_from(limit).unwrap_or(100)),
        Some(_) => Err(Refusal::bad("`limit` should be from 1 to 100")),
    }
}
