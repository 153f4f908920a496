//! What the service answers and what a creation says. Answers are read leniently: unknown fields are skipped, unknown
//! states are kept as such.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policy::NetworkPolicy;
use crate::redacted::Redacted;

/// State of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Being started.
    Pending,
    /// Usable.
    Running,
    /// Being stopped.
    Stopping,
    /// Ended.
    Stopped,
    /// Could not start or broke.
    Failed,
    /// Ended by the service.
    Aborted,
    /// Its files are being kept; it ends then.
    Snapshotting,
    /// A state that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Status {
    /// Whether the VM will never run again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed | Self::Aborted)
    }
}

/// One VM: a sandbox of `/v1`, a session of `/v2`. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Identity, `sbx_…`.
    pub id: String,
    /// State.
    pub status: Status,
    /// Milliseconds that it may run from its start.
    pub timeout: u64,
    /// Folder in which commands start.
    pub cwd: String,
    /// Creation.
    pub created_at: u64,
    /// Start.
    pub started_at: Option<u64>,
    /// End.
    pub stopped_at: Option<u64>,
    /// Snapshot that it started from.
    pub source_snapshot_id: Option<String>,
    /// Processors.
    pub vcpus: Option<f64>,
    /// Memory in MB.
    pub memory: Option<f64>,
    /// Processor time used, once stopped.
    pub active_cpu_duration_ms: Option<f64>,
    /// The policy in the service's own form; values of headers are never in it.
    pub network_policy: Option<Value>,
}

impl Session {
    /// When the service ends it.
    pub fn deadline(&self) -> u64 {
        self.started_at.unwrap_or(self.created_at).saturating_add(self.timeout)
    }
}

/// A durable sandbox.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Name, unique in its project.
    pub name: String,
    /// Whether a stop keeps its files.
    pub persistent: bool,
    /// State of its present VM.
    pub status: Status,
    /// Its present or last VM.
    pub current_session_id: String,
    /// What the next VM starts from.
    pub current_snapshot_id: Option<String>,
    /// Creation.
    pub created_at: u64,
    /// Last change.
    pub updated_at: u64,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// Public address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Route {
    /// Address.
    pub url: String,
    /// First label of its host below `vercel.run`.
    pub subdomain: String,
    /// Port in the VM.
    pub port: u16,
}

/// A kept file system.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Identity, `snap_…`.
    pub id: String,
    /// VM that it was taken of.
    #[serde(alias = "sourceSandboxId")]
    pub source_session_id: String,
    /// `created`, `deleted` or `failed`.
    pub status: String,
    /// Size.
    pub size_bytes: u64,
    /// Creation.
    pub created_at: u64,
    /// When the service deletes it.
    pub expires_at: Option<u64>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// Identity, `cmd_…`.
    pub id: String,
    /// Program.
    pub name: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Folder that it started in.
    pub cwd: String,
    /// Exit code once it has ended; 128 and the signal's number when one ended it.
    pub exit_code: Option<i32>,
}

/// What a stop answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// The VM; in `/v1` it may still be stopping.
    pub session: Session,
    /// What was kept of a persistent one.
    pub snapshot: Option<Snapshot>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T, N> {
    /// Its items.
    pub items: Vec<T>,
    /// Where the next one begins.
    pub next: Option<N>,
}

/// Size of a VM; each processor brings 2048 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Processors.
    pub vcpus: u32,
}

/// What a VM starts with; without one it starts empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Source {
    /// A clone.
    Git {
        /// Address.
        url: String,
        /// Number of commits.
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<u32>,
        /// Commit, branch or tag.
        #[serde(skip_serializing_if = "Option::is_none")]
        revision: Option<String>,
        /// User, with a password or token.
        #[serde(skip_serializing_if = "Option::is_none")]
        username: Option<String>,
        /// Password or token.
        #[serde(skip_serializing_if = "Option::is_none")]
        password: Option<Redacted>,
    },
    /// An archive.
    Tarball {
        /// Address.
        url: String,
    },
    /// A snapshot.
    Snapshot {
        /// Its identity.
        snapshot_id: String,
    },
}

/// What a new sandbox is like; what is `None` is the service's default. `/v1` takes no name, tags, image, persistence or
/// retention.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Create {
    /// Durable name.
    pub name: Option<String>,
    /// Ports that get a public address.
    pub ports: Vec<u16>,
    /// Content at the start.
    pub source: Option<Source>,
    /// Milliseconds that a VM may run.
    pub timeout: Option<u64>,
    /// Size.
    pub resources: Option<Resources>,
    /// Language environment of the older kind; with it `/v2` creates, else `/v3`.
    pub runtime: Option<String>,
    /// Image; excludes a runtime.
    pub image: Option<String>,
    /// Where it may connect to.
    pub network_policy: Option<NetworkPolicy>,
    /// Environment of all commands.
    pub env: BTreeMap<String, Redacted>,
    /// Whether a stop keeps its files.
    pub persistent: Option<bool>,
    /// At most five.
    pub tags: BTreeMap<String, String>,
    /// Milliseconds that its snapshots are kept; 0 is for ever.
    pub snapshot_expiration: Option<u64>,
    /// How many snapshots are kept, 1 to 10.
    pub keep_last_snapshots: Option<u32>,
    /// Region.
    pub region: Option<String>,
}
