//! The generation `/v2`, with `/v3` for creation: durable names, and VMs that come and go beneath them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::archive::File;
use crate::commands::CommandRequest;
use crate::error::Error;
use crate::execution::Execution;
use crate::machine::Machine;
use crate::machine::segment;
use crate::policy::NetworkPolicy;
use crate::transport::{Body, Call, Repeat, Transport};
use crate::values::{Create, Page, Route, Sandbox, Session, Snapshot, Stopped};

/// Calls of `/v2` and `/v3`.
#[derive(Clone, Debug)]
pub struct Persistent {
    transport: Arc<Transport>,
}

/// Which durable sandboxes a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Items of a page, at most 50 to be safe.
    pub limit: Option<u32>,
    /// Beginning of the name; the list is sorted by name then.
    pub name_prefix: Option<String>,
    /// One tag.
    pub tag: Option<(String, String)>,
}

/// A change; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Milliseconds that VMs may run.
    pub timeout: Option<u64>,
    /// Whether a stop keeps the files.
    pub persistent: Option<bool>,
    /// Replaces all tags.
    pub tags: Option<BTreeMap<String, String>>,
    /// Replaces all ports.
    pub ports: Option<Vec<u16>>,
    /// Where VMs may connect to.
    pub network_policy: Option<NetworkPolicy>,
    /// What the next VM starts from.
    pub current_snapshot_id: Option<String>,
    /// How many snapshots are kept, 1 to 10.
    pub keep_last_snapshots: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Shown {
    sandbox: Sandbox,
    session: Session,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(default)]
    resumed: bool,
}

#[derive(Deserialize)]
struct OneSandbox {
    sandbox: Sandbox,
}

#[derive(Deserialize)]
struct OneSnapshot {
    snapshot: Snapshot,
}

#[derive(Deserialize)]
struct Listed<T> {
    #[serde(alias = "sandboxes", alias = "sessions", alias = "snapshots")]
    items: Vec<T>,
    pagination: Pagination,
}

#[derive(Deserialize)]
struct Pagination {
    next: Option<String>,
}

fn insert(body: &mut Map<String, Value>, name: &str, value: Value) {
    if !value.is_null() {
        body.insert(name.to_owned(), value);
    }
}

fn body(create: &Create) -> Map<String, Value> {
    let mut body = crate::stable::body(create);
    insert(&mut body, "name", json!(create.name));
    insert(&mut body, "image", json!(create.image));
    insert(&mut body, "persistent", json!(create.persistent));
    insert(&mut body, "snapshotExpiration", json!(create.snapshot_expiration));
    insert(&mut body, "keepLastSnapshots", json!(create.keep_last_snapshots.map(|count| json!({"count": count}))));
    insert(&mut body, "region", json!(create.region));
    insert(&mut body, "networkPolicy", json!(create.network_policy.as_ref().map(NetworkPolicy::persistent)));
    if !create.tags.is_empty() {
        insert(&mut body, "tags", json!(create.tags));
    }
    body
}

fn path(name: &str) -> String {
    format!("/v2/sandboxes/{}", segment(name))
}

