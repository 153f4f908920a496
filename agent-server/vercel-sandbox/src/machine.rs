//! One VM, the same in both generations but for paths and words. It never resumes anything.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::archive;
use crate::archive::File;
use crate::commands::CommandRequest;
use crate::error::Error;
use crate::policy::NetworkPolicy;
use crate::transport;
use crate::transport::{Body, Call, Repeat, Transport};
use crate::values::{Command, Route, Session, Snapshot, Stopped};

/// What is encoded in a segment: all but letters, digits and the marks that need it nowhere.
const RESERVED: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A VM by its identity. Its calls fail with 410 or 422 when it does not run.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) transport: Arc<Transport>,
    pub(crate) first_generation: bool,
    id: String,
    path: String,
}

#[derive(Deserialize)]
pub(crate) struct Shown {
    #[serde(alias = "sandbox")]
    pub session: Session,
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// A stop in `/v2` answers the durable sandbox too, so the words of the two generations are kept apart.
#[derive(Deserialize)]
struct Answered {
    session: Option<Session>,
    sandbox: Option<Value>,
    snapshot: Option<Snapshot>,
}

#[derive(Deserialize)]
struct OneCommand {
    command: Command,
}

impl Machine {
    pub(crate) fn new(transport: Arc<Transport>, first_generation: bool, id: &str) -> Self {
        let folder = if first_generation { "/v1/sandboxes" } else { "/v2/sandboxes/sessions" };
        let path = format!("{folder}/{}", segment(id));
        Self { transport, first_generation, id: id.to_owned(), path }
    }

    /// Its identity.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn post(&self, rest: &str, body: Body, repeat: Repeat) -> Call {
        Call::post(format!("{}{rest}", self.path), body, repeat)
    }

    /// Its present state and public addresses.
    pub async fn get(&self) -> Result<(Session, Vec<Route>), Error> {
        let shown: Shown = self.transport.document(&Call::get(self.path.clone())).await?;
        Ok((shown.session, shown.routes))
    }

    /// Starts a command and does not wait for it.
    pub async fn start(&self, request: &CommandRequest) -> Result<Command, Error> {
        let call = self.post("/cmd", Body::Json(request.body(self.first_generation, false)), Repeat::IfNothingBegan);
        Ok(self.transport.document::<OneCommand>(&call).await?.command)
    }

    pub(crate) async fn start_streamed(&self, request: &CommandRequest) -> Result<reqwest::Response, Error> {
        let body = Body::Json(request.body(self.first_generation, true));
        let response = self.transport.send(&self.post("/cmd", body, Repeat::IfNothingBegan)).await?;
        transport::expect(&response, Some("application/x-ndjson"))?;
        Ok(response)
    }

    pub(crate) async fn log_stream(&self, command: &str) -> Result<reqwest::Response, Error> {
        let call = Call::get(format!("{}/cmd/{}/logs", self.path, segment(command)));
        let response = self.transport.send(&call).await?;
        transport::expect(&response, Some("application/x-ndjson"))?;
        Ok(response)
    }

    /// A command's present state.
    pub async fn command(&self, command: &str) -> Result<Command, Error> {
        let call = Call::get(format!("{}/cmd/{}", self.path, segment(command)));
        Ok(self.transport.document::<OneCommand>(&call).await?.command)
    }

    /// Waits until a command has ended.
    pub async fn wait(&self, command: &str) -> Result<Command, Error> {
        let call = Call::get(format!("{}/cmd/{}", self.path, segment(command))).query("wait", "true").blocking();
        Ok(self.transport.document::<OneCommand>(&call).await?.command)
    }

    /// Sends a signal to a command, by its number.
    pub async fn kill(&self, command: &str, signal: i32) -> Result<Command, Error> {
        let folder = if self.first_generation { "" } else { "/cmd" };
        let rest = format!("{folder}/{}/kill", segment(command));
        let call = self.post(&rest, Body::Json(json!({"signal": signal})), Repeat::Always);
        Ok(self.transport.document::<OneCommand>(&call).await?.command)
    }

    /// Writes files below an absolute folder, with their parents. Repeating it changes nothing.
    pub async fn write_files(&self, folder: &str, files: &[File]) -> Result<(), Error> {
        let body = Body::Archive { folder: folder.to_owned(), content: archive::pack(files)? };
        self.transport.document::<Value>(&self.post("/fs/write", body, Repeat::Always)).await.map(drop)
    }

    /// A file's content, or `None` when there is no such file.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when it has more than `largest` bytes.
    pub async fn read_file(&self, path: &str, largest: usize) -> Result<Option<Bytes>, Error> {
        let call = self.post("/fs/read", Body::Json(json!({"path": path})), Repeat::Always);
        match self.transport.content(&call, largest, Some("application/octet-stream")).await {
            Ok(content) => Ok(Some(content)),
            // The 404 of an absent VM looks alike: the VM is asked before a file counts as absent.
            Err(error) if error.is_status(404) => self.get().await.map(|_| None),
            Err(error) => Err(error),
        }
    }

    /// Makes one folder; its parent must be there, itself not.
    pub async fn make_folder(&self, path: &str) -> Result<(), Error> {
        let call = self.post("/fs/mkdir", Body::Json(json!({"path": path})), Repeat::IfNothingBegan);
        self.transport.document::<Value>(&call).await.map(drop)
    }

    /// Stops it. In `/v1` it may still be stopping when this returns.
    pub async fn stop(&self) -> Result<Stopped, Error> {
        let answered = self.transport.document(&self.post("/stop", Body::None, Repeat::Always).blocking()).await?;
        let (session, snapshot) = taken(answered)?;
        Ok(Stopped { session, snapshot })
    }

    /// Lets it run so many milliseconds longer.
    pub async fn extend(&self, milliseconds: u64) -> Result<Session, Error> {
        let body = Body::Json(json!({"duration": milliseconds}));
        self.changed("/extend-timeout", body, Repeat::IfNothingBegan).await
    }

    /// Replaces where it may connect to.
    pub async fn set_network_policy(&self, policy: &NetworkPolicy) -> Result<Session, Error> {
        let sent = if self.first_generation { policy.stable() } else { policy.persistent() };
        self.changed("/network-policy", Body::Json(sent), Repeat::Always).await
    }

    async fn changed(&self, rest: &str, body: Body, repeat: Repeat) -> Result<Session, Error> {
        Ok(taken(self.transport.document(&self.post(rest, body, repeat)).await?)?.0)
    }

    /// Keeps its files, which stops it. `expiration` is in milliseconds, 0 for ever.
    pub async fn snapshot(&self, expiration: u64) -> Result<(Snapshot, Session), Error> {
        let body = Body::Json(json!({"expiration": expiration}));
        let call = self.post("/snapshot", body, Repeat::IfNothingBegan).blocking();
        let (session, snapshot) = taken(self.transport.document(&call).await?)?;
        let snapshot = snapshot.ok_or_else(|| Error::Protocol("the answer has no snapshot".to_owned()))?;
        Ok((snapshot, session))
    }
}

fn taken(answered: Answered) -> Result<(Session, Option<Snapshot>), Error> {
    let session = match (answered.session, answered.sandbox) {
        (Some(session), _) => session,
        (None, Some(sandbox)) => serde_json::from_value(sandbox).map_err(|error| Error::Protocol(error.to_string()))?,
        (None, None) => return Err(Error::Protocol("the answer has no VM".to_owned())),
    };
    Ok((session, answered.snapshot))
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, RESERVED).to_string()
}
