//! Errors: what stops the process, and what one HTTP request is told.

use std::path::PathBuf;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use perilune_engine::SubmitError;
use perilune_protocol::{ErrorBody, ErrorDetail, ErrorKind, ProtocolError};
use perilune_sampling::SamplingError;
use perilune_tokenizer::TokenizerError;

use crate::messages_reply::error_body;
use crate::token_limit::TokenLimit;

/// What stops the server from starting, or ends it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A flag or environment variable holds a value that cannot work.
    #[error("{flag} is {value}; {rule}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        rule: String,
    },
    /// The checkpoint's configuration cannot be read or cannot run.
    #[error(transparent)]
    Config(#[from] perilune_config::ConfigError),
    /// A default of `generation_config.json` is out of range.
    #[error("{path}: {error}")]
    Default {
        /// The file.
        path: PathBuf,
        /// Field, value and rule.
        error: SamplingError,
    },
    /// The checkpoint's tensors cannot be used.
    #[error(transparent)]
    Weights(#[from] perilune_weights::WeightsError),
    /// The checkpoint's tokenizer cannot be used.
    #[error("{0}; --skip-tokenizer-init serves the model on token ids alone")]
    Tokenizer(#[from] TokenizerError),
    /// The device refused.
    #[error(transparent)]
    Backend(#[from] perilune_backend::BackendError),
    /// The engine could not be set up.
    #[error(transparent)]
    Engine(#[from] perilune_engine::EngineError),
    /// A draft cannot be trained.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Train(#[from] perilune_train::TrainError),
    /// The network or a file refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine stopped while the server was running.
    #[error("the engine has stopped: {reason}")]
    EngineStopped {
        /// Why.
        reason: String,
    },
    /// A remote server or a local engine did not answer as expected.
    #[error("{0}")]
    Answer(String),
}

/// An error and its causes, each said once: many messages here already end with their cause.
pub fn in_one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !line.contains(&more) {
            line = format!("{line}: {more}");
        }
        cause = error.source();
    }
    line
}

/// A refusal of one request: a status and the JSON body that explains it.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    detail: ErrorDetail,
    retry_after_s: Option<u64>,
}

/// What a client is told when there is no room for its request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overload {
    /// Status: 503 unless configured (429, 529).
    pub status: StatusCode,
    /// `Retry-After`, in seconds.
    pub retry_after_s: u64,
}

impl ApiError {
    /// A wrong request, HTTP 400; `param` is the field at fault.
    pub fn invalid(message: impl Into<String>, param: Option<&str>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequestError, message).about(param)
    }

    /// Something that is not here, HTTP 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, ErrorKind::NotFoundError, message)
    }

    /// A fault of the server, HTTP 500.
    pub fn server(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::ServerError, message)
    }

    /// No room now, or not serving now; with `Retry-After`.
    pub fn overloaded(overload: Overload, message: impl Into<String>) -> Self {
        let mut error = ApiError::new(overload.status, ErrorKind::OverloadedError, message);
        error.retry_after_s = Some(overload.retry_after_s);
        error
    }

    /// Any status.
    pub fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        let detail = ErrorDetail { message: message.into(), kind, param: None, code: None };
        ApiError { status, detail, retry_after_s: None }
    }

    /// Adds a word for programs.
    pub fn with_code(mut self, code: &str) -> Self {
        self.detail.code = Some(code.to_owned());
        self
    }

    /// Names the field at fault.
    pub fn about(mut self, param: Option<&str>) -> Self {
        self.detail.param = param.map(str::to_owned);
        self
    }

    /// The body, as it also stands inside a stream.
    pub fn body(&self) -> ErrorBody {
        ErrorBody { error: self.detail.clone() }
    }

    /// The refusal of a submission, given the limit of tokens asked for and the name of the prompt's field.
    pub fn from_submit(error: &SubmitError, asked: (TokenLimit, &str), overload: Overload) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { .. } | SubmitError::Draining => ApiError::overloaded(overload, message),
            SubmitError::Dead { .. } => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::ServerError, message),
            SubmitError::PromptTooLong { prompt, context, .. } => asked.0.too_long(*prompt, *context, asked.1),
            SubmitError::Invalid(error) => error.clone().into(),
            SubmitError::EmptyPrompt | SubmitError::UnknownToken { .. } => ApiError::invalid(message, Some(asked.1)),
        }
    }
}

impl From<ProtocolError> for ApiError {
    fn from(error: ProtocolError) -> Self {
        ApiError::invalid(error.to_string(), error.param())
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> Self {
        ApiError::invalid(error.to_string(), Some(error.field))
    }
}

impl ApiError {
    /// The refusal in the words of the API that `path` belongs to.
    pub fn for_path(self, path: &str) -> Response {
        if !path.starts_with("/v1/messages") {
            return self.into_response();
        }
        let body = error_body(&self);
        self.with_body(&body)
    }

    /// The refusal with the body of another API.
    pub fn with_body(self, body: &serde_json::Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: (TokenLimit, &str) = (TokenLimit::Asked(45), "messages");
    const OVERLOAD: Overload = Overload { status: StatusCode::TOO_MANY_REQUESTS, retry_after_s: 7 };

    #[test]
    fn overload_has_the_configured_status_and_retry_after() {
        for error in [SubmitError::QueueFull { max_queued_requests: 3 }, SubmitError::Draining] {
            let response = ApiError::from_submit(&error, ASKED, OVERLOAD).into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[header::RETRY_AFTER], "7");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_names_three_numbers() {
        let error = SubmitError::PromptTooLong { prompt: 123, max_tokens: 45, context: 67 };
        let body = ApiError::from_submit(&error, ASKED, OVERLOAD).body().error;
        assert_eq!(body.param.as_deref(), Some("messages"));
        assert_eq!(body.code.as_deref(), Some("context_length_exceeded"));
        assert!(["123", "45", "67"].iter().all(|number| body.message.contains(number)), "{}", body.message);
    }

    #[test]
    fn each_cause_is_said_once() {
        let io = || std::io::Error::other("the disk is on fire");
        let said = ServerError::Io { what: "cannot listen".to_owned(), source: io() };
        assert_eq!(in_one_line(&said), "cannot listen: the disk is on fire");
        let unsaid = anyhow::Error::from(io()).context("cannot begin");
        assert_eq!(in_one_line(unsaid.as_ref()), "cannot begin: the disk is on fire");
        let tokenizer = TokenizerError::Io { path: "x".into(), source: io() };
        let line = in_one_line(&ServerError::from(tokenizer));
        assert_eq!(line.matches("on fire").count(), 1, "{line}");
    }

    #[test]
    fn a_sampling_error_names_its_field() {
        let error = SamplingError { field: "top_p", value: "2".to_owned(), rule: "must be at most 1".to_owned() };
        let body = ApiError::from(error).body().error;
        assert_eq!((body.param.as_deref(), body.kind), (Some("top_p"), ErrorKind::InvalidRequestError));
    }
}
