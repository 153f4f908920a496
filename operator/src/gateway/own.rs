//! The gateway's own routes below the address of a workspace.
//!
//! `/_auth/session` (sign in and out), `/_auth/link` (make and open one-time links), `/_workspace` (state), `/_workspace/start`,
//! `/_workspace/stop`. Owns their answers. Must not know how people are reviewed.

use axum::http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{HOST, LOCATION, ORIGIN, SET_COOKIE},
};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use super::{
    Gateway,
    answer::{self, Answer},
    body::Payload,
    flight::{Outcome, hold_view, wake_view},
    headers::SESSION_COOKIE,
    hold::{self, Refusal},
    identity::Credential,
    route::{Form, Route},
    session::{LINK_SECONDS, SESSION_SECONDS},
};
use crate::{
    cluster::{ClusterError, Entry, Person, Reachable, WakeView},
    crd::{Intent, RunPolicy},
};

/// Times that an explicit start or stop is decided anew after another gateway was faster.
const WRITE_TRIES: usize = 5;

/// A route of the gateway itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Turn a token into a session.
    SignIn,
    /// Forget the session.
    SignOut,
    /// Turn a link into a session.
    OpenLink,
    /// Make a link.
    MakeLink,
    /// Tell the state.
    State,
    /// Start it.
    Start,
    /// Stop it.
    Stop,
    /// No such route.
    Unknown,
}

/// Which of our routes this is, if it is one. Sessions exist only where a workspace has an origin of its own.
pub fn own(method: &Method, route: &Route) -> Option<Own> {
    let path = route.rest.path();
    if !path.starts_with("/_auth/") && path != "/_workspace" && !path.starts_with("/_workspace/") {
        return None;
    }
    let own = match (method.as_str(), path) {
        ("POST", "/_auth/session") => Own::SignIn,
        ("DELETE", "/_auth/session") => Own::SignOut,
        ("GET", "/_auth/link") => Own::OpenLink,
        ("POST", "/_auth/link") => Own::MakeLink,
        ("GET", "/_workspace") => Own::State,
        ("POST", "/_workspace/start") => Own::Start,
        ("POST", "/_workspace/stop") => Own::Stop,
        _ => Own::Unknown,
    };
    let needs_host = matches!(own, Own::SignIn | Own::SignOut | Own::OpenLink | Own::MakeLink);
    Some(if needs_host && route.form == Form::Path { Own::Unknown } else { own })
}

/// Whether a request with a session comes from a page of the workspace itself. A sibling host is the same site to browsers, so
/// their own rule for cookies does not tell. Reading needs no such proof: browsers show no other page what it got.
pub fn from_own_page(method: &Method, headers: &HeaderMap, is_upgrade: bool) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if let Some(origin) = headers.get(ORIGIN) {
        let authority =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        return authority.is_some() && authority == host;
    }
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && !is_upgrade;
    reads || headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin")
}

/// The token of `Authorization`, or of the form of the sign-in page.
pub fn offered_token(headers: &HeaderMap, body: &[u8]) -> Option<Credential> {
    if let Some(value) = headers.get(axum::http::header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| Credential::bearer(token.trim()))?;
    }
    let form = std::str::from_utf8(body).ok()?;
    let token = form.split('&').find_map(|pair| pair.strip_prefix("token="))?;
    // Tokens are base64url, dots and dashes; `+` would be a blank and `%` anything, and neither is in one.
    Credential::bearer(token).filter(|_| !token.contains(['%', '+']))
}

/// Sets the session and goes to the workspace.
pub fn signed_in(session: &str, is_form: bool) -> Response<Payload> {
    let cookie =
        format!("{SESSION_COOKIE}={session}; Path=/; Max-Age={SESSION_SECONDS}; Secure; HttpOnly; SameSite=Lax");
    let mut response = answer::json_ok(StatusCode::OK, &json!({"expiresInSeconds": SESSION_SECONDS}));
    if is_form {
        *response.status_mut() = StatusCode::SEE_OTHER;
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
    }
    match HeaderValue::try_from(cookie) {
        Ok(value) => {
            response.headers_mut().insert(SET_COOKIE, value);
            response
        }
        Err(_) => Answer::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the session cannot be sent").json(),
    }
}

