//! One request from its first to its last step: whose is it, may they, does the workspace serve, hand it over.
//!
//! Owns the order of the steps. What each decides stands in its own module.

use std::{sync::Arc, time::Instant};

use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header::HOST};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use jiff::Timestamp;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{
    access::Access,
    answer::{self, Answer},
    body::Payload,
    flight::Flights,
    forward::Forwarding,
    headers::{self, REQUEST_ID},
    identity::{self, Credential, Identities},
    own::{self, Own},
    route::{Form, Route, route},
    session::Sessions,
    streams::Opened,
    tokens::Tokens,
    upload::{Room, Upload},
    waking,
};
use crate::{
    cluster::{ClusterError, Entry, GatewayCaches, Person, Reachable},
    telemetry::{Ending, GatewayMetrics},
};

/// Longest id of a request that is taken over.
const REQUEST_ID_BYTES: usize = 128;

/// Everything a request needs.
pub struct Gateway {
    /// Suffix of host names.
    pub(super) domain: Option<String>,
    /// Bytes of a body, at most.
    pub(super) max_body_bytes: u64,
    /// What the watches brought.
    pub(super) caches: GatewayCaches,
    /// Who people are.
    pub(super) identities: Identities,
    /// What they may.
    pub(super) access: Access,
    /// Browsers' sessions.
    pub(super) sessions: Sessions,
    /// Tokens for pods.
    pub(super) tokens: Tokens,
    /// Requests that wait.
    pub(super) flights: Arc<Flights>,
    /// How many may.
    pub(super) waiting: Semaphore,
    /// The way to pods.
    pub(super) forwarding: Forwarding,
    /// Room for bodies.
    pub(super) room: Room,
    /// Counters.
    pub(super) metrics: Arc<GatewayMetrics>,
}

/// What is answered, and how it counts.
pub(super) struct Done {
    pub(super) response: Response<Payload>,
    pub(super) ending: Ending,
}

impl Done {
    pub(super) fn new(ending: Ending, response: Response<Payload>) -> Self {
        Self { response, ending }
    }

    pub(super) fn says(ending: Ending, answer: &Answer) -> Self {
        Self { response: answer.json(), ending }
    }
}

/// What the log tells of a request.
#[derive(Default)]
struct Log {
    workspace: Option<String>,
    user: Option<Arc<Person>>,
    path: String,
}

impl Gateway {
    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Payload> {
        let began = Instant::now();
        let method = request.method().clone();
        let request_id = request_id(&request);
        let mut log = Log { path: request.uri().path().to_owned(), ..Log::default() };
        let Done { mut response, ending } = self.answer(request, &request_id, &mut log).await;
        self.metrics.ended(ending);
        response.headers_mut().entry(REQUEST_ID).or_insert(request_id.clone());
        let turn = response.headers().get("x-turn-id").and_then(|turn| turn.to_str().ok());
        tracing::info!(
            target: "access",
            method = method.as_str(),
            // Without the query: links carry secrets there.
            path = log.path,
            status = response.status().as_u16(),
            ending = ?ending,
            workspace = log.workspace,
            user = log.user.as_ref().map(|person| person.user.as_str()),
            turn,
            request = request_id.to_str().unwrap_or_default(),
            milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request"
        );
        response
    }

