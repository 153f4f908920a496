//! Runs the leader election on a thread of its own.

use std::{sync::Arc, thread};

use kube::Config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{Calls, Leases, client_for_calls, rbac::LEASE_NAME},
    leader::{CALL_LIMIT, Candidate, End},
    telemetry::Metrics,
};

/// A running election.
#[derive(Debug)]
pub struct Election {
    /// Whether this replica leads.
    pub leading: watch::Receiver<bool>,
    resign: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl Election {
    /// Starts the thread. `on_lost` is called there when the Lease is lost, and must end the process.
    pub fn start(
        config: &Config,
        namespace: &str,
        identity: &str,
        metrics: &Arc<Metrics>,
        on_lost: fn(),
    ) -> std::io::Result<Self> {
        let (leading_sender, leading) = watch::channel(false);
        let (ended_sender, ended) = watch::channel(false);
        let resign = CancellationToken::new();
        let (config, token) = (config.clone(), resign.clone());
        let (namespace, identity) = (namespace.to_owned(), identity.to_owned());
        let calls = Calls::new(Arc::clone(metrics));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("leader-election".to_owned()).spawn(move || {
            let end = runtime.block_on(async {
                let client = match client_for_calls(&config) {
                    Ok(client) => client,
                    Err(error) => {
                        tracing::error!(error = &error as &dyn std::error::Error, "no client for the leader election");
                        return End::Lost;
                    }
                };
                let leases = Leases::new(client, calls, &namespace, LEASE_NAME, CALL_LIMIT);
                Candidate::new(leases, &identity).run(&leading_sender, &token).await
            });
            if end == End::Lost {
                on_lost();
            }
            ended_sender.send_replace(true);
        })?;
        Ok(Self { leading, resign, ended })
    }

    /// Gives the Lease back, if it is held, and waits for that.
    pub async fn resign(mut self) {
        self.resign.cancel();
        // An error means that the thread is gone, which is as good.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}
