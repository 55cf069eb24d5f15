//! What operators are told: health, versions, settings, the tokenizer, stored prefixes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::fields::Fields;
use crate::{ProtocolError, parse_object};

/// `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `failed`.
    pub status: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `GET /ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Readiness {
    /// `ready`, or `loading`, `draining`, `stalled`, `failed`.
    pub status: &'static str,
}

/// `GET /version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Version {
    /// Always `perilune`.
    pub name: &'static str,
    /// Of the server.
    pub version: &'static str,
}

/// `POST /flush_cache`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Flushed {
    /// Always `true`.
    pub flushed: bool,
}

/// The body of `POST /abort_request`: what is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbortRequest {
    /// Everything.
    All,
    /// The requests of this id.
    Id(String),
}

impl AbortRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let (all, id) = (fields.boolean("abort_all")?, fields.string("rid")?);
        if all == Some(true) {
            return Ok(AbortRequest::All);
        }
        let rule = "it must be the id of a request, unless `abort_all` is true";
        id.map(AbortRequest::Id).ok_or_else(|| fields.missing("rid", rule))
    }
}

/// `POST /abort_request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Aborted {
    /// Whether there was anything to end.
    pub aborted: bool,
}

/// `GET /server_info`. No key is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ServerInfo {
    /// Always `perilune`.
    pub name: &'static str,
    /// Of the server.
    pub version: &'static str,
    /// Names the model answers to.
    pub served_model_names: Vec<String>,
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Whether there is no tokenizer.
    pub token_ids_only: bool,
    /// What is refused beyond.
    pub limits: ServerLimits,
    /// Tokens per block of the latent cache.
    pub block_size: usize,
    /// Sequences being computed.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Steps computed.
    pub steps: u64,
    /// Prompt tokens of accepted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times a sequence gave up its memory.
    pub preemptions: u64,
}

/// Limits of a server.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ServerLimits {
    /// Most sequences in one step.
    pub max_running_requests: usize,
    /// Most requests that may wait.
    pub max_queued_requests: usize,
    /// Most prompt tokens in one step.
    pub chunked_prefill_size: usize,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Seconds that a body may take to come; `null` for any time.
    pub body_timeout_s: Option<f64>,
    /// Most requests that are answered or streamed at once; `null` for any number.
    pub max_concurrent_requests: Option<usize>,
    /// Seconds that a request may wait for its first step; `null` for ever.
    pub max_queue_time_s: Option<f64>,
}

/// `GET /tokenizer_info`: what `tokenizer_config.json` would say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenizerInfo {
    /// The kind of tokenizer.
    pub tokenizer_class: &'static str,
    /// Tokens, special ones included.
    pub vocab_size: usize,
    /// Tokens that are no special ones.
    pub num_base_tokens: usize,
    /// Most tokens of prompt and answer together.
    pub model_max_length: usize,
    /// The token that ends an output.
    pub eos_token: Option<String>,
    /// All that do.
    pub stop_token_ids: Vec<u32>,
    /// Special tokens by id.
    pub added_tokens_decoder: BTreeMap<u32, AddedToken>,
    /// Always `null`: there is no Jinja template, the format is built in.
    pub chat_template: Option<String>,
}

/// A special token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AddedToken {
    /// Its text.
    pub content: String,
    /// Whether it is left out of texts.
    pub special: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_end_is_said_clearly() {
        let parse = |body: &str| AbortRequest::parse(body.as_bytes());
        assert_eq!(parse(r#"{"abort_all": true}"#), Ok(AbortRequest::All));
        assert_eq!(parse(r#"{"rid": "a", "abort_all": false}"#), Ok(AbortRequest::Id("a".to_owned())));
        for (body, param) in [
            (r#"{"rid": "a", "abort_all": 7}"#, "abort_all"),
            (r#"{"rid": 7, "abort_all": true}"#, "rid"),
            (r#"{"abort_all": false}"#, "rid"),
            ("{}", "rid"),
        ] {
            assert_eq!(parse(body).unwrap_err().param(), Some(param), "{body}");
        }
    }
}