/// Removes the session.
pub fn signed_out() -> Response<Payload> {
    let mut response = answer::json_ok(StatusCode::OK, &json!({"signedOut": true}));
    let cookie = format!("{SESSION_COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax");
    if let Ok(value) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    response
}

impl Gateway {
    /// A link that signs one browser in.
    pub(super) fn make_link(&self, route: &Route, host: Option<&HeaderValue>, person: &Person) -> Response<Payload> {
        let Some(host) = host.and_then(|host| host.to_str().ok()) else {
            return Answer::new(StatusCode::BAD_REQUEST, "validation_error", "the Host header is missing").json();
        };
        match self.sessions.seal_link(&route.key, person, Timestamp::now()) {
            Ok(secret) => answer::json_ok(
                StatusCode::CREATED,
                &json!({"url": format!("https://{host}/_auth/link?token={secret}"), "expiresInSeconds": LINK_SECONDS}),
            ),
            Err(error) => Answer::new(StatusCode::BAD_REQUEST, "validation_error", error.to_string()).json(),
        }
    }

    /// What the gateway sees of the workspace.
    pub(super) fn state(workspace: &Reachable) -> Response<Payload> {
        let trouble = workspace.trouble.as_ref().map(|(reason, message)| json!({"reason": reason, "message": message}));
        let phase = workspace.phase.map(|phase| format!("{phase:?}"));
        answer::json_ok(StatusCode::OK, &json!({"phase": phase, "trouble": trouble}))
    }

    /// Starts the workspace whatever stopped it, and waits for it as any request does.
    pub(super) async fn start(&self, route: &Route, workspace: &Entry<Reachable>) -> Response<Payload> {
        match workspace.value.run_policy {
            RunPolicy::Stopped => {
                return Answer::new(StatusCode::CONFLICT, "conflict", "spec.runPolicy is Stopped")
                    .in_state("stopped")
                    .json();
            }
            RunPolicy::Always => {}
            RunPolicy::OnDemand => {
                if let Err(response) = self.write_intent(route, workspace, Intent::Awake).await {
                    return response;
                }
            }
        }
        match timeout(workspace.value.wake_timeout, self.flights.wait(&route.key)).await {
            Ok(Outcome::Serves) => answer::json_ok(StatusCode::OK, &json!({"state": "running"})),
            Ok(other) => Self::refused(other, &workspace.value).json(),
            Err(_) => answer::json_ok(StatusCode::ACCEPTED, &json!({"state": "starting"})),
        }
    }

    /// Stops the workspace until somebody starts it.
    pub(super) async fn stop(&self, route: &Route, workspace: &Entry<Reachable>) -> Response<Payload> {
        if workspace.value.run_policy != RunPolicy::OnDemand {
            let text = "only a workspace with spec.runPolicy OnDemand is stopped here; others by their spec";
            return Answer::new(StatusCode::CONFLICT, "conflict", text).json();
        }
        match self.write_intent(route, workspace, Intent::Stopped).await {
            Ok(()) => answer::json_ok(StatusCode::ACCEPTED, &json!({"state": "stopping"})),
            Err(response) => response,
        }
    }

    async fn write_intent(
        &self,
        route: &Route,
        workspace: &Entry<Reachable>,
        intent: Intent,
    ) -> Result<(), Response<Payload>> {
        for _ in 0..WRITE_TRIES {
            let wake: Option<Entry<WakeView>> =
                self.caches.wakes.get(&route.key).filter(|wake| wake.value.belongs_to(&workspace.uid));
            let view = wake.as_ref().map(|wake| wake_view(&wake.value));
            let counter = hold::explicit(&hold_view(&workspace.value), view);
            match self.flights.write_wake(&route.key, &workspace.uid, intent, counter, wake.as_ref()).await {
                Ok(()) => return Ok(()),
                Err(ClusterError::Conflict { .. } | ClusterError::AlreadyExists { .. }) => {}
                Err(error) => {
                    tracing::warn!(workspace = %route.key, error = &error as &dyn std::error::Error, "a wake was not written");
                    break;
                }
            }
        }
        let text = "what is wanted of the workspace could not be written";
        Err(Answer::new(StatusCode::SERVICE_UNAVAILABLE, "controller_unavailable", text).after(5).json())
    }