impl Persistent {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        Self { transport }
    }

    /// One VM of a durable sandbox.
    pub fn machine(&self, session: &str) -> Machine {
        Machine::new(Arc::clone(&self.transport), false, session)
    }

    fn durable(&self, shown: Shown) -> Durable {
        let current = Current { session: shown.session.id.clone(), routes: shown.routes };
        Durable {
            generation: self.clone(),
            name: shown.sandbox.name.clone(),
            sandbox: shown.sandbox,
            first: shown.session,
            resumed: shown.resumed,
            current: Arc::new(Mutex::new(current)),
        }
    }

    /// A new sandbox with its first VM. A name that is taken is refused with 400.
    pub async fn create(&self, create: &Create) -> Result<Durable, Error> {
        if create.runtime.is_some() && create.image.is_some() {
            return Err(Error::Configuration("a runtime and an image exclude each other".to_owned()));
        }
        let version = if create.runtime.is_some() { "/v2/sandboxes" } else { "/v3/sandboxes" };
        let mut body = body(create);
        body.insert("projectId".to_owned(), json!(self.transport.identity().await?.project));
        let call = Call::post(version, Body::Json(Value::Object(body)), Repeat::IfNothingBegan);
        Ok(self.durable(self.transport.document(&call).await?))
    }

    /// A sandbox by its name. Without `resume` a stopped one stays so.
    pub async fn get(&self, name: &str, resume: bool) -> Result<Durable, Error> {
        Ok(self.durable(self.show(name, resume).await?))
    }

    async fn show(&self, name: &str, resume: bool) -> Result<Shown, Error> {
        let call = Call::get(path(name)).project("projectId").query("resume", resume.to_string());
        // The service holds a resume until the former VM is down.
        self.transport.document(&if resume { call.blocking() } else { call }).await
    }

    /// The sandbox of a name, created if there is none. It is not lost when an answer of the creation is: the name is
    /// looked up again then, as it is when another creator was faster.
    ///
    /// # Errors
    /// [`Error::Configuration`] without a name.
    pub async fn get_or_create(&self, create: &Create) -> Result<Durable, Error> {
        let name =
            create.name.as_deref().ok_or_else(|| Error::Configuration("a name is needed to look for".to_owned()))?;
        match self.get(name, false).await {
            Err(error) if error.is_status(404) => {}
            result => return result,
        }
        let failed = match self.create(create).await {
            Err(error) if error.is_status(400) || matches!(error, Error::OutcomeUnknown(_)) => error,
            result => return result,
        };
        match self.get(name, false).await {
            // The creation failed for another reason than the name.
            Err(error) if error.is_status(404) => Err(failed),
            result => result,
        }
    }

    /// A copy under another name, of what the source's current snapshot holds.
    pub async fn fork(&self, source: &str, create: &Create) -> Result<Durable, Error> {
        if create.source.is_some() || create.runtime.is_some() {
            return Err(Error::Configuration("a fork has its source's content and runtime".to_owned()));
        }
        let mut body = body(create);
        if create.ports.is_empty() {
            body.remove("ports");
        }
        let call =
            Call::post(format!("{}/fork", path(source)), Body::Json(Value::Object(body)), Repeat::IfNothingBegan);
        Ok(self.durable(self.transport.document(&call.project("projectId")).await?))
    }

    /// Changes a sandbox. What a running VM takes of it is the service's matter.
    pub async fn update(&self, name: &str, update: &Update) -> Result<Sandbox, Error> {
        let mut body = Map::new();
        insert(&mut body, "timeout", json!(update.timeout));
        insert(&mut body, "persistent", json!(update.persistent));
        insert(&mut body, "tags", json!(update.tags));
        insert(&mut body, "ports", json!(update.ports));
        insert(&mut body, "networkPolicy", json!(update.network_policy.as_ref().map(NetworkPolicy::persistent)));
        insert(&mut body, "currentSnapshotId", json!(update.current_snapshot_id));
        insert(&mut body, "keepLastSnapshots", json!(update.keep_last_snapshots.map(|count| json!({"count": count}))));
        let call = Call::new(Method::PATCH, path(name), Body::Json(Value::Object(body)), Repeat::Always);
        Ok(self.transport.document::<OneSandbox>(&call.project("projectId")).await?.sandbox)
    }

    /// Deletes a sandbox, on request with the snapshots that no other one uses. Answers whether there was one: a lost
    /// answer is asked for again, and a sandbox that is gone is what was wanted.
    pub async fn delete(&self, name: &str, orphan_snapshots: bool) -> Result<bool, Error> {
        let call = Call::new(Method::DELETE, path(name), Body::None, Repeat::Always).project("projectId");
        let call = call.maybe("deleteOrphanSnapshots", orphan_snapshots.then_some(true));
        match self.transport.document::<OneSandbox>(&call).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_status(404) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One page of sandboxes; `cursor` is the `next` of the page before.
    pub async fn list(&self, query: &ListQuery, cursor: Option<&str>) -> Result<Page<Sandbox, String>, Error> {
        let sort = query.name_prefix.as_ref().map(|_| "name");
        let tag = query.tag.as_ref().map(|(key, value)| format!("{key}:{value}"));
        let call = Call::get("/v2/sandboxes").maybe("limit", query.limit).maybe("sortBy", sort);
        self.page(call.maybe("namePrefix", query.name_prefix.as_ref()).maybe("tags", tag), cursor).await
    }

    /// One page of VMs of a name.
    pub async fn sessions(&self, name: &str, cursor: Option<&str>) -> Result<Page<Session, String>, Error> {
        self.page(Call::get("/v2/sandboxes/sessions").query("name", name), cursor).await
    }

    /// One page of snapshots of a name; deleted ones are among them.
    pub async fn snapshots(&self, name: &str, cursor: Option<&str>) -> Result<Page<Snapshot, String>, Error> {
        self.page(Call::get("/v2/sandboxes/snapshots").query("name", name), cursor).await
    }

    async fn page<T: DeserializeOwned>(&self, call: Call, cursor: Option<&str>) -> Result<Page<T, String>, Error> {
        let Listed { items, pagination } =
            self.transport.document(&call.project("project").maybe("cursor", cursor)).await?;
        Ok(Page { items, next: pagination.next })
    }

    /// Deletes a snapshot; it is answered with the status `deleted`.
    pub async fn delete_snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let path = format!("/v2/sandboxes/snapshots/{}", segment(id));
        let call = Call::new(Method::DELETE, path, Body::None, Repeat::Always);
        Ok(self.transport.document::<OneSnapshot>(&call).await?.snapshot)
    }
}

