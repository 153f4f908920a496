//! The gateway's own answers: one JSON shape, and two pages for browsers.
//!
//! Owns codes, words and HTML. Clients of chats show the body's text and not the headers, so what to do next stands in both.

use axum::http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use http_body_util::Full;
use serde_json::json;

use super::{body::Payload, headers::WORKSPACE_STATE};

/// What the gateway answers when it does not forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// `error.code`: stable, for programs.
    pub code: &'static str,
    /// `error.message`: for people.
    pub message: String,
    /// `x-workspace-state` and `error.state`.
    pub state: Option<&'static str>,
    /// Seconds, as `Retry-After` and `error.retryAfter`.
    pub retry_after: Option<u32>,
}

impl Answer {
    /// Without state and pause.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), state: None, retry_after: None }
    }

    /// Adds the workspace's state.
    pub fn in_state(mut self, state: &'static str) -> Self {
        self.state = Some(state);
        self
    }

    /// Adds a pause in seconds.
    pub fn after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Nobody is known. The same whether the workspace exists or not.
    pub fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "auth_required", "a token for this gateway is needed")
    }

    /// Somebody is known who may not. The same whether the workspace exists or not.
    pub fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, "auth_invalid", "there is no such workspace, or you may not connect to it")
    }

    /// The body is larger than the gateway permits.
    pub fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "the body is larger than the gateway permits")
    }

    /// As JSON.
    pub fn json(&self) -> Response<Payload> {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(state) = self.state {
            error["state"] = json!(state);
        }
        if let Some(seconds) = self.retry_after {
            error["retryAfter"] = json!(seconds);
        }
        self.response("application/json", json!({ "error": error }).to_string())
    }

    /// As a page that says it, for browsers.
    pub fn page(&self) -> Response<Payload> {
        let body = format!("<h1>{}</h1><p>{}</p>", self.status.as_u16(), escaped(&self.message));
        self.response(HTML, document("Agent workspace", "", &body))
    }

    fn response(&self, content_type: &'static str, text: String) -> Response<Payload> {
        let mut response = Response::new(Payload::Own(Full::new(text.into())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        own_headers(headers);
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(state) = self.state {
            headers.insert(WORKSPACE_STATE, HeaderValue::from_static(state));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

const HTML: &str = "text/html; charset=utf-8";
/// Our pages: forms to the own origin, inline style, nothing else; no frame of another page shows them.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

fn own_headers(headers: &mut axum::http::HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("same-origin"));
}

/// JSON that is no error.
pub fn json_ok(status: StatusCode, value: &serde_json::Value) -> Response<Payload> {
    let mut response = Response::new(Payload::Own(Full::new(value.to_string().into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    own_headers(response.headers_mut());
    response
}

/// Shown while the workspace starts; asks again by itself every second, which holds for another moment each time.
pub fn progress_page(name: &str) -> Response<Payload> {
    let answer = Answer::new(StatusCode::SERVICE_UNAVAILABLE, "starting", "").in_state("starting").after(1);
    let body =
        format!("<h1>{} is starting</h1><p>This page continues by itself.</p><progress></progress>", escaped(name));
    answer.response(HTML, document("Starting", r#"<meta http-equiv="refresh" content="1">"#, &body))
}

/// Shown to a browser without a session: takes a token and makes one.
pub fn sign_in_page(problem: Option<&str>) -> Response<Payload> {
    let answer = Answer::unauthenticated();
    let problem = problem.map(|text| format!("<p><strong>{}</strong></p>", escaped(text))).unwrap_or_default();
    let body = format!(
        "<h1>Sign in</h1>{problem}<form method=\"post\" action=\"/_auth/session\">\
         <p><label>Token<br><input type=\"password\" name=\"token\" autocomplete=\"off\" required autofocus></label></p>\
         <button>Sign in</button></form>\
         <p>Or open the workspace with <code>kubectl aw open</code>.</p>"
    );
    answer.response(HTML, document("Sign in", "", &body))
}

fn document(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         {head}<title>{title}</title><style>body{{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}}\
         input{{width:100%;font:inherit}}</style>{body}</html>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read(response: Response<Payload>) -> (u16, String, axum::http::HeaderMap) {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap(), parts.headers)
    }

    #[tokio::test]
    async fn an_error_says_in_its_body_what_its_headers_say() {
        let answer =
            Answer::new(StatusCode::SERVICE_UNAVAILABLE, "sleeping", "it sleeps").in_state("sleeping").after(5);
        let (status, body, headers) = read(answer.json()).await;
        assert_eq!(status, 503);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&body).unwrap(),
            json!({"error": {"code": "sleeping", "message": "it sleeps", "state": "sleeping", "retryAfter": 5}})
        );
        assert_eq!(
            (&headers["x-workspace-state"], &headers["retry-after"]),
            (&"sleeping".parse().unwrap(), &"5".parse().unwrap())
        );
    }

    #[tokio::test]
    async fn what_a_page_shows_cannot_become_markup() {
        let (_, body, _) = read(Answer::new(StatusCode::BAD_GATEWAY, "x", "<script>'\"&").page()).await;
        assert!(body.contains("&lt;script&gt;&#39;&quot;&amp;") && !body.contains("<script>"), "{body}");
        let (status, body, headers) = read(progress_page("alice")).await;
        assert!(status == 503 && body.contains("alice is starting") && body.contains("refresh"), "{body}");
        assert_eq!(headers["x-workspace-state"], "starting");
    }
}
