//! Connections to pods.
//!
//! Owns which addresses may be dialled, the proof that the pod behind an address is the expected one, and the connections kept
//! for reuse. An address outlives its pod: another tenant's pod may have it by now, so before its first request each connection
//! must answer `/health` with the UID that the workspace's status names. Kept connections belong to that UID, not to an address.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Request, Response, header::HOST};
use http_body_util::{BodyExt, Either, Empty, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::{TrySendError, http1::SendRequest},
};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::{net::TcpStream, time::timeout};

use super::upload::Sending;

/// Port of the agent server (`docs/contract.md`).
pub const POD_PORT: u16 = 8787;
/// Header of `/health` that names the pod.
const POD_HEADER: &str = "x-boring-agent-pod";
/// Inside a cluster a connection takes a millisecond; the caller tries again anyway.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// `/health` looks at nothing but the process.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);
/// A health answer is some hundred bytes.
const HEALTH_BYTES: usize = 16 * 1024;
/// Kept per pod: more than the parallel requests of one user's pages.
const IDLE_PER_POD: usize = 64;
/// Kept this long without use.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// A connection whose last answer has just ended becomes ready within a few polls of its task.
const SETTLE_LIMIT: Duration = Duration::from_millis(50);
/// An answer's headers, and what is read ahead of a slow caller.
const BUFFER_BYTES: usize = 64 * 1024;

type RequestBody = Either<Sending, Empty<Bytes>>;

/// Where a workspace's pod is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// `status.pod.uid`.
    pub pod_uid: String,
    /// `status.pod.ip`.
    pub address: IpAddr,
}

/// Why a pod does not answer as expected.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The status names an address that no pod can have.
    #[error("{0} is outside of the ranges of pods")]
    Outside(IpAddr),
    /// No connection.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The connection broke, or does not speak HTTP.
    #[error("the connection broke")]
    Broken(#[source] hyper::Error),
    /// Another pod has the address.
    #[error("the address belongs to another pod")]
    AnotherPod,
}

impl UpstreamError {
    /// Stable word for metrics and logs.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Outside(_) => "OutsideOfPodRanges",
            Self::Connect(_) => "ConnectFailed",
            Self::TimedOut => "TimedOut",
            Self::Broken(_) => "Broken",
            Self::AnotherPod => "AnotherPod",
        }
    }
}

struct Idle {
    sender: SendRequest<RequestBody>,
    since: Instant,
}

/// All connections of a gateway.
pub struct Upstreams {
    ranges: Vec<IpNet>,
    port: u16,
    idle: Mutex<HashMap<String, Vec<Idle>>>,
}

impl Upstreams {
    /// Dials only addresses inside `ranges`, at `port`.
    pub fn new(ranges: Vec<IpNet>, port: u16) -> Arc<Self> {
        Arc::new(Self { ranges, port, idle: Mutex::new(HashMap::new()) })
    }

    /// Port that is dialled.
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to this pod: a kept one, or a new one that has proved itself.
    pub async fn connection(self: &Arc<Self>, target: &Target) -> Result<Lease, UpstreamError> {
        while let Some(mut idle) = self.take(&target.pod_uid) {
            let ready =
                idle.sender.is_ready() || matches!(timeout(SETTLE_LIMIT, idle.sender.ready()).await, Ok(Ok(())));
            if ready {
                return Ok(self.lease(&target.pod_uid, idle.sender, true));
            }
        }
        let sender = self.dial(target).await?;
        Ok(self.lease(&target.pod_uid, sender, false))
    }

    fn lease(self: &Arc<Self>, pod_uid: &str, sender: SendRequest<RequestBody>, reused: bool) -> Lease {
        Lease { pool: Arc::clone(self), pod_uid: pod_uid.to_owned(), sender, reused }
    }

    fn take(&self, pod_uid: &str) -> Option<Idle> {
        let mut idle = self.lock();
        let kept = idle.get_mut(pod_uid)?;
        while let Some(last) = kept.pop() {
            if !last.sender.is_closed() && last.since.elapsed() < IDLE_LIMIT {
                return Some(last);
            }
        }
        idle.remove(pod_uid);
        None
    }

