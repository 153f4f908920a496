//! Text that is sent but never printed. It knows nothing of where it is used.

use std::fmt;

use serde::Serialize;

/// A value of an environment, a header or a password: it is sent as it is and printed as `[redacted]`.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Redacted(String);

impl<T: Into<String>> From<T> for Redacted {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[redacted]")
    }
}
