//! The generation `/v1`: sandboxes are single VMs with an id.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::machine::Machine;
use crate::machine::{Shown, segment};
use crate::transport::{Body, Call, Repeat, Transport};
use crate::values::{Create, Page, Route, Session, Snapshot};

/// Calls of `/v1`.
#[derive(Clone, Debug)]
pub struct Stable {
    transport: Arc<Transport>,
}

#[derive(Deserialize)]
struct Listed<T> {
    #[serde(alias = "sandboxes", alias = "snapshots")]
    items: Vec<T>,
    pagination: Pagination,
}

#[derive(Deserialize)]
struct Pagination {
    next: Option<u64>,
}

#[derive(Deserialize)]
struct OneSnapshot {
    snapshot: Snapshot,
}

/// The members that both generations of creation know.
pub(crate) fn body(create: &Create) -> Map<String, Value> {
    let mut body = Map::from_iter([("ports".to_owned(), json!(create.ports))]);
    let mut add = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    add("source", json!(create.source));
    add("timeout", json!(create.timeout));
    add("resources", json!(create.resources));
    add("runtime", json!(create.runtime));
    if !create.env.is_empty() {
        add("env", json!(create.env));
    }
    body
}

impl Stable {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        Self { transport }
    }

    /// A VM that exists.
    pub fn machine(&self, id: &str) -> Machine {
        Machine::new(Arc::clone(&self.transport), true, id)
    }

    /// A new VM.
    ///
    /// # Errors
    /// [`Error::Configuration`] when a member is set that this generation does not have.
    pub async fn create(&self, create: &Create) -> Result<(Machine, Session, Vec<Route>), Error> {
        let later = create.name.is_some()
            || create.image.is_some()
            || create.persistent.is_some()
            || create.snapshot_expiration.is_some()
            || create.keep_last_snapshots.is_some()
            || create.region.is_some()
            || !create.tags.is_empty();
        if later {
            let message = "/v1 has no name, image, persistence, retention, region or tags";
            return Err(Error::Configuration(message.to_owned()));
        }
        let mut body = body(create);
        body.insert("projectId".to_owned(), json!(self.transport.identity().await?.project));
        if let Some(policy) = &create.network_policy {
            body.insert("networkPolicy".to_owned(), policy.stable());
        }
        let call = Call::post("/v1/sandboxes", Body::Json(Value::Object(body)), Repeat::IfNothingBegan);
        let Shown { session, routes } = self.transport.document(&call).await?;
        Ok((self.machine(&session.id), session, routes))
    }

    /// One page of VMs, newest first; `until` is the `next` of the page before.
    pub async fn list(&self, limit: u32, until: Option<u64>) -> Result<Page<Session, u64>, Error> {
        self.page("/v1/sandboxes", limit, until).await
    }

    /// One page of snapshots, newest first.
    pub async fn snapshots(&self, limit: u32, until: Option<u64>) -> Result<Page<Snapshot, u64>, Error> {
        self.page("/v1/sandboxes/snapshots", limit, until).await
    }

    async fn page<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        limit: u32,
        until: Option<u64>,
    ) -> Result<Page<T, u64>, Error> {
        let call = Call::get(path).project("project").query("limit", limit.to_string()).maybe("until", until);
        let Listed { items, pagination } = self.transport.document(&call).await?;
        Ok(Page { items, next: pagination.next })
    }

    /// One snapshot.
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let call = Call::get(format!("/v1/sandboxes/snapshots/{}", segment(id)));
        Ok(self.transport.document::<OneSnapshot>(&call).await?.snapshot)
    }

    /// Deletes a snapshot; it is answered with the status `deleted`.
    pub async fn delete_snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let path = format!("/v1/sandboxes/snapshots/{}", segment(id));
        let call = Call::new(reqwest::Method::DELETE, path, Body::None, Repeat::Always);
        Ok(self.transport.document::<OneSnapshot>(&call).await?.snapshot)
    }
}
