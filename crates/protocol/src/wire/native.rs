//! SGLang's `POST /generate`.

use schemars::JsonSchema;
use serde_json::Value;

use super::completion::PromptForm;
use super::sampling::SamplingBody;

/// A generation to make: `text` or `input_ids`. Unknown fields are ignored; `null` means absent.
#[derive(Debug, JsonSchema)]
pub struct NativeBody {
    /// Prompts as text.
    pub text: Option<PromptForm>,
    /// Prompts as token ids.
    pub input_ids: Option<PromptForm>,
    /// Sampling and stopping.
    pub sampling_params: Option<NativeParams>,
    /// Return log-probabilities of the output.
    pub return_logprob: Option<bool>,
    /// With so many alternatives for each token.
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs_num: Option<u32>,
    /// 0: of the prompt, too; -1: of the output alone.
    #[schemars(range(min = -1, max = 0))]
    pub logprob_start_len: Option<i32>,
    /// With the tokens' texts.
    pub return_text_in_logprobs: Option<bool>,
    /// The id by which it can be ended.
    pub rid: Option<String>,
    /// Keeps prefixes of different salts apart.
    #[schemars(length(min = 1, max = 1024))]
    pub cache_salt: Option<String>,
    /// Another name of it.
    #[schemars(length(min = 1, max = 1024))]
    pub extra_key: Option<String>,
    /// Answer with server-sent events, each with all text so far.
    pub stream: Option<bool>,
    /// Refused: this is a text model.
    pub image_data: Option<Nothing>,
    /// Refused: there are no adapters.
    pub lora_path: Option<Nothing>,
    /// Refused: there are no sessions.
    pub session_params: Option<Nothing>,
    /// Refused: prompts are tokens.
    pub input_embeds: Option<Nothing>,
}

/// No value but `null`.
pub type Nothing = ();

/// Sampling and stopping, with SGLang's names where they differ.
#[derive(Debug, JsonSchema)]
pub struct NativeParams {
    /// Most tokens to generate; 128 where absent.
    #[schemars(range(min = 1))]
    pub max_new_tokens: Option<u32>,
    /// Tokens before which nothing ends the output.
    pub min_new_tokens: Option<u32>,
    /// As `seed`, which it comes before.
    pub sampling_seed: Option<i64>,
    /// Sampling and stopping.
    #[schemars(flatten)]
    pub sampling: SamplingBody,
}

/// The answer: a list where there are several prompts or choices.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum NativeAnswers {
    /// One.
    One(Box<NativeAnswer>),
    /// One per choice.
    Many(Vec<NativeAnswer>),
}

/// One answer.
#[derive(Debug, JsonSchema)]
pub struct NativeAnswer {
    /// The text.
    pub text: String,
    /// Its tokens, the stop token included.
    pub output_ids: Vec<u32>,
    /// What is known of it.
    pub meta_info: NativeMeta,
}

/// What an event of a stream holds: the answer so far.
#[derive(Debug, JsonSchema)]
pub struct NativeChunk {
    /// Number of the answer, where there are several.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// All of it so far.
    #[schemars(flatten)]
    pub answer: NativeAnswer,
}

/// What is known of an answer.
#[derive(Debug, JsonSchema)]
pub struct NativeMeta {
    /// The request's id.
    pub id: String,
    /// Why it ended; `null` while it goes on.
    pub finish_reason: Option<NativeFinish>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Tokens of the prompt whose state was reused.
    pub cached_tokens: u64,
    /// Where asked for.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub output_token_logprobs: Option<Vec<NativeToken>>,
    /// Where asked for.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub output_top_logprobs: Option<Vec<Vec<NativeToken>>>,
    /// Where asked for.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub input_token_logprobs: Option<Vec<NativeToken>>,
    /// Where asked for; `null` for the first token.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pub input_top_logprobs: Option<Vec<Option<Vec<NativeToken>>>>,
}

/// Log-probability (`null` for a prompt's first token), id, and text where asked for.
pub type NativeToken = (Option<f64>, u32, Option<String>);

/// Why an answer ended.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum NativeFinish {
    /// At its limit.
    Length {
        /// Tokens generated.
        length: u64,
    },
    /// By a stop token or text.
    Stop {
        /// The token or text.
        matched: Value,
    },
    /// Somebody ended it, or it failed.
    Abort {
        /// What happened.
        message: String,
    },
}