#[derive(Debug)]
struct Current {
    session: String,
    routes: Vec<Route>,
}

/// A durable sandbox whose calls find a VM: one that is gone is resumed once, for all callers that share this value or
/// its clones, and the call that failed is made once more. A refusal with 410 or 422 means that nothing began, so this
/// holds for commands too.
#[derive(Clone, Debug)]
pub struct Durable {
    generation: Persistent,
    /// Its name.
    pub name: String,
    /// As it was answered when this value was made.
    pub sandbox: Sandbox,
    /// The VM of that time.
    pub first: Session,
    /// Whether getting it resumed it.
    pub resumed: bool,
    current: Arc<Mutex<Current>>,
}

impl Durable {
    /// The VM that calls go to at present.
    pub async fn machine(&self) -> Machine {
        self.generation.machine(&self.current.lock().await.session)
    }

    /// Public addresses of the present VM.
    pub async fn routes(&self) -> Vec<Route> {
        self.current.lock().await.routes.clone()
    }

    /// Makes a call on the present VM, on a resumed one if it is gone.
    pub async fn call<T, F>(&self, mut call: impl FnMut(Machine) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let machine = self.machine().await;
        match call(machine.clone()).await {
            Err(error) if error.asks_for_resume() => call(self.after(&machine).await?).await,
            result => result,
        }
    }

    /// The VM that follows this one. Who waits here for another caller's resume takes what that brought.
    async fn after(&self, gone: &Machine) -> Result<Machine, Error> {
        let mut current = self.current.lock().await;
        if current.session == gone.id() {
            let shown = self.generation.show(&self.name, true).await?;
            *current = Current { session: shown.session.id, routes: shown.routes };
        }
        Ok(self.generation.machine(&current.session))
    }

    /// See [`Machine::run`].
    pub async fn run(&self, request: &CommandRequest) -> Result<Execution, Error> {
        self.call(|machine| async move { machine.run(request).await }).await
    }

    /// See [`Machine::write_files`].
    pub async fn write_files(&self, folder: &str, files: &[File]) -> Result<(), Error> {
        self.call(|machine| async move { machine.write_files(folder, files).await }).await
    }

    /// See [`Machine::read_file`].
    pub async fn read_file(&self, path: &str, largest: usize) -> Result<Option<Bytes>, Error> {
        self.call(|machine| async move { machine.read_file(path, largest).await }).await
    }

    /// See [`Machine::extend`].
    pub async fn extend(&self, milliseconds: u64) -> Result<Session, Error> {
        self.call(|machine| async move { machine.extend(milliseconds).await }).await
    }

    /// See [`Machine::snapshot`].
    pub async fn snapshot(&self, expiration: u64) -> Result<(Snapshot, Session), Error> {
        self.call(|machine| async move { machine.snapshot(expiration).await }).await
    }

    /// Stops the present VM; it never resumes one.
    pub async fn stop(&self) -> Result<Stopped, Error> {
        self.machine().await.stop().await
    }
}
