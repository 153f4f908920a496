//! Values that hold when a field is absent. One table: `plan::valid` reads the constants, the field reference prints [`EFFECTIVE`].

use crate::crd::{RunPolicy, Visibility, WakeMode};

/// `spec.runPolicy`.
pub const RUN_POLICY: RunPolicy = RunPolicy::Always;
/// `spec.lifecycle.wake.mode`.
pub const WAKE_MODE: WakeMode = WakeMode::OnRequest;
/// `spec.lifecycle.wake.timeoutSeconds`: a start with a node to add takes two minutes; proxies in front give up at about that.
pub const WAKE_TIMEOUT_SECONDS: i32 = 120;
/// `spec.access.visibility`.
pub const VISIBILITY: Visibility = Visibility::Owner;
/// `spec.storage.size`.
pub const STORAGE_SIZE: &str = "10Gi";
/// `spec.storage.ephemeral.sizeLimit`.
pub const EPHEMERAL_SIZE_LIMIT: &str = "10Gi";
/// `spec.lifecycle.startTimeoutSeconds`: a large image on a new node is there in ten minutes.
pub const START_TIMEOUT_SECONDS: i32 = 600;
/// `spec.lifecycle.idleTimeoutSeconds`.
pub const IDLE_TIMEOUT_SECONDS: i32 = 1800;
/// `spec.lifecycle.maxBusySeconds`, raised to the idle timeout that holds.
pub const MAX_BUSY_SECONDS: i32 = 14_400;
/// `spec.lifecycle.unhealthyTimeoutSeconds`.
pub const UNHEALTHY_TIMEOUT_SECONDS: i32 = 300;
/// `spec.lifecycle.stopGracePeriodSeconds`.
pub const STOP_GRACE_PERIOD_SECONDS: i32 = 60;
/// `spec.resources.requests`, each lowered to the limit that holds. A server that idles needs less than a tenth of it.
pub const REQUESTS: &[(&str, &str)] = &[("cpu", "100m"), ("memory", "128Mi"), ("ephemeral-storage", "128Mi")];
/// `spec.resources.limits`, each raised to the request that holds. No cpu limit: a compiler that waits for the scheduler
/// helps nobody. Ephemeral storage holds /tmp (1 GiB), /run (64 MiB) and logs.
pub const LIMITS: &[(&str, &str)] = &[("memory", "2Gi"), ("ephemeral-storage", EPHEMERAL_STORAGE_LIMIT)];
/// Limit of ephemeral storage; `storage.ephemeral.sizeLimit` comes on top, since the kubelet counts both.
pub const EPHEMERAL_STORAGE_LIMIT: &str = "2Gi";

/// Field path and what holds when it is absent, in words for the field reference.
pub const EFFECTIVE: &[(&str, &str)] = &[
    ("spec.owner", "nobody but whom the cluster's access review allows"),
    ("spec.runPolicy", "Always"),
    ("spec.agent.image", "the operator's setting (`agentServer.image` of the chart)"),
    (
        "spec.agent.imagePullPolicy",
        "the operator's setting (`agentServer.image.pullPolicy` of the chart, IfNotPresent)",
    ),
    ("spec.agent.model.provider", "anthropic"),
    ("spec.agent.model.id", "the agent server's own default (with provider openai none)"),
    ("spec.agent.model.baseUrl", "the provider's public address"),
    ("spec.resources.requests", "cpu 100m, memory 128Mi, ephemeral-storage 128Mi; each at most the limit that holds"),
    (
        "spec.resources.limits",
        "memory 2Gi, ephemeral-storage 2Gi (plus storage.ephemeral.sizeLimit); each at least the request that holds",
    ),
    ("spec.sandbox.mode", "Direct"),
    ("spec.sandbox.network", "Inherit"),
    ("spec.sandbox.procMount", "Empty"),
    ("spec.sandbox.onUnavailable", "Fail"),
    ("spec.sandbox.limits.memory", "that of all commands"),
    ("spec.sandbox.limits.processes", "512"),
    ("spec.sandbox.limits.workspaceMemory", "75 % of the container's memory"),
    ("spec.sandbox.limits.workspaceProcesses", "four times those of a command"),
    ("spec.sandbox.limits.fileSize", "16Gi"),
    ("spec.sandbox.limits.outputBytes", "8589934592"),
    ("spec.sandbox.limits.timeoutSeconds", "3600"),
    ("spec.storage.size", STORAGE_SIZE),
    ("spec.storage.storageClassName", "the cluster's default StorageClass"),
    ("spec.storage.accessMode", "ReadWriteOnce"),
    ("spec.storage.retention.whenDeleted", "Retain"),
    ("spec.storage.ephemeral.sizeLimit", EPHEMERAL_SIZE_LIMIT),
    ("spec.lifecycle.idleTimeoutSeconds", "1800"),
    ("spec.lifecycle.maxBusySeconds", "14400, or idleTimeoutSeconds when that is more"),
    ("spec.lifecycle.schedules", "none"),
    ("spec.lifecycle.startOnCreate", "Always"),
    ("spec.lifecycle.maxRunSeconds", "no limit"),
    ("spec.lifecycle.expiresAt", "never"),
    ("spec.lifecycle.expirePolicy", "Stop"),
    ("spec.lifecycle.ttlSecondsAfterStopped", "never"),
    ("spec.lifecycle.unhealthyTimeoutSeconds", "300"),
    ("spec.lifecycle.wake.mode", "OnRequest"),
    ("spec.lifecycle.wake.timeoutSeconds", "120"),
    ("spec.agent.settingsRef", "the agent server's own defaults"),
    ("spec.template", "nothing"),
    ("spec.libraries.python", "nothing but what the image holds"),
    ("spec.lifecycle.startTimeoutSeconds", "600"),
    ("spec.lifecycle.stopGracePeriodSeconds", "60"),
    ("spec.lifecycle.failurePolicy", "Recreate"),
    (
        "spec.access.exposure",
        "Gateway when the operator is told where one is (`gateway.enabled` of the chart), else ClusterLocal",
    ),
    ("spec.access.visibility", "Owner"),
];
