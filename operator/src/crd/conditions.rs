//! The words in `status.conditions`. One list: the same reason word is used for condition, event and metric.

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every word, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it is written in objects, events and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Type of a condition of an AgentWorkspace.
    ConditionType {
        /// The state is the wanted one and the contract holds: reason Running or Stopped.
        Ready,
        /// The pod is up and its agent server answers.
        Running,
        /// The volume can be used.
        StorageReady,
        /// Commands can be run in the wanted sandbox.
        SandboxReady,
        /// Chat can be answered.
        AgentReady,
        /// A newer rendering of the pod waits for the next start. Present only when true.
        UpdateAvailable,
        /// The agent server does not say whether it is in use. Present only when true.
        ActivityUnknown,
        /// The workspace expires, or is deleted, within a day. Present only when true.
        ExpiringSoon,
        /// kstatus: converging. Present only when true.
        Reconciling,
        /// kstatus: does not converge without a person. Present only when true.
        Stalled,
    }
}

words! {
    /// Reason of a condition, an event or a failed write.
    Reason {
        /// A start was decided, the pod is on its way.
        Starting,
        /// The pod is Ready.
        Running,
        /// A stop was decided, the pod is still there.
        Stopping,
        /// No pod, as wanted.
        Stopped,
        /// No pod, since nobody uses it; the next request starts it.
        Sleeping,
        /// A request started it.
        Woken,
        /// Nobody used it, so it is put to sleep.
        StoppedIdle,
        /// The agent server does not say whether it is in use.
        ActivityUnknown,
        /// It expires, or is deleted, within a day.
        ExpiringSoon,
        /// It has expired and is deleted.
        Expired,
        /// The workspace is being deleted.
        Terminating,
        /// The pod ran and is not Ready now.
        NotReady,
        /// Everything is as it should be.
        Available,
        /// Waiting for the pod to report.
        Pending,
        /// The pod failed and is created again after a pause.
        Restarting,
        /// The agent server ended by itself again and again.
        CrashLoop,
        /// The agent server refused its configuration (exit code 78).
        ConfigRejected,
        /// The pod failed and `failurePolicy: Ignore` says to leave it.
        PodFailed,
        /// A container exceeded its memory limit.
        OutOfMemory,
        /// The pod was taken away by its node or by the scheduler.
        NodeDrain,
        /// The pod had to give way to one of higher priority.
        Preempted,
        /// The pod was Ready and did not become so again.
        AgentUnresponsive,
        /// The pod's node is not ready or gone, and so the pod does not end.
        NodeLost,
        /// The pod was deleted by somebody else.
        PodDeleted,
        /// The pod should have been gone by now: its node does not report its end, or a finalizer holds it.
        PodTerminating,
        /// The image cannot be pulled.
        ImagePull,
        /// No node takes the pod at present.
        Unschedulable,
        /// A quota of the namespace is exhausted.
        QuotaExceeded,
        /// A Secret, or a key in it, does not exist.
        SecretNotFound,
        /// The name of a Secret or ConfigMap is outside of what the operator may mount.
        SecretNotAllowed,
        /// The model's address is in a namespace of the cluster that the operator does not permit.
        ModelEndpointNotAllowed,
        /// The model's address names a Service of the cluster that no network policy can open a way to.
        ModelEndpointUnusable,
        /// A ConfigMap does not exist.
        ConfigMapNotFound,
        /// The workspace gets its template and libraries.
        Provisioning,
        /// The template or the libraries cannot be had.
        ProvisioningFailed,
        /// The claim is not bound.
        VolumePending,
        /// The claim is being deleted.
        VolumeTerminating,
        /// The volume behind the claim is gone.
        VolumeLost,
        /// The volume cannot be attached or mounted.
        VolumeAttach,
        /// The volume lives where no node can run the pod.
        VolumeNodeAffinity,
        /// The server cannot write into its volume.
        VolumeNotWritable,
        /// The volume is being resized.
        Resizing,
        /// The storage class does not permit resizing.
        ResizeUnsupported,
        /// The claim names a storage class that does not exist, or there is no default class.
        NoStorageClass,
        /// The pod's network could not be set up.
        NetworkSetup,
        /// The sandbox cannot be used on this node.
        SandboxUnavailable,
        /// The node's runtime or kernel has no user namespaces for pods.
        UserNamespacesUnsupported,
        /// A volume of the pod cannot be used with user namespaces.
        VolumeNotIdmappable,
        /// The node does not have the seccomp profile of mode Bubblewrap.
        SeccompProfileMissing,
        /// A weaker sandbox serves in place of the wanted one, as permitted.
        Degraded,
        /// Commands can read the server's secrets.
        SecretsReadable,
        /// No credential with purpose ModelKey.
        ModelKeyMissing,
        /// The model provider refused the key.
        ModelKeyRejected,
        /// The pod was not Ready within `lifecycle.startTimeoutSeconds`.
        StartTimeout,
        /// An object with our child's name belongs to somebody else.
        NameConflict,
        /// The namespace's pod security level refuses the pod.
        PodSecurityViolation,
        /// The API server refuses a child for a policy that is not a quota.
        Forbidden,
        /// The API server calls a child invalid.
        InvalidChild,
        /// The spec holds a value that the operator cannot use.
        InvalidSpec,
        /// The running pod differs from what would be rendered now.
        RevisionChanged,
        /// A retained claim was attached to a workspace of the same owner.
        ClaimReattached,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_a_word_that_the_api_accepts() {
        for word in
            Reason::ALL.iter().map(|reason| reason.as_str()).chain(ConditionType::ALL.iter().map(|kind| kind.as_str()))
        {
            assert!(word.len() <= 64 && word.chars().all(|character| character.is_ascii_alphanumeric()), "{word}");
        }
    }
}
