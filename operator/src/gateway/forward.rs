//! One request handed to one pod, and its answer handed back as it comes.
//!
//! Owns when a request may be sent again: never twice unless the pod did not take it, or it changes nothing.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::{io::copy_bidirectional, time::timeout};

use super::{
    answer::Answer,
    body::{Payload, Streamed},
    headers::{self, Told, WORKSPACE_STATE},
    route::{Form, Route},
    streams::{Opened, Streams},
    upload::Upload,
    upstream::{Lease, Target, Unsent, Upstreams},
};
use crate::telemetry::GatewayMetrics;

/// A chat sends its headers at once, a search within seconds; after this the pod hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// Connections that were kept and turn out closed, in a row, before the pod counts as gone.
const STALE_CONNECTIONS: usize = 3;

/// A request on its way, without its body.
pub struct Call {
    /// Method.
    pub method: Method,
    /// Where it goes.
    pub route: Route,
    /// The caller's headers.
    pub headers: HeaderMap,
    /// The caller's side of a WebSocket, if one is asked for.
    pub upgrade: Option<OnUpgrade>,
    /// Host that the caller named.
    pub public_host: Option<HeaderValue>,
    /// Its id.
    pub request_id: HeaderValue,
    /// For streams.
    pub opened: Opened,
}

/// How one attempt ended.
pub enum Attempt {
    /// The pod answered.
    Answered(Response<Payload>),
    /// The pod did not take the request: it can be held and sent again.
    NotServing,
    /// It cannot be sent again.
    Failed(Answer),
}

/// What attempts share.
pub struct Forwarding {
    /// Connections.
    pub upstreams: Arc<Upstreams>,
    /// Open streams.
    pub streams: Arc<Streams>,
    /// Counters.
    pub metrics: Arc<GatewayMetrics>,
}

impl Forwarding {
    /// Sends the request to this pod with this token.
    pub async fn attempt(
        &self,
        call: &mut Call,
        upload: &Upload,
        target: &Target,
        authorization: &HeaderValue,
    ) -> Attempt {
        for _ in 0..=STALE_CONNECTIONS {
            let Some(body) = upload.send() else { return Attempt::Failed(broken()) };
            let mut lease = match self.upstreams.connection(target).await {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::debug!(reason = error.reason(), address = %target.address, "a pod does not answer");
                    return Attempt::NotServing;
                }
            };
            let request = self.request(call, target, authorization).map(|()| body);
            let began = Instant::now();
            match timeout(ANSWER_LIMIT, lease.send(request)).await {
                Ok(Ok(answer)) => {
                    self.metrics.answered(began.elapsed());
                    return self.answered(call, upload, lease, answer);
                }
                Ok(Err(_)) if upload.is_too_large() => return Attempt::Failed(Answer::too_large()),
                Ok(Err(unsent)) => {
                    if !may_send_again(&call.method, &unsent) {
                        return Attempt::Failed(broken());
                    }
                    if !lease.reused {
                        return Attempt::NotServing;
                    }
                }
                Err(_) => {
                    let text = "the workspace did not answer in time";
                    return Attempt::Failed(Answer::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", text));
                }
            }
        }
        Attempt::NotServing
    }

    fn request(&self, call: &Call, target: &Target, authorization: &HeaderValue) -> Request<()> {
        let host = SocketAddr::new(target.address, self.upstreams.port()).to_string();
        let host = HeaderValue::try_from(host).expect("an address is a header value");
        let prefix = match call.route.form {
            Form::Host => None,
            Form::Path => {
                let key = &call.route.key;
                let prefix = format!("/w/{}/{}", key.namespace, key.name);
                Some(HeaderValue::try_from(prefix).expect("names are header values"))
            }
        };
        let mut headers = call.headers.clone();
        let told = Told {
            authorization,
            host: &host,
            public_host: call.public_host.as_ref(),
            prefix: prefix.as_ref(),
            request_id: &call.request_id,
        };
        headers::for_pod(&mut headers, &told);
        let mut request = Request::new(());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = Uri::from(call.route.rest.clone());
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = headers;
        request
    }

    fn answered(&self, call: &mut Call, upload: &Upload, lease: Lease, mut answer: Response<Incoming>) -> Attempt {
        let stopping = answer.status() == StatusCode::SERVICE_UNAVAILABLE
            && answer.headers().get(&WORKSPACE_STATE).is_some_and(|state| state == "stopping");
        if stopping && upload.can_be_sent_again() {
            return Attempt::NotServing;
        }
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switched(call, answer);
        }
        // What has no length ends when somebody ends it.
        let open = hyper::body::Body::size_hint(answer.body()).exact().is_none();
        let open = open.then(|| self.streams.open(call.opened.clone()));
        headers::for_caller(answer.headers_mut(), call.route.form);
        if !answer.headers().contains_key(headers::REQUEST_ID) {
            answer.headers_mut().insert(headers::REQUEST_ID, call.request_id.clone());
        }
        Attempt::Answered(answer.map(|incoming| Payload::Pod(Box::new(Streamed::new(incoming, lease, open)))))
    }

    /// Both sides speak another protocol from here on; bytes go both ways until one side ends, or the right to it.
    fn switched(&self, call: &mut Call, mut answer: Response<Incoming>) -> Attempt {
        let (Some(caller), pod) = (call.upgrade.take(), hyper::upgrade::on(&mut answer)) else {
            return Attempt::Failed(broken());
        };
        let stream = self.streams.open(call.opened.clone());
        tokio::spawn(async move {
            let (caller, pod) = match tokio::try_join!(caller, pod) {
                Ok(both) => both,
                Err(error) => {
                    tracing::debug!(%error, "a change of protocol was not completed");
                    return;
                }
            };
            let (mut caller, mut pod) = (TokioIo::new(caller), TokioIo::new(pod));
            tokio::select! {
                // An error is one side's break; dropping both passes it on.
                _ = copy_bidirectional(&mut caller, &mut pod) => {}
                () = stream.ended() => {}
            }
        });
        headers::for_caller(answer.headers_mut(), call.route.form);
        Attempt::Answered(answer.map(|_| Payload::Own(http_body_util::Full::default())))
    }
}

/// Nothing was sent, or what was sent changes nothing however often it is done.
fn may_send_again(method: &Method, unsent: &Unsent) -> bool {
    unsent.untouched || matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn broken() -> Answer {
    let text = "the workspace broke off before it answered; whether it took the request is not known";
    Answer::new(StatusCode::BAD_GATEWAY, "upstream_broken", text)
}
