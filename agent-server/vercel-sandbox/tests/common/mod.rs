//! A client and a double in one process, with a clock that does not wait.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fakes::vercel::{Options, Running, VercelDouble};
use vercel_sandbox::{Builder, Client, Clock, Command, Credentials, Output, RetryPolicy};

pub const TOKEN: &str = "vercel-double-token";
pub const HOME: &str = "/vercel/sandbox";

/// Time moves only by the waits that are asked for, and they end at once.
#[derive(Debug, Default)]
pub struct Jumping(pub AtomicU64);

#[async_trait::async_trait]
impl Clock for Jumping {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    async fn sleep(&self, duration: Duration) {
        self.0.fetch_add(u64::try_from(duration.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

pub struct World {
    pub running: Running,
    pub clock: Arc<Jumping>,
    pub client: Client,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Options::default(), Credentials::token(TOKEN.into(), "team_double", "prj_double")).await
    }

    pub async fn with(options: Options, credentials: Credentials) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let running = VercelDouble::start(options).await.unwrap();
        let clock = Arc::new(Jumping::default());
        let client = builder(&running, credentials, &clock).build().unwrap();
        Self { running, clock, client }
    }

    pub fn double(&self) -> &VercelDouble {
        &self.running.double
    }

    /// How many requests had this method and this text in their target.
    pub fn count(&self, method: &str, text: &str) -> usize {
        self.double().calls().iter().filter(|call| call.method == method && call.target.contains(text)).count()
    }

    pub fn no_rule_was_broken(&self) {
        assert_eq!(self.double().failures(), Vec::<String>::new());
    }
}

pub fn builder(running: &Running, credentials: Credentials, clock: &Arc<Jumping>) -> Builder {
    let policy = RetryPolicy { jitter: false, headers: Duration::from_secs(3), ..RetryPolicy::default() };
    Client::builder(credentials).base(&running.url).clock(Arc::clone(clock) as Arc<dyn Clock>).retry(policy)
}

/// Standard output, standard error and exit code.
pub fn told((output, command): (Vec<Output>, Command)) -> (String, String, Option<i32>) {
    let (mut out, mut err) = (String::new(), String::new());
    for piece in output {
        match piece {
            Output::Stdout(text) => out.push_str(&text),
            Output::Stderr(text) => err.push_str(&text),
        }
    }
    (out, err, command.exit_code)
}
