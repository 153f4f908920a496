//! Building a client.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;

use crate::breaker::Breaker;
use crate::clock::{Clock, SystemClock};
use crate::credentials::Credentials;
use crate::credentials::Source;
use crate::error::Error;
use crate::persistent::Persistent;
use crate::stable::Stable;
use crate::transport::RetryPolicy;
use crate::transport::Transport;

/// Address of the service.
const BASE: &str = "https://vercel.com/api";

/// A client; clones share connections, credentials and breaker.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<Transport>,
}

/// Choices for a [`Client`].
#[derive(Debug)]
pub struct Builder {
    credentials: Credentials,
    base: String,
    clock: Arc<dyn Clock>,
    policy: RetryPolicy,
}

impl Client {
    /// Starts with the service's address, the machine's clock and the usual retries.
    pub fn builder(credentials: Credentials) -> Builder {
        Builder { credentials, base: BASE.to_owned(), clock: Arc::new(SystemClock), policy: RetryPolicy::default() }
    }

    /// The generation whose sandboxes are single VMs.
    pub fn stable(&self) -> Stable {
        Stable::new(Arc::clone(&self.transport))
    }

    /// The generation whose sandboxes have durable names.
    pub fn persistent(&self) -> Persistent {
        Persistent::new(Arc::clone(&self.transport))
    }
}

impl Builder {
    /// Another address, without a slash at its end.
    #[must_use]
    pub fn base(mut self, base: impl Into<String>) -> Self {
        self.base = base.into();
        self
    }

    /// Another clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Other retries and bounds.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The client. A process-wide crypto provider of rustls has to be installed for addresses with `https`.
    ///
    /// # Errors
    /// [`Error::Configuration`] when the address or the TLS set-up is wrong.
    pub fn build(self) -> Result<Client, Error> {
        let base = Url::parse(&self.base).map_err(|error| Error::Configuration(format!("{}: {error}", self.base)))?;
        if base.cannot_be_a_base() {
            return Err(Error::Configuration(format!("{} is no address of a service", self.base)));
        }
        let http = reqwest::Client::builder()
            // A redirect would carry the token elsewhere.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            // Output of a command may be silent for hours; a peer that is gone is found after 30 s and the probes.
            .tcp_keepalive(Duration::from_secs(30))
            .user_agent(concat!("vercel-sandbox-rust/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::Configuration(crate::transport::cause(error)))?;
        let transport = Transport {
            http,
            base,
            source: Source::new(self.credentials),
            clock: self.clock,
            policy: self.policy,
            breaker: Breaker::new(),
        };
        Ok(Client { transport: Arc::new(transport) })
    }
}
