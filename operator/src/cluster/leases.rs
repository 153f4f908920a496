//! Reads and writes of the one Lease of the leader election. What they mean is decided in `leader`.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};

use super::{Calls, ClusterError};
use crate::telemetry::{Kind, Verb};

/// The election's Lease.
#[derive(Clone, Debug)]
pub struct Leases {
    api: Api<Lease>,
    calls: Calls,
    name: String,
    limit: Duration,
}

impl Leases {
    /// The Lease `name` in `namespace`; each call ends within `limit`.
    pub fn new(client: Client, calls: Calls, namespace: &str, name: &str, limit: Duration) -> Self {
        Self { api: Api::namespaced(client, namespace), calls, name: name.to_owned(), limit }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Lease as it is now, if there is one.
    pub async fn get(&self) -> Result<Option<Lease>, ClusterError> {
        self.calls.run_within(self.limit, Kind::Lease, Verb::Get, self.api.get_opt(&self.name)).await
    }

    /// Creates it; `AlreadyExists` when another replica was faster.
    pub async fn create(&self, lease: &Lease) -> Result<Lease, ClusterError> {
        let parameters = PostParams::default();
        self.calls.run_within(self.limit, Kind::Lease, Verb::Create, self.api.create(&parameters, lease)).await
    }

    /// Replaces it on condition of its resourceVersion; `Conflict` when another replica was faster.
    pub async fn replace(&self, lease: &Lease) -> Result<Lease, ClusterError> {
        let parameters = PostParams::default();
        let call = self.api.replace(&self.name, &parameters, lease);
        self.calls.run_within(self.limit, Kind::Lease, Verb::Update, call).await
    }
}
