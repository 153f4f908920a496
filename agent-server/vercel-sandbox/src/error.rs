//! What can go wrong, each with a stable word. Texts hold no credentials.

use std::time::Duration;

/// A call that did not succeed. [`Error::reason`] is the word for metrics and conditions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client cannot be built so.
    #[error("the client's configuration is wrong: {0}")]
    Configuration(String),
    /// The token cannot be read or understood.
    #[error("no usable credentials: {0}")]
    Credentials(String),
    /// The service refused; nothing happened.
    #[error("the service refused with {status}: {message}")]
    Refused {
        /// Status code, 400 to 499.
        status: u16,
        /// The service's word, when it sent one.
        code: Option<String>,
        /// The service's text.
        message: String,
    },
    /// Too many calls, or a quota; nothing happened.
    #[error("the service limits calls, it asks to wait for {retry_after:?}")]
    RateLimited {
        /// Wait that the service asks for.
        retry_after: Option<Duration>,
    },
    /// The service failed at a call that can be repeated, as often as it was tried.
    #[error("the service failed with {status}")]
    Service {
        /// Status code, 500 or above.
        status: u16,
    },
    /// No answer came, as often as it was tried; nothing began, or it can be repeated.
    #[error("the service cannot be reached: {0}")]
    Connection(String),
    /// No answer came in time; the call can be repeated.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The call may have taken effect: it starts something, and its answer was lost. It was not repeated.
    #[error("the call may have taken effect: {0}")]
    OutcomeUnknown(String),
    /// Five failures in a row: no call is made before the given time.
    #[error("the service is not asked before {until} (milliseconds since 1970), after repeated failures")]
    Unavailable {
        /// Milliseconds since 1970.
        until: u64,
    },
    /// An answer that is not of the protocol.
    #[error("the answer is not understood: {0}")]
    Protocol(String),
    /// Output of a command broke off and could not be taken up again. The command may still run.
    #[error("the output of command {command} was cut: {cause}")]
    StreamCut {
        /// Identity of the command.
        command: String,
        /// The last cut.
        cause: String,
    },
    /// The service ended a stream with an error of its own.
    #[error("the stream ended with {code}: {message}")]
    Stream {
        /// The service's word.
        code: String,
        /// The service's text.
        message: String,
    },
    /// An answer is larger than its bound.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// Files cannot be packed.
    #[error("the archive cannot be made: {0}")]
    Archive(#[source] std::io::Error),
}

impl Error {
    /// The stable word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Configuration(_) => "Configuration",
            Self::Credentials(_) => "Credentials",
            Self::Refused { .. } => "Refused",
            Self::RateLimited { .. } => "RateLimited",
            Self::Service { .. } => "Service",
            Self::Connection(_) => "Connection",
            Self::Timeout(_) => "Timeout",
            Self::OutcomeUnknown(_) => "OutcomeUnknown",
            Self::Unavailable { .. } => "Unavailable",
            Self::Protocol(_) => "Protocol",
            Self::StreamCut { .. } => "StreamCut",
            Self::Stream { .. } => "Stream",
            Self::TooLarge(_) => "TooLarge",
            Self::Archive(_) => "Archive",
        }
    }

    /// Whether the service refused with this status.
    pub fn is_status(&self, expected: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == expected)
    }

    /// Whether the VM is gone or going, so that the call did nothing and a resumed VM may take it.
    pub fn asks_for_resume(&self) -> bool {
        match self {
            Self::Refused { status: 410, .. } => true,
            Self::Refused { status: 422, code: Some(code), .. } => {
                matches!(code.as_str(), "sandbox_stopping" | "sandbox_snapshotting")
            }
            _ => false,
        }
    }
}