    async fn answer(&self, mut request: Request<Incoming>, request_id: &HeaderValue, log: &mut Log) -> Done {
        let host = request.headers().get(HOST).cloned();
        let named = host.as_ref().and_then(|host| host.to_str().ok());
        let route = match route(self.domain.as_deref(), named, request.uri()) {
            Ok(route) => route,
            Err(error) => {
                let answer = Answer::new(StatusCode::NOT_FOUND, "not_found", error.to_string());
                return Done::says(Ending::Rejected, &answer);
            }
        };
        log.workspace = Some(route.key.to_string());
        route.rest.path().clone_into(&mut log.path);
        let size = hyper::body::Body::size_hint(request.body());
        if size.lower() > self.max_body_bytes {
            return Done::says(Ending::Rejected, &Answer::too_large());
        }
        let upgrade = headers::upgrade(request.headers()).and_then(|_| request.extensions_mut().remove::<OnUpgrade>());
        let (parts, body) = request.into_parts();
        let caller = Caller {
            own: own::own(&parts.method, &route),
            method: parts.method,
            headers: parts.headers,
            query: parts.uri.query().map(str::to_owned),
            route,
            host,
            upgrade,
            upload: Upload::new(body, &self.room, self.max_body_bytes),
            request_id: request_id.clone(),
        };
        if let Some(done) = self.before_sign_in(&caller).await {
            return done;
        }
        let (credential, person) = match self.person(&caller).await {
            Ok(known) => known,
            Err(done) => return done,
        };
        log.user = Some(Arc::clone(&person));
        let workspace = match self.permitted(&caller, &credential, &person).await {
            Ok(workspace) => workspace,
            Err(done) => return done,
        };
        match caller.own {
            Some(own) => Done::new(Ending::Own, self.own_route(own, &caller, &person, &workspace).await),
            None => self.serve(caller, credential, &person, workspace).await,
        }
    }

    /// Routes that make somebody known.
    async fn before_sign_in(&self, caller: &Caller) -> Option<Done> {
        let now = Timestamp::now();
        let response = match caller.own? {
            Own::OpenLink => {
                let query = caller.query.as_deref().unwrap_or_default();
                let secret = query.split('&').find_map(|pair| pair.strip_prefix("token=")).unwrap_or_default();
                let Some(person) = self.sessions.open_link(secret, &caller.route.key, now) else {
                    let text = "This link was used or is older than a minute.";
                    return Some(Done::new(Ending::Unauthenticated, answer::sign_in_page(Some(text))));
                };
                self.session(caller, &person, true)
            }
            Own::SignIn => {
                if !own::from_own_page(&caller.method, &caller.headers, false)
                    && !caller.headers.contains_key(axum::http::header::AUTHORIZATION)
                {
                    return Some(Done::says(Ending::Forbidden, &Answer::forbidden()));
                }
                let body = caller.upload.peek().await.unwrap_or_default();
                let is_form = !caller.headers.contains_key(axum::http::header::AUTHORIZATION);
                let person = match own::offered_token(&caller.headers, &body) {
                    Some(credential) => self.identities.person(&credential, now).await,
                    None => Ok(None),
                };
                match person {
                    Ok(Some(person)) => self.session(caller, &person, is_form),
                    Ok(None) if is_form => {
                        let page = answer::sign_in_page(Some("This token is not valid here."));
                        return Some(Done::new(Ending::Unauthenticated, page));
                    }
                    Ok(None) => return Some(Done::says(Ending::Unauthenticated, &Answer::unauthenticated())),
                    Err(error) => return Some(unavailable(&error)),
                }
            }
            Own::SignOut => own::signed_out(),
            Own::Unknown => Answer::new(StatusCode::NOT_FOUND, "not_found", "the gateway has no such route").json(),
            Own::MakeLink | Own::State | Own::Start | Own::Stop => return None,
        };
        Some(Done::new(Ending::Own, response))
    }

    fn session(&self, caller: &Caller, person: &Person, is_form: bool) -> Response<Payload> {
        match self.sessions.seal_session(&caller.route.key, person, Timestamp::now()) {
            Ok(session) => own::signed_in(&session, is_form),
            Err(error) => Answer::new(StatusCode::BAD_REQUEST, "validation_error", error.to_string()).json(),
        }
    }

