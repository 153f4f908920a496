//! The one error shape of every route, framework errors included:
//! `{"error":{"code":"lower_snake","message":"…","field":"…", …extras}}`.
//!
//! Owns codes, their statuses and the mapping of workspace and sandbox errors. Must not know routes.
//! Messages never hold absolute host paths or raw operating-system text.

use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::sandbox::SandboxError;
use crate::workspace::{PathError, WorkspaceError};

/// Every error code, each with exactly one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// 401: no token.
    AuthRequired,
    /// 403: a token, host or origin that is not good here.
    AuthInvalid,
    /// 400: a value that does not fit.
    ValidationError,
    /// 400: path syntax.
    InvalidPath,
    /// 403: path leads outside the workspace, or the file system refuses it.
    PathRejected,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 408: the client stopped sending.
    RequestTimeout,
    /// 409: something is there already.
    AlreadyExists,
    /// 409: a precondition does not hold.
    Conflict,
    /// 409: directory with entries.
    NotEmpty,
    /// 409: a directory where a file is needed.
    IsDirectory,
    /// 409: no directory where one is needed.
    NotADirectory,
    /// 409: the session already runs a turn.
    TurnInProgress,
    /// 409: the sandbox belongs to another channel.
    ChannelMismatch,
    /// 410: the sandbox is gone.
    SandboxExpired,
    /// 413.
    PayloadTooLarge,
    /// 414: a target that the parser does not take.
    UriTooLong,
    /// 415: content that the route cannot take or show.
    UnsupportedMediaType,
    /// 416.
    RangeNotSatisfiable,
    /// 423: another process writes the session.
    SessionLocked,
    /// 431: a request head over its limit.
    HeadTooLarge,
    /// 429.
    RateLimited,
    /// 500: a defect; the detail is in the log under the request id.
    Internal,
    /// 501.
    NotImplemented,
    /// 503: commands cannot be run.
    SandboxUnavailable,
    /// 503: the model cannot be asked.
    ModelUnavailable,
    /// 503: still being prepared.
    Provisioning,
    /// 503: the volume takes no writes; the same word as the reason of `GET /ready`.
    VolumeNotWritable,
    /// 503: the workspace is being stopped.
    Draining,
    /// 507: no space or quota left.
    StorageFull,
}

impl Code {
    /// The word on the wire, also the metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthRequired => "auth_required",
            Self::AuthInvalid => "auth_invalid",
            Self::ValidationError => "validation_error",
            Self::InvalidPath => "invalid_path",
            Self::PathRejected => "path_rejected",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::RequestTimeout => "request_timeout",
            Self::AlreadyExists => "already_exists",
            Self::Conflict => "conflict",
            Self::NotEmpty => "not_empty",
            Self::IsDirectory => "is_directory",
            Self::NotADirectory => "not_a_directory",
            Self::TurnInProgress => "turn_in_progress",
            Self::ChannelMismatch => "channel_mismatch",
            Self::SandboxExpired => "sandbox_expired",
            Self::PayloadTooLarge => "payload_too_large",
            Self::UriTooLong => "uri_too_long",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::RangeNotSatisfiable => "range_not_satisfiable",
            Self::SessionLocked => "session_locked",
            Self::HeadTooLarge => "head_too_large",
            Self::RateLimited => "rate_limited",
            Self::Internal => "internal",
            Self::NotImplemented => "not_implemented",
            Self::SandboxUnavailable => "sandbox_unavailable",
            Self::ModelUnavailable => "model_unavailable",
            Self::Provisioning => "provisioning",
            Self::VolumeNotWritable => "volume_not_writable",
            Self::Draining => "draining",
            Self::StorageFull => "storage_full",
        }
    }

    /// The HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::AuthRequired => StatusCode::UNAUTHORIZED,
            Self::AuthInvalid | Self::PathRejected => StatusCode::FORBIDDEN,
            Self::ValidationError | Self::InvalidPath => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::AlreadyExists
            | Self::Conflict
            | Self::NotEmpty
            | Self::IsDirectory
            | Self::NotADirectory
            | Self::TurnInProgress
            | Self::ChannelMismatch => StatusCode::CONFLICT,
            Self::SandboxExpired => StatusCode::GONE,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::SessionLocked => StatusCode::LOCKED,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Self::SandboxUnavailable
            | Self::ModelUnavailable
            | Self::Provisioning
            | Self::VolumeNotWritable
            | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        }
    }
}

/// An error answer. Build it with [`ApiError::new`] and the `with_…` methods; it is an axum response.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Detail>);

