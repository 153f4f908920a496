//! `spec.runPolicy` and `spec.lifecycle`, read: when the workspace runs. Apart from the rest of the spec, since a workspace whose image or
//! credentials cannot be used must still stop, sleep and expire.

use jiff::Timestamp;

use crate::crd::{AgentWorkspaceSpec, ExpirePolicy, FailurePolicy, Lifecycle, Reason, RunPolicy, StartOnCreate};

use super::{builtin, schedule::Schedule, valid::Invalid};

/// When the workspace runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Whether it runs.
    pub run_policy: RunPolicy,
    /// Seconds without use until it sleeps; `None`: never.
    pub idle_timeout_seconds: Option<i64>,
    /// Longest veto of work or of silence.
    pub max_busy_seconds: i64,
    /// Times of start and sleep.
    pub schedules: Vec<Schedule>,
    /// Whether a new workspace starts at once.
    pub start_on_create: StartOnCreate,
    /// Seconds until a start counts as stalled.
    pub start_timeout_seconds: u32,
    /// Grace period of the pod in seconds.
    pub stop_grace_period_seconds: u32,
    /// Longest run; `None`: no limit.
    pub max_run_seconds: Option<i64>,
    /// When it is stopped for good.
    pub expires_at: Option<Timestamp>,
    /// What happens then.
    pub expire_policy: ExpirePolicy,
    /// Seconds in phase Stopped until it is deleted; `None`: never.
    pub ttl_seconds: Option<i64>,
    /// Answer to failures.
    pub failure_policy: FailurePolicy,
    /// Seconds until a pod that lost its readiness is created again.
    pub unhealthy_timeout_seconds: i64,
}

/// The run policy that holds.
pub fn run_policy(spec: &AgentWorkspaceSpec) -> RunPolicy {
    spec.run_policy.unwrap_or(builtin::RUN_POLICY)
}

impl Life {
    /// The life of a workspace that is Stopped and whose other times cannot be read.
    pub fn stopped() -> Self {
        let spec = AgentWorkspaceSpec { run_policy: Some(RunPolicy::Stopped), ..AgentWorkspaceSpec::default() };
        Self::parse(&spec).expect("the built-in values are valid")
    }

    /// Reads it. What the schema refuses is refused here too: objects may have been stored under an older one.
    pub fn parse(spec: &AgentWorkspaceSpec) -> Result<Self, Invalid> {
        let raw = spec.lifecycle.clone().unwrap_or_default();
        let idle = at_least("idleTimeoutSeconds", raw.idle_timeout_seconds, builtin::IDLE_TIMEOUT_SECONDS, 0)?;
        if (1..60).contains(&idle) {
            return Err(invalid("idleTimeoutSeconds must be 0 (never) or at least 60"));
        }
        let max_busy = at_least("maxBusySeconds", raw.max_busy_seconds, builtin::MAX_BUSY_SECONDS.max(idle), 60)?;
        if i64::from(max_busy) < i64::from(idle) {
            return Err(invalid("maxBusySeconds must be at least idleTimeoutSeconds"));
        }
        let optional =
            |field, value: Option<i32>| value.map(|value| at_least(field, Some(value), value, 60)).transpose();
        Ok(Self {
            run_policy: run_policy(spec),
            idle_timeout_seconds: (idle > 0).then_some(i64::from(idle)),
            max_busy_seconds: i64::from(max_busy),
            schedules: schedules(&raw)?,
            start_on_create: raw.start_on_create.unwrap_or(StartOnCreate::Always),
            start_timeout_seconds: unsigned(at_least(
                "startTimeoutSeconds",
                raw.start_timeout_seconds,
                builtin::START_TIMEOUT_SECONDS,
                10,
            )?),
            stop_grace_period_seconds: unsigned(at_least(
                "stopGracePeriodSeconds",
                raw.stop_grace_period_seconds,
                builtin::STOP_GRACE_PERIOD_SECONDS,
                10,
            )?),
            max_run_seconds: optional("maxRunSeconds", raw.max_run_seconds)?.map(i64::from),
            expires_at: raw.expires_at.map(|time| time.0),
            expire_policy: raw.expire_policy.unwrap_or(ExpirePolicy::Stop),
            ttl_seconds: optional("ttlSecondsAfterStopped", raw.ttl_seconds_after_stopped)?.map(i64::from),
            failure_policy: raw.failure_policy.unwrap_or(FailurePolicy::Recreate),
            unhealthy_timeout_seconds: i64::from(at_least(
                "unhealthyTimeoutSeconds",
                raw.unhealthy_timeout_seconds,
                builtin::UNHEALTHY_TIMEOUT_SECONDS,
                30,
            )?),
        })
    }
}

fn schedules(raw: &Lifecycle) -> Result<Vec<Schedule>, Invalid> {
    let mut schedules = Vec::new();
    for one in &raw.schedules {
        schedules.extend(Schedule::parse(one).map_err(invalid)?);
    }
    Ok(schedules)
}

fn invalid(message: impl AsRef<str>) -> Invalid {
    Invalid { reason: Reason::InvalidSpec, message: format!("spec.lifecycle: {}", message.as_ref()) }
}

fn at_least(field: &str, value: Option<i32>, built_in: i32, least: i32) -> Result<i32, Invalid> {
    let value = value.unwrap_or(built_in);
    if value < least { Err(invalid(format!("{field} must be at least {least}"))) } else { Ok(value) }
}

fn unsigned(seconds: i32) -> u32 {
    u32::try_from(seconds).unwrap_or(0)
}
