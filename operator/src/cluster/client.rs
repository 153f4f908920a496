//! How clients of the API server are made: bounded, without hidden retries, one connection each for calls and watches.

use std::{sync::Arc, time::Duration};

use kube::{Client, Config, client::ClientBuilder};

use crate::telemetry::{Freshness, FreshnessLayer, WATCH_TIMEOUT};

/// A TCP and TLS handshake inside a cluster takes milliseconds; five seconds is a dead route.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A watch ends after [`WATCH_TIMEOUT`] at the latest, so a connection that is silent for longer is dead, also when nobody says
/// so: a load balancer that dropped it, a node that is gone. 20 s for a slow list at the end.
const SILENCE: Duration = WATCH_TIMEOUT.saturating_add(Duration::from_secs(20));

/// Client for single calls. Each call brings its own time limit (`Calls`), and an error comes back at once: the client's default
/// of up to 15 silent retries, 1000 s apart, would make a reconcile look hung.
pub fn calls(config: &Config) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(bounded(config))?.build())
}

/// Client for watches: a connection of its own, so that a burst of writes does not delay events, and every answer of the API
/// server is noted in `freshness`.
pub fn watches(config: &Config, freshness: Arc<Freshness>) -> Result<Client, kube::Error> {
    let mut config = bounded(config);
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?.with_layer(&FreshnessLayer::new(freshness)).build())
}

fn bounded(config: &Config) -> Config {
    let mut config = config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config
}
