//! Sampling and stopping, alike in every request that generates.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::forms::{SchemaForm, StructuredForm};

/// One text or several.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum StopForm {
    /// One.
    One(#[schemars(length(min = 1))] String),
    /// At most 16, none empty.
    Many(#[schemars(length(max = 16))] Vec<String>),
}

/// Sampling, stopping, and what the output must be. Absent values are the model's defaults.
#[derive(Debug, JsonSchema)]
pub struct SamplingBody {
    /// Choices to generate for each prompt.
    #[schemars(range(min = 1, max = 128))]
    pub n: Option<u32>,
    /// With the same prompt, the same seed gives the same tokens, whatever else runs.
    pub seed: Option<i64>,
    /// Texts that end the output; they are not part of it.
    pub stop: Option<StopForm>,
    /// Tokens that end the output.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Tokens before which nothing ends the output.
    pub min_tokens: Option<u32>,
    /// Generate over the model's own end tokens.
    pub ignore_eos: Option<bool>,
    /// 0 is greedy.
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens of this probability mass: above 0, at most 1.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// Keep so many of the most likely tokens; -1 or 0 is off.
    #[schemars(range(min = -1))]
    pub top_k: Option<i64>,
    /// Keep tokens of at least this fraction of the largest probability.
    #[schemars(range(min = 0, max = 1))]
    pub min_p: Option<f64>,
    /// Subtracted once from the logits of tokens in the output.
    #[schemars(range(min = -2, max = 2))]
    pub presence_penalty: Option<f64>,
    /// Subtracted from the logits of tokens in the output, per occurrence.
    #[schemars(range(min = -2, max = 2))]
    pub frequency_penalty: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens in prompt or output: above 0; 1 is off.
    pub repetition_penalty: Option<f64>,
    /// Added to logits, by token id; clamped to -100…100.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Log-probabilities of the prompt, with so many alternatives for each token.
    #[schemars(range(min = 0, max = 20))]
    pub prompt_logprobs: Option<u32>,
    /// Return token ids beside the text.
    pub return_token_ids: Option<bool>,
    /// Leave special tokens out of the text; true where absent.
    pub skip_special_tokens: Option<bool>,
    /// Stored prefixes are shared only among requests of equal salts, 1 to 1024 bytes.
    #[schemars(length(min = 1, max = 1024))]
    pub cache_salt: Option<String>,
    /// Most tokens to draft ahead in a step, where the server speculates; 0 turns that off.
    #[schemars(range(min = 0, max = 64))]
    pub max_draft_tokens: Option<u32>,
    /// Only `false`: beam search is not offered.
    pub use_beam_search: Option<bool>,
    /// Chats: the answer goes on where the last message, the assistant's, stops; thinking must be off. Else only false.
    pub continue_final_message: Option<bool>,
    /// False beside `continue_final_message`, and where conversations are tokenized. Else only true.
    pub add_generation_prompt: Option<bool>,
    /// Not offered: use `structured_outputs` or `logit_bias`.
    pub allowed_token_ids: Option<()>,
    /// Not offered but empty: use `logit_bias`.
    #[schemars(length(max = 0))]
    pub bad_words: Option<Vec<String>>,
    /// Not offered: prompts are not cut.
    pub truncate_prompt_tokens: Option<()>,
    /// Not offered but empty: use `tools`.
    #[schemars(length(max = 0))]
    pub functions: Option<Vec<String>>,
    /// Not offered: use `tool_choice`.
    pub function_call: Option<()>,
    /// What the output must be, in vLLM's words.
    pub structured_outputs: Option<StructuredForm>,
    /// As `structured_outputs.json`.
    pub guided_json: Option<SchemaForm>,
    /// As `structured_outputs.regex`.
    #[schemars(length(min = 1))]
    pub guided_regex: Option<String>,
    /// As `structured_outputs.choice`.
    #[schemars(length(min = 1, max = 10_000))]
    pub guided_choice: Option<Vec<String>>,
    /// As `structured_outputs.grammar`.
    #[schemars(length(min = 1))]
    pub guided_grammar: Option<String>,
    /// As `structured_outputs.json`, in SGLang's words.
    pub json_schema: Option<SchemaForm>,
    /// As `structured_outputs.regex`, in SGLang's words.
    #[schemars(length(min = 1))]
    pub regex: Option<String>,
    /// As `structured_outputs.grammar`, in SGLang's words.
    #[schemars(length(min = 1))]
    pub ebnf: Option<String>,
}
