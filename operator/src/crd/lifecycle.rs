//! When a workspace runs: `spec.runPolicy` and `spec.lifecycle`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the workspace runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RunPolicy {
    /// The workspace sleeps when nobody uses it; a request or a schedule starts it.
    OnDemand,
    /// The workspace runs until this field says otherwise.
    Always,
    /// The workspace has no pod; files and history stay.
    Stopped,
}

/// Time limits and the answer to failures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Seconds without use after which a workspace with runPolicy OnDemand goes to sleep: 0 for never, else at least 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub idle_timeout_seconds: Option<i32>,
    /// Longest time that work without a pause, or a server that does not answer, can keep the workspace from being put to
    /// sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 2_592_000))]
    pub max_busy_seconds: Option<i32>,
    /// Times at which a workspace with runPolicy OnDemand is started or put to sleep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub schedules: Vec<Schedule>,
    /// What requests through the gateway do to a workspace with runPolicy OnDemand that sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<WakePolicy>,
    /// Whether a new workspace with runPolicy OnDemand starts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_on_create: Option<StartOnCreate>,
    /// Seconds a start may take before it is reported as stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub start_timeout_seconds: Option<i32>,
    /// Seconds that running turns and commands get at a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 3600))]
    pub stop_grace_period_seconds: Option<i32>,
    /// Seconds after which a workspace with runPolicy OnDemand is put to sleep whatever it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 31_536_000))]
    pub max_run_seconds: Option<i32>,
    /// Time at which the workspace is stopped for good, whatever the run policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// What happens at `expiresAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_policy: Option<ExpirePolicy>,
    /// Seconds in phase Stopped (never Sleeping) after which the workspace is deleted; what becomes of its volume says
    /// `storage.retention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 315_360_000))]
    pub ttl_seconds_after_stopped: Option<i32>,
    /// What happens when the pod fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Seconds after which a pod that was Ready and is not any more is created again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86400))]
    pub unhealthy_timeout_seconds: Option<i32>,
}

/// Times at which the workspace is started or put to sleep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Name of the schedule.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// When it is started: minute, hour, day of the month, month, day of the week.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128))]
    pub start: Option<String>,
    /// When it is put to sleep; work that is going on is waited for, up to `maxBusySeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128))]
    pub stop: Option<String>,
    /// Time zone by its name in the IANA database, such as Europe/Berlin; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
}

/// What requests do to a workspace that sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WakePolicy {
    /// Whether requests wake it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<WakeMode>,
    /// Seconds that a request waits for it; then it is told to come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: Option<i32>,
}

/// Whether requests wake a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WakeMode {
    /// They do, but those that pages send by themselves.
    OnRequest,
    /// Only an explicit start does.
    Manual,
}

/// Whether a new workspace starts at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StartOnCreate {
    /// At once.
    Always,
    /// When the first request comes.
    OnFirstRequest,
}

/// What happens when a workspace expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExpirePolicy {
    /// It is stopped and stays.
    Stop,
    /// It is deleted.
    Delete,
}

/// What happens when the pod fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// It is created again, after a pause that grows from 5 seconds to 5 minutes.
    Recreate,
    /// It stays, and the workspace is in phase Failed until it is stopped or changed.
    Ignore,
}