#[derive(Debug, Clone)]
struct Detail {
    code: Code,
    message: String,
    field: Option<String>,
    extras: Map<String, Value>,
    headers: HeaderMap,
    defect: Option<String>,
}

/// What was behind a 500, for the log; the gate takes it off the response and logs it with the request id.
#[derive(Debug, Clone)]
pub struct Defect(pub String);

/// Handler result.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with a message for people: lower case, no final dot, names the object and the remedy.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Detail {
            code,
            message: message.into(),
            field: None,
            extras: Map::new(),
            headers: HeaderMap::new(),
            defect: None,
        }))
    }

    /// A `validation_error` for one field of the body or the query.
    pub fn invalid_field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::ValidationError, message).with_field(field)
    }

    /// A defect: the detail goes to the log, the client sees only that the request id names it.
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        let mut error =
            Self::new(Code::Internal, "internal error; the server's log has the detail under this request id");
        error.0.defect = Some(detail.to_string());
        error
    }

    /// Names the offending field.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Adds a member to the `error` object.
    #[must_use]
    pub fn with_extra(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.0.extras.insert(name.into(), value);
        self
    }

    /// Adds a response header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// Adds `Retry-After`, and the same number as `retryAfter` in the body.
    #[must_use]
    pub fn with_retry_after(self, seconds: u64) -> Self {
        self.with_extra("retryAfter", seconds).with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The JSON body, also used for error frames in streams.
    pub fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), json!(self.0.code.as_str()));
        error.insert("message".into(), json!(self.0.message));
        if let Some(field) = &self.0.field {
            error.insert("field".into(), json!(field));
        }
        error.extend(self.0.extras.clone());
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.0.code.status(), self.body().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.0.headers);
        if let Some(detail) = self.0.defect {
            response.extensions_mut().insert(Defect(detail));
        }
        response
    }
}

impl From<PathError> for ApiError {
    fn from(error: PathError) -> Self {
        let code = match error {
            PathError::Absolute | PathError::Escapes => Code::PathRejected,
            PathError::Nul | PathError::Empty | PathError::TooLong => Code::InvalidPath,
        };
        Self::new(code, error.to_string())
    }
}

impl From<WorkspaceError> for ApiError {
    fn from(error: WorkspaceError) -> Self {
        let message = error.to_string();
        let code = match error {
            WorkspaceError::Path(path) => return path.into(),
            WorkspaceError::Escapes(_) | WorkspaceError::ThroughLink(_) | WorkspaceError::Denied(_) => {
                Code::PathRejected
            }
            WorkspaceError::NotFound(_) => Code::NotFound,
            WorkspaceError::AlreadyExists(_) => Code::AlreadyExists,
            WorkspaceError::Conflict { current, .. } => {
                return Self::new(Code::Conflict, message)
                    .with_extra("currentMtimeMs", current.as_ref().map(|stat| stat.mtime_ms))
                    .with_extra("currentEtag", current.as_ref().and_then(|stat| stat.etag.clone()));
            }
            WorkspaceError::IsDirectory(_) => Code::IsDirectory,
            WorkspaceError::NotADirectory(_) => Code::NotADirectory,
            WorkspaceError::NotEmpty(_) => Code::NotEmpty,
            WorkspaceError::NotRegular(_) => Code::UnsupportedMediaType,
            WorkspaceError::TooLarge { size, limit, .. } => {
                return Self::new(Code::PayloadTooLarge, message).with_extra("size", size).with_extra("limit", limit);
            }
            WorkspaceError::StorageFull => Code::StorageFull,
            WorkspaceError::ReadOnly => Code::VolumeNotWritable,
            WorkspaceError::Pattern(_) | WorkspaceError::Rejected(_) => Code::ValidationError,
            WorkspaceError::Cancelled => Code::RequestTimeout,
            WorkspaceError::Io(_) => Code::Internal,
        };
        Self::new(code, message)
    }
}

impl From<SandboxError> for ApiError {
    fn from(error: SandboxError) -> Self {
        let code = match error {
            SandboxError::Unavailable(_) | SandboxError::Spawn(_) => Code::SandboxUnavailable,
            SandboxError::WorkingDirectory(_) => Code::NotFound,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::WorkspacePath;

    #[test]
    fn a_workspace_that_takes_no_writes_is_told_from_a_path_that_may_not_be_used() {
        let code = |error: WorkspaceError| ApiError::from(error).code().as_str();
        assert_eq!(code(WorkspaceError::ReadOnly), "volume_not_writable");
        assert_eq!(code(WorkspaceError::Denied(WorkspacePath::root())), "path_rejected");
    }
}
