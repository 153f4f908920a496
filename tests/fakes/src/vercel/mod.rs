//! A strict double of the Vercel Sandbox API: the generations `/v1`, `/v2` and `/v3` from one store, a clock that only
//! requests and tests move, faults by script. Commands really run, in throw-away folders: there is no isolation, and
//! the text `/vercel/sandbox` in their arguments stands for such a folder. It knows nothing of any client.

mod check;
mod commands;
mod faults;
mod files;
mod named;
mod policy;
mod routes;
mod sessions;
mod snapshots;
mod store;
mod wire;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use faults::{Action, Fault};
use store::Store;

/// Who may call, and what the double allows.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bearer token that is accepted.
    pub token: String,
    /// Team that the token belongs to.
    pub team: String,
    /// Project of that team.
    pub project: String,
    /// Most VMs that may run at one time; one more answers 429.
    pub running: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: "vercel-double-token".to_owned(),
            team: "team_double".to_owned(),
            project: "prj_double".to_owned(),
            running: 1000,
        }
    }
}

/// One request as it arrived.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Call {
    /// Method.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// Body as text; archives are told by their length only.
    pub body: String,
}

/// The double, shared by its connections and by the test.
#[derive(Clone)]
pub struct VercelDouble {
    store: Arc<Mutex<Store>>,
}

impl VercelDouble {
    /// An empty account.
    ///
    /// # Errors
    /// The throw-away folder cannot be made.
    pub fn new(options: Options) -> std::io::Result<Self> {
        Ok(Self { store: Arc::new(Mutex::new(Store::new(options)?)) })
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault to the script; the first one that fits a request is used up.
    pub fn script(&self, fault: Fault) {
        self.store().faults.push(fault);
    }

    /// Moves the clock forward; what expires by that is stopped.
    pub fn advance(&self, milliseconds: u64) {
        let mut store = self.store();
        store.now += milliseconds;
        store.settle();
    }

    /// Accepts another bearer token; the former one is refused from now on.
    pub fn rotate_token(&self, token: &str) {
        token.clone_into(&mut self.store().options.token);
    }

    /// All requests so far.
    pub fn calls(&self) -> Vec<Call> {
        self.store().calls.clone()
    }

    /// Requests that broke the protocol. A test compares this with nothing.
    pub fn failures(&self) -> Vec<String> {
        self.store().failures.clone()
    }

    /// How many VMs run.
    pub fn running(&self) -> usize {
        self.store().running()
    }

    /// Serves connections until `stop` is ready.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()> + Send) {
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let double = self.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let double = double.clone();
                    async move { routes::answer(&double, request.map(Body::new)).await }
                });
                // A broken connection is the client's, or scripted.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    /// Listens on a free port of this machine and serves in a task until the running double is dropped.
    ///
    /// # Errors
    /// No port or no folder.
    pub async fn start(options: Options) -> std::io::Result<Running> {
        let double = Self::new(options)?;
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let served = double.clone();
        let task = tokio::spawn(async move { served.serve(listener, std::future::pending()).await });
        Ok(Running { double, url, task })
    }
}

/// A double that serves; it stops when this is dropped.
pub struct Running {
    /// The double itself.
    pub double: VercelDouble,
    /// Base address, without a slash at its end.
    pub url: String,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
