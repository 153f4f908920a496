//! How clients of the API server are made: bounded, without hidden retries, one connection each for calls and watches.

use std::{sync::Arc, time::Duration};

use kube::{Client, Config, client::ClientBuilder};

use crate::telemetry::{Freshness, FreshnessLayer};

/// A TCP and TLS handshake inside a cluster takes milliseconds; five seconds is a dead route.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client for single calls. Each call brings its own time limit (`Calls`), and an error comes back at once: the client's default
/// of up to 15 silent retries, 1000 s apart, would make a reconcile look hung.
pub fn calls(config: &Config) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(bounded(config))?.build())
}

/// Client for watches: a connection of its own, so that a burst of writes does not delay events, and every answer of the API
/// server is noted in `freshness`.
pub fn watches(config: &Config, freshness: Arc<Freshness>) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(bounded(config))?.with_layer(&FreshnessLayer::new(freshness)).build())
}

fn bounded(config: &Config) -> Config {
    let mut config = config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config
}
