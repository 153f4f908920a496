//! What a call to the API server can end in, told apart by what the caller may do about it.

use std::time::Duration;

use kube::core::Status;

use crate::telemetry::{CallResult, Kind, Verb};

/// A failed call. The message names kind, verb and the API server's own words.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// 409: the object changed since it was read. The watch brings the newer one.
    #[error("{verb:?} {kind:?}: the object has changed meanwhile: {message}")]
    Conflict {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The API server's words.
        message: String,
    },
    /// 409 on create: the name is taken.
    #[error("{kind:?} exists already: {message}")]
    AlreadyExists {
        /// Kind of the object.
        kind: Kind,
        /// The API server's words.
        message: String,
    },
    /// 404.
    #[error("{verb:?} {kind:?}: not found: {message}")]
    NotFound {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The API server's words.
        message: String,
    },
    /// The namespace is being deleted, so nothing can be created in it.
    #[error("{verb:?} {kind:?}: the namespace is being deleted")]
    NamespaceTerminating {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
    },
    /// 403: quota, admission, Pod Security, or missing rights.
    #[error("{verb:?} {kind:?} is forbidden: {message}")]
    Forbidden {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The API server's words.
        message: String,
    },
    /// 400 or 422: the object as it stands is not acceptable.
    #[error("{verb:?} {kind:?} is invalid: {message}")]
    Invalid {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The API server's words.
        message: String,
    },
    /// No answer in time; whether a write happened is not known.
    #[error("{verb:?} {kind:?}: no answer within {} ms", limit.as_millis())]
    TimedOut {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The limit that passed.
        limit: Duration,
    },
    /// Anything else: 429, 5xx, connection, decoding.
    #[error("{verb:?} {kind:?} failed")]
    Unavailable {
        /// Kind of the object.
        kind: Kind,
        /// What was tried.
        verb: Verb,
        /// The cause.
        #[source]
        source: kube::Error,
    },
}

impl ClusterError {
    /// Sorts a client error.
    pub(super) fn new(kind: Kind, verb: Verb, error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return Self::Unavailable { kind, verb, source: error };
        };
        let message = status.message.clone();
        match status.code {
            409 if status.is_already_exists() => Self::AlreadyExists { kind, message },
            409 => Self::Conflict { kind, verb, message },
            404 => Self::NotFound { kind, verb, message },
            403 if names_terminating_namespace(status) => Self::NamespaceTerminating { kind, verb },
            403 => Self::Forbidden { kind, verb, message },
            400 | 422 => Self::Invalid { kind, verb, message },
            _ => Self::Unavailable { kind, verb, source: error },
        }
    }

    /// Stable word for metrics, events and conditions.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "Conflict",
            Self::AlreadyExists { .. } => "AlreadyExists",
            Self::NotFound { .. } => "NotFound",
            Self::NamespaceTerminating { .. } => "NamespaceTerminating",
            Self::Forbidden { .. } => "Forbidden",
            Self::Invalid { .. } => "Invalid",
            Self::TimedOut { .. } => "TimedOut",
            Self::Unavailable { .. } => "Unavailable",
        }
    }

    /// Label of the call metric.
    pub(super) const fn result(&self) -> CallResult {
        match self {
            Self::Conflict { .. } | Self::AlreadyExists { .. } => CallResult::Conflict,
            Self::NotFound { .. }
            | Self::NamespaceTerminating { .. }
            | Self::Forbidden { .. }
            | Self::Invalid { .. } => CallResult::Refused,
            Self::TimedOut { .. } => CallResult::TimedOut,
            Self::Unavailable { .. } => CallResult::Unavailable,
        }
    }
}

/// The admission plugin that guards terminating namespaces says so in a cause, not only in the message.
fn names_terminating_namespace(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
}
