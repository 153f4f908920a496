//! The only place that talks to the API server.
//!
//! Owns clients, caches, every read and every write, each bounded in time and counted. Decides nothing: what to write comes from
//! `plan`, when from `reconcile`.

mod cache;
mod calls;
mod client;
mod error;
mod events;
mod gateway_keys;
mod keys;
mod leases;
mod observe;
mod ownership;
mod people;
pub mod rbac;
mod reachable;
mod reviews;
mod status_patch;
mod views;
mod watch;
mod watches;
mod workspaces;
mod write;

use std::sync::Arc;

use kube::Client;

pub use cache::{Cache, Entry, WorkspaceKey};
pub use calls::{Calls, READ_LIMIT, WRITE_LIMIT};
pub use error::ClusterError;
pub use events::Publisher;
pub use gateway_keys::GatewayKeys;
pub use keys::{Keys, KeysError, StoredKeys};
pub use leases::Leases;
pub use observe::Workspace;
pub use people::{account_token, get_workspace, list_workspaces};
pub use reachable::{GatewayCaches, Reachable, WATCHED_BY_GATEWAY, WakeView, Wakes};
pub use reviews::{Person, Reviews};
pub use views::{Child, Wake};
pub use watches::{Caches, WATCHED};
pub use workspaces::{RunningPod, running_pod};

pub use client::{calls as client_for_calls, watches as client_for_watches};

/// Access to the cluster for one controller: caches to read, a client to write.
pub struct Cluster {
    client: Client,
    calls: Calls,
    caches: Arc<Caches>,
    publisher: Publisher,
    classes: observe::StorageClasses,
    model_services: observe::ModelServices,
}

impl Cluster {
    /// Writes and reads live with `client`; `instance` is the pod's name in events.
    pub fn new(client: Client, calls: Calls, caches: Arc<Caches>, instance: &str) -> Self {
        let publisher = Publisher::new(client.clone(), calls.clone(), instance);
        let (classes, model_services) = (observe::StorageClasses::default(), observe::ModelServices::default());
        Self { client, calls, caches, publisher, classes, model_services }
    }

    /// The caches.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }
}

#[cfg(test)]
mod tests;