    /// Why waiting was of no use, in words.
    pub(super) fn refused(outcome: Outcome, workspace: &Reachable) -> Answer {
        let unavailable = |code, text: String| Answer::new(StatusCode::SERVICE_UNAVAILABLE, code, text);
        match outcome {
            Outcome::Serves => {
                unavailable("sandbox_unavailable", "the workspace has just stopped serving".to_owned()).after(1)
            }
            Outcome::Refused(Refusal::Stopped) => {
                unavailable("stopped", "the workspace is stopped; it has to be started".to_owned()).in_state("stopped")
            }
            Outcome::Refused(Refusal::Terminating) | Outcome::Gone => {
                Answer::new(StatusCode::NOT_FOUND, "not_found", "the workspace is being deleted")
            }
            Outcome::Refused(Refusal::Stalled) => {
                let (reason, message) = workspace.trouble.clone().unwrap_or_default();
                unavailable("stalled", format!("{reason}: {message}")).in_state("stalled").after(30)
            }
            Outcome::NoReaction => {
                let text = "the operator does not react to the wake".to_owned();
                unavailable("controller_unavailable", text).in_state("sleeping").after(10)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_session_acts_only_from_pages_of_its_own_host() {
        let from = |method: Method, pairs: &[(&'static str, &'static str)], upgrade| {
            let all = [&[("host", "alice--a.example.com")], pairs].concat();
            from_own_page(&method, &headers(&all), upgrade)
        };
        assert!(from(Method::POST, &[("origin", "https://alice--a.example.com")], false));
        assert!(!from(Method::POST, &[("origin", "https://evil--b.example.com")], false));
        assert!(!from(Method::POST, &[("origin", "null")], false));
        assert!(!from(Method::GET, &[("origin", "https://evil--b.example.com")], false));
        assert!(!from(Method::POST, &[], false), "a form of another page may come without an origin");
        assert!(from(Method::POST, &[("sec-fetch-site", "same-origin")], false));
        assert!(!from(Method::POST, &[("sec-fetch-site", "same-site")], false));
        assert!(from(Method::GET, &[], false));
        assert!(!from(Method::GET, &[], true));
        assert!(from(Method::GET, &[("origin", "https://alice--a.example.com")], true));
    }

    #[test]
    fn sessions_are_made_only_where_the_workspace_has_a_host_of_its_own() {
        let route = |form, rest: &str| Route {
            key: crate::cluster::WorkspaceKey { namespace: "a".to_owned(), name: "alice".to_owned() },
            form,
            rest: rest.parse().unwrap(),
        };
        assert_eq!(own(&Method::POST, &route(Form::Host, "/_auth/session")), Some(Own::SignIn));
        assert_eq!(own(&Method::POST, &route(Form::Path, "/_auth/session")), Some(Own::Unknown));
        assert_eq!(own(&Method::GET, &route(Form::Path, "/_workspace")), Some(Own::State));
        assert_eq!(own(&Method::POST, &route(Form::Path, "/_workspace/start")), Some(Own::Start));
        assert_eq!(own(&Method::GET, &route(Form::Path, "/_workspace/start")), Some(Own::Unknown));
        assert_eq!(own(&Method::GET, &route(Form::Host, "/_workspaces")), None);
        assert_eq!(own(&Method::GET, &route(Form::Host, "/api/v1/tree")), None);
    }

    #[test]
    fn a_token_is_taken_from_the_header_or_the_form() {
        let form = offered_token(&HeaderMap::new(), b"token=a.b-c_d&x=1").unwrap();
        assert_eq!(form.digest, Credential::bearer("a.b-c_d").unwrap().digest);
        let header = offered_token(&headers(&[("authorization", "Bearer abc")]), b"token=other").unwrap();
        assert_eq!(header.digest, Credential::bearer("abc").unwrap().digest);
        assert!(offered_token(&HeaderMap::new(), b"token=a%20b").is_none());
        assert!(offered_token(&HeaderMap::new(), b"").is_none());
    }
}
