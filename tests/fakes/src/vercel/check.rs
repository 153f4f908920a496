//! What every request must hold: who calls, for which team and project, which headers, which fields. It changes
//! nothing.

use axum::http::HeaderMap;
use base64::Engine;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Options;
use super::wire::Refusal;

/// A request, taken apart.
pub struct Asked<'a> {
    pub method: &'a str,
    /// Segments of the path, decoded.
    pub path: Vec<String>,
    pub query: Map<String, Value>,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

impl Asked<'_> {
    /// Body as a type that refuses unknown fields.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(self.body).map_err(|error| Refusal::bad(format!("Invalid request: {error}")))
    }

    /// Body that may be absent.
    pub fn json_or_empty<T: DeserializeOwned + Default>(&self) -> Result<T, Refusal> {
        if self.body.is_empty() { Ok(T::default()) } else { self.json() }
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.query.get(name).and_then(Value::as_str)
    }

    pub fn first_generation(&self) -> bool {
        self.path.first().is_some_and(|version| version == "v1")
    }

    /// Refuses a request without body that brings one.
    pub fn without_body(&self) -> Result<(), Refusal> {
        if self.body.is_empty() { Ok(()) } else { Err(Refusal::bad("Invalid request: this call has no body")) }
    }
}

/// Takes path and query apart.
pub fn parts(target: &str) -> (Vec<String>, Map<String, Value>) {
    let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.trim_start_matches('/').split('/').map(decode).collect();
    let query = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), Value::String(decode(&value.replace('+', " "))))
        })
        .collect();
    (path, query)
}

/// Refuses strangers, and calls that do not say their team.
pub fn caller(asked: &Asked<'_>, options: &Options) -> Result<(), Refusal> {
    let header = |name: &str| asked.headers.get(name).and_then(|value| value.to_str().ok());
    let token = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    match token {
        None => return Err(Refusal(401, "unauthorized", "Missing authentication token".to_owned())),
        Some(token) if token != options.token => {
            return Err(Refusal(403, "forbidden", "Not authorized".to_owned()));
        }
        Some(_) => {}
    }
    let team = owner(&options.token).unwrap_or_else(|| options.team.clone());
    match asked.value("teamId") {
        None => Err(Refusal::bad("Invalid request: `teamId` is missing")),
        Some(given) if given != team => Err(Refusal(403, "forbidden", "Not authorized for this team".to_owned())),
        Some(_) => content(asked, header("content-type")),
    }
}

fn content(asked: &Asked<'_>, kind: Option<&str>) -> Result<(), Refusal> {
    let archive = asked.path.ends_with(&["fs".to_owned(), "write".to_owned()]);
    let expected = if archive { "application/gzip" } else { "application/json" };
    if kind != Some(expected) {
        return Err(Refusal::bad(format!("Invalid request: content-type should be {expected}")));
    }
    match asked.query.keys().find(|name| name.starts_with("__")) {
        Some(name) => Err(Refusal::bad(format!("Invalid request: unknown query parameter {name}"))),
        None => Ok(()),
    }
}

/// The team that a token of the OIDC kind names.
fn owner(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1)?;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?["owner_id"].as_str().map(str::to_owned)
}

/// Compares the project that a call names.
pub fn project(given: Option<&str>, options: &Options) -> Result<(), Refusal> {
    match given {
        Some(project) if project == options.project => Ok(()),
        Some(_) => Err(Refusal::absent("Project not found.")),
        None => Err(Refusal::bad("Invalid request: the project is missing")),
    }
}