    /// Who calls.
    async fn person(&self, caller: &Caller) -> Result<(Credential, Arc<Person>), Done> {
        let now = Timestamp::now();
        let (headers, route) = (&caller.headers, &caller.route);
        let found = identity::credential(headers, route.form, &route.key, &self.sessions, now);
        let Some(credential) = found else { return Err(caller.unauthenticated()) };
        if credential.is_ambient() && !own::from_own_page(&caller.method, headers, caller.upgrade.is_some()) {
            return Err(Done::says(Ending::Forbidden, &Answer::forbidden()));
        }
        match self.identities.person(&credential, now).await {
            Ok(Some(person)) => Ok((credential, person)),
            Ok(None) => Err(caller.unauthenticated()),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// The workspace, if they may connect to it.
    async fn permitted(
        &self,
        caller: &Caller,
        credential: &Credential,
        person: &Arc<Person>,
    ) -> Result<Entry<Reachable>, Done> {
        let forbidden = || Done::says(Ending::Forbidden, &Answer::forbidden());
        let key = &caller.route.key;
        let workspace = self.caches.workspaces.get(key).ok_or_else(forbidden)?;
        let allowed = self.access.allowed(person, credential.digest, key, &workspace.value).await;
        match allowed {
            Ok(true) if workspace.value.exposed => Ok(workspace),
            Ok(true) => {
                let text = "this workspace is not reached through the gateway: its spec.access.exposure says so";
                Err(Done::says(Ending::Forbidden, &Answer::new(StatusCode::FORBIDDEN, "not_exposed", text)))
            }
            Ok(false) => Err(forbidden()),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// Whether whoever opened a stream may still have it. An API server that does not answer takes nothing away.
    pub(super) async fn still_permitted(&self, opened: &Opened) -> bool {
        let person = match self.identities.person(&opened.credential, Timestamp::now()).await {
            Ok(Some(person)) => person,
            Ok(None) => return false,
            Err(_) => return true,
        };
        let workspace = self.caches.workspaces.get(&opened.key);
        let Some(workspace) = workspace.filter(|workspace| workspace.uid == opened.workspace_uid) else { return false };
        self.access.allowed(&person, opened.credential.digest, &opened.key, &workspace.value).await.unwrap_or(true)
    }

    async fn own_route(
        &self,
        own: Own,
        caller: &Caller,
        person: &Person,
        workspace: &Entry<Reachable>,
    ) -> Response<Payload> {
        match own {
            Own::MakeLink => self.make_link(&caller.route, caller.host.as_ref(), person),
            Own::State => Self::state(&workspace.value),
            Own::Start => self.start(&caller.route, workspace).await,
            Own::Stop => self.stop(&caller.route, workspace).await,
            Own::SignIn | Own::SignOut | Own::OpenLink | Own::Unknown => {
                Answer::new(StatusCode::NOT_FOUND, "not_found", "the gateway has no such route").json()
            }
        }
    }
}

/// A request taken apart.
pub(super) struct Caller {
    pub(super) own: Option<Own>,
    pub(super) method: Method,
    pub(super) headers: axum::http::HeaderMap,
    pub(super) query: Option<String>,
    pub(super) route: Route,
    pub(super) host: Option<HeaderValue>,
    pub(super) upgrade: Option<OnUpgrade>,
    pub(super) upload: Upload,
    pub(super) request_id: HeaderValue,
}

impl Caller {
    /// A browser is shown where to sign in, if there is a session to make.
    fn unauthenticated(&self) -> Done {
        let page = self.route.form == Form::Host && self.method == Method::GET && waking::accepts_html(&self.headers);
        let response = if page { answer::sign_in_page(None) } else { Answer::unauthenticated().json() };
        Done::new(Ending::Unauthenticated, response)
    }
}

fn request_id(request: &Request<Incoming>) -> HeaderValue {
    let plain = |id: &&HeaderValue| {
        !id.is_empty() && id.len() <= REQUEST_ID_BYTES && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    let given = request.headers().get(REQUEST_ID).filter(plain).cloned();
    given.unwrap_or_else(|| HeaderValue::try_from(Uuid::now_v7().to_string()).expect("a UUID is a header value"))
}

fn unavailable(error: &ClusterError) -> Done {
    tracing::warn!(error = error as &dyn std::error::Error, "the API server cannot be asked about a caller");
    let text = "who you are and what you may do cannot be checked at present";
    let answer = Answer::new(StatusCode::SERVICE_UNAVAILABLE, "authentication_unavailable", text).after(5);
    Done::says(Ending::Unavailable, &answer)
}