    async fn dial(&self, target: &Target) -> Result<SendRequest<RequestBody>, UpstreamError> {
        if !self.ranges.iter().any(|range| range.contains(&target.address)) {
            return Err(UpstreamError::Outside(target.address));
        }
        let address = SocketAddr::new(target.address, self.port);
        let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await.map_err(|_| UpstreamError::TimedOut)?;
        let stream = stream.map_err(UpstreamError::Connect)?;
        stream.set_nodelay(true).map_err(UpstreamError::Connect)?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(UpstreamError::Broken)?;
        // It ends with its last lease, with the pod, or with an upgrade.
        tokio::spawn(connection.with_upgrades());
        timeout(HEALTH_LIMIT, prove(&mut sender, target, address)).await.map_err(|_| UpstreamError::TimedOut)??;
        Ok(sender)
    }

    /// Whether the pod is the expected one and takes requests: one that is stopping still answers `/health`.
    pub async fn serves(self: &Arc<Self>, target: &Target) -> Result<bool, UpstreamError> {
        let mut lease = self.connection(target).await?;
        let asked = ask(&mut lease.sender, "/ready", SocketAddr::new(target.address, self.port));
        let answer = timeout(HEALTH_LIMIT, asked).await.map_err(|_| UpstreamError::TimedOut)??;
        lease.give_back();
        Ok(answer.status().is_success())
    }

    /// Drops connections that were not used for a while; to be called now and then.
    pub fn sweep(&self) {
        self.lock().retain(|_, kept| {
            kept.retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() < IDLE_LIMIT);
            !kept.is_empty()
        });
    }
}

/// Asks `/health`; the connection is good afterwards, or not used.
async fn prove(
    sender: &mut SendRequest<RequestBody>,
    target: &Target,
    address: SocketAddr,
) -> Result<(), UpstreamError> {
    let answer = ask(sender, "/health", address).await?;
    match answer.headers().get(POD_HEADER) {
        Some(uid) if uid.as_bytes() == target.pod_uid.as_bytes() => Ok(()),
        _ => Err(UpstreamError::AnotherPod),
    }
}

/// A request of the gateway itself; afterwards the connection can be used again.
async fn ask(
    sender: &mut SendRequest<RequestBody>,
    path: &'static str,
    address: SocketAddr,
) -> Result<Response<()>, UpstreamError> {
    let request = Request::get(path).header(HOST, address.to_string());
    let request = request.body(Either::Right(Empty::new())).expect("a constant path and an address are valid");
    let (parts, body) = sender.send_request(request).await.map_err(UpstreamError::Broken)?.into_parts();
    // Whoever answers with more than this, or breaks off, is not an agent server.
    Limited::new(body, HEALTH_BYTES).collect().await.map_err(|_| UpstreamError::AnotherPod)?;
    sender.ready().await.map_err(UpstreamError::Broken)?;
    Ok(Response::from_parts(parts, ()))
}

/// A connection in use.
pub struct Lease {
    pool: Arc<Upstreams>,
    pod_uid: String,
    sender: SendRequest<RequestBody>,
    /// Whether it served a request before: then the pod may have closed it meanwhile.
    pub reused: bool,
}

/// A request that got no answer.
pub struct Unsent {
    /// Why.
    pub error: hyper::Error,
    /// Whether not a byte of it was sent.
    pub untouched: bool,
}

impl Lease {
    /// Sends a request; its answer's headers come back as soon as they are there.
    pub async fn send(&mut self, request: Request<Sending>) -> Result<Response<Incoming>, Unsent> {
        let sent = self.sender.try_send_request(request.map(Either::Left)).await;
        sent.map_err(|mut error: TrySendError<Request<RequestBody>>| {
            let untouched = error.take_message().is_some();
            Unsent { error: error.into_error(), untouched }
        })
    }

    /// The answer has ended: the next request may use the connection.
    pub fn give_back(self) {
        if self.sender.is_closed() {
            return;
        }
        let mut idle = self.pool.lock();
        let kept = idle.entry(self.pod_uid).or_default();
        if kept.len() < IDLE_PER_POD {
            kept.push(Idle { sender: self.sender, since: Instant::now() });
        }
    }
}
