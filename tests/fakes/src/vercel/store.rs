//! The account: named sandboxes, sessions (VMs), snapshots, commands, and the clock. It knows no HTTP.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tempfile::TempDir;
use tokio::sync::watch;

use super::faults::Fault;
use super::{Call, Options};

/// Folder of a VM in which commands start.
pub const CWD: &str = "/vercel/sandbox";
/// Time of the first request.
const START: u64 = 1_700_000_000_000;
/// Lifetime of a VM whose creator does not say.
pub const TIMEOUT: u64 = 300_000;
/// Longest lifetime of a VM: five hours.
pub const LONGEST: u64 = 5 * 3_600_000;

/// What a creator chose, or the default.
#[derive(Clone, Debug)]
pub struct Config {
    pub ports: Vec<u16>,
    pub timeout: u64,
    pub vcpus: u64,
    pub runtime: String,
    pub image: Option<String>,
    pub env: BTreeMap<String, String>,
    pub policy: Value,
    pub persistent: bool,
    pub tags: Map<String, Value>,
    pub expiration: Option<u64>,
    pub keep_last: Option<Value>,
    pub region: String,
}

/// A durable sandbox.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub config: Config,
    pub created_at: u64,
    pub updated_at: u64,
    pub session: String,
    pub snapshot: Option<String>,
}

/// One VM; without a name it is a sandbox of `/v1`.
#[derive(Clone, Debug)]
pub struct Session {
    pub id: String,
    pub name: Option<String>,
    pub config: Config,
    pub status: &'static str,
    pub created_at: u64,
    pub updated_at: u64,
    pub stopped_at: Option<u64>,
    pub snapshotted_at: Option<u64>,
    pub source: Option<String>,
}

/// A kept file system.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub id: String,
    pub session: String,
    pub name: Option<String>,
    pub parent: Option<String>,
    pub deleted: bool,
    pub size: u64,
    pub created_at: u64,
    pub updated_at: u64,
    pub expires_at: Option<u64>,
}

/// One command and its whole output.
#[derive(Clone, Debug)]
pub struct Command {
    pub id: String,
    pub session: String,
    pub program: String,
    pub args: Vec<String>,
    pub cwd: String,
    pub started_at: u64,
    pub exit: Option<i32>,
    pub process: Option<i32>,
    pub lines: Vec<(&'static str, String)>,
    /// Counts changes, so that readers can wait for the next.
    pub changed: watch::Sender<usize>,
}

/// Everything, behind one lock that is never held across a wait.
pub struct Store {
    pub options: Options,
    pub now: u64,
    pub named: BTreeMap<String, Named>,
    pub sessions: BTreeMap<String, Session>,
    pub snapshots: BTreeMap<String, Snapshot>,
    pub commands: BTreeMap<String, Command>,
    pub faults: Vec<Fault>,
    pub calls: Vec<Call>,
    pub failures: Vec<String>,
    counter: u64,
    folder: TempDir,
}

impl Store {
    pub fn new(options: Options) -> io::Result<Self> {
        Ok(Self {
            options,
            now: START,
            named: BTreeMap::new(),
            sessions: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            commands: BTreeMap::new(),
            faults: Vec::new(),
            calls: Vec::new(),
            failures: Vec::new(),
            counter: 0,
            folder: tempfile::Builder::new().prefix("vercel-double-").tempdir()?,
        })
    }

    /// The next identity: 28 characters after the prefix, in the order of creation.
    pub fn identity(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}_{:028}", self.counter)
    }

    /// The folder that holds the file system of a session or a snapshot.
    pub fn root(&self, id: &str) -> PathBuf {
        self.folder.path().join(id)
    }

    pub fn running(&self) -> usize {
        self.sessions.values().filter(|session| session.status == "running").count()
    }

    /// Starts a VM, from a snapshot if one is named.
    pub fn boot(&mut self, name: Option<String>, config: Config, source: Option<String>) -> io::Result<String> {
        let id = self.identity("sbx");
        let root = self.root(&id);
        if let Some(source) = &source {
            copy(&self.root(source), &root)?;
        }
        std::fs::create_dir_all(root.join(&CWD[1..]))?;
        let now = self.now;
        let session = Session {
            id: id.clone(),
            name,
            config,
            status: "running",
            created_at: now,
            updated_at: now,
            stopped_at: None,
            snapshotted_at: None,
            source,
        };
        self.sessions.insert(id.clone(), session);
        Ok(id)
    }

    /// Keeps the file system of a session.
    pub fn keep(&mut self, session: &str, expiration: Option<u64>) -> io::Result<String> {
        let id = self.identity("snap");
        copy(&self.root(session), &self.root(&id))?;
        let now = self.now;
        let (name, parent) =
            self.sessions.get(session).map(|found| (found.name.clone(), found.source.clone())).unwrap_or_default();
        if let Some(named) = name.as_ref().and_then(|name| self.named.get_mut(name)) {
            named.snapshot = Some(id.clone());
            named.updated_at = now;
        }
        let snapshot = Snapshot {
            id: id.clone(),
            session: session.to_owned(),
            name,
            parent,
            deleted: false,
            size: 4096,
            created_at: now,
            updated_at: now,
            expires_at: expiration.filter(|after| *after > 0).map(|after| now + after),
        };
        self.snapshots.insert(id.clone(), snapshot);
        if let Some(session) = self.sessions.get_mut(session) {
            session.snapshotted_at = Some(now);
        }
        Ok(id)
    }

    /// Ends a VM and its commands; a persistent one is kept first. Answers the snapshot.
    pub fn halt(&mut self, id: &str) -> io::Result<Option<String>> {
        let Some(session) = self.sessions.get(id).cloned() else { return Ok(None) };
        if session.status != "running" {
            return Ok(None);
        }
        self.end_commands(id);
        let keep = session.name.is_some() && session.config.persistent;
        let kept = if keep { Some(self.keep(id, session.config.expiration)?) } else { None };
        self.mark_stopped(id);
        Ok(kept)
    }

    /// Says that a VM is gone.
    pub fn mark_stopped(&mut self, id: &str) {
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(id) {
            session.status = "stopped";
            session.stopped_at = Some(now);
            session.updated_at = now;
        }
    }

    /// Kills what still runs in a VM.
    pub fn end_commands(&mut self, id: &str) {
        for command in self.commands.values().filter(|command| command.session == id) {
            super::commands::signal(command, 9);
        }
    }

    /// Lets what is due happen: VMs and snapshots whose time is over.
    pub fn settle(&mut self) {
        let now = self.now;
        let over: Vec<String> = self
            .sessions
            .values()
            .filter(|session| session.status == "running" && session.created_at + session.config.timeout <= now)
            .map(|session| session.id.clone())
            .collect();
        for id in over {
            if let Err(error) = self.halt(&id) {
                self.failures.push(format!("cannot keep {id}: {error}"));
            }
        }
        for session in self.sessions.values_mut().filter(|session| session.status == "stopping") {
            session.status = "stopped";
            session.stopped_at = Some(now);
        }
        for snapshot in self.snapshots.values_mut() {
            if snapshot.expires_at.is_some_and(|at| at <= now) {
                snapshot.deleted = true;
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for command in self.commands.values() {
            super::commands::signal(command, 9);
        }
    }
}

/// Copies a tree: folders, files with their mode, symbolic links as they are.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
