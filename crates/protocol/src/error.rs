//! What can be wrong with a request's JSON, and the error body clients receive.

use schemars::JsonSchema;
use serde::Serialize;

/// A request body that cannot be accepted. Every case is the client's to mend: HTTP 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No body.
    #[error("the body is empty; it must be a JSON object")]
    EmptyBody,
    /// The bytes are not text.
    #[error("the body is not UTF-8: byte {offset} starts no character")]
    NotUtf8 {
        /// Offset of the first offending byte.
        offset: usize,
    },
    /// The text is not JSON, nests too deeply, or repeats a key.
    #[error("the body is not acceptable JSON: {reason}")]
    Json {
        /// The field at fault, where it is one field.
        field: Option<String>,
        /// Where and why.
        reason: String,
    },
    /// A field is absent that must be there.
    #[error("`{field}` is missing; {rule}")]
    Missing {
        /// Path of the field.
        field: String,
        /// What is needed.
        rule: String,
    },
    /// A field holds a value that breaks a rule.
    #[error("`{field}` is {value}; {rule}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// The value found, shortened.
        value: String,
        /// What is accepted.
        rule: String,
    },
}

impl ProtocolError {
    /// The field at fault, where it is one field.
    pub fn param(&self) -> Option<&str> {
        match self {
            ProtocolError::Missing { field, .. } | ProtocolError::Invalid { field, .. } => Some(field),
            ProtocolError::Json { field, .. } => field.as_deref(),
            _ => None,
        }
    }
}

/// The class of an error, as clients switch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is wrong.
    InvalidRequestError,
    /// A key is missing or wrong.
    AuthenticationError,
    /// The model or route does not exist.
    NotFoundError,
    /// Too busy, loading or draining: try again later.
    OverloadedError,
    /// The server failed.
    ServerError,
}

/// `{"error": {...}}`, the body of every refusal and of an error inside a stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// The fields inside `error`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ErrorDetail {
    /// A sentence for people: field, value, rule.
    pub message: String,
    /// Its class.
    #[serde(rename = "type")]
    pub kind: ErrorKind,
    /// The field at fault.
    pub param: Option<String>,
    /// A word for programs, e.g. `context_length_exceeded`.
    pub code: Option<String>,
}
