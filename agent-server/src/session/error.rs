//! Why something with a session did not happen. Owns the words; must not know HTTP statuses.

use crate::llm::KeyState;

/// Reasons, each with a stable word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A value of the caller does not fit.
    #[error("{message}")]
    Invalid {
        /// Field of the body.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
    /// No such session.
    #[error("session {0} does not exist")]
    NotFound(String),
    /// The id is taken, or the message was answered already.
    #[error("{what} exists already")]
    AlreadyExists {
        /// What.
        what: String,
        /// The turn that answered it.
        turn_id: Option<String>,
    },
    /// A turn runs.
    #[error("a turn is in progress")]
    TurnInProgress {
        /// Which.
        turn_id: String,
    },
    /// A follow-up that is to be cancelled has its turn already.
    #[error("the follow-up has begun; stop its turn instead")]
    FollowUpBegun {
        /// Which.
        turn_id: String,
    },
    /// No more follow-ups fit in the queue.
    #[error("{0} follow-ups wait already")]
    QueueFull(usize),
    /// Another process writes the session.
    #[error("session {0} is being written by another process")]
    Locked(String),
    /// The model cannot be asked.
    #[error("{}", match .0 { KeyState::Missing => "no model key is configured", _ => "the model provider rejected the key" })]
    ModelUnavailable(KeyState),
    /// The server stops.
    #[error("the workspace is being stopped")]
    Draining,
    /// No space left.
    #[error("no space left for sessions")]
    StorageFull,
    /// The file system refuses to write; what is there can still be read.
    #[error("sessions cannot be written: the state volume is read-only or belongs to another user")]
    NotWritable,
    /// The disk failed; the detail is for the log.
    #[error("the session could not be stored")]
    Storage(String),
}

impl From<std::io::Error> for SessionError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::StorageFull,
            std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => Self::NotWritable,
            _ => Self::Storage(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::SessionError;

    #[test]
    fn a_volume_that_takes_nothing_is_no_defect_of_the_server() {
        for kind in [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
            assert_eq!(SessionError::from(Error::from(kind)), SessionError::NotWritable);
        }
        assert_eq!(SessionError::from(Error::from(ErrorKind::QuotaExceeded)), SessionError::StorageFull);
        let broken = SessionError::from(Error::from(ErrorKind::InvalidData));
        assert!(matches!(broken, SessionError::Storage(_)), "{broken:?}");
    }
}
