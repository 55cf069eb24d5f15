//! The body of SGLang's `POST /generate`: prompts as text or ids, parameters in `sampling_params`.

use serde_json::Value;

use crate::completion::read_prompt_list;
use crate::fields::Fields;
use crate::generation::{MAX_TOP_LOGPROBS, read_salt};
use crate::{GenerationOptions, Prompt, ProtocolError, StreamMode, UsageReport, parse_object};

/// Tokens generated where the client names no limit: SGLang's default.
const DEFAULT_MAX_NEW_TOKENS: usize = 128;

/// A generation as the client asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeRequest {
    /// The prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Whether the answer is a list even of one.
    pub listed: bool,
    /// Sampling, stopping, choices.
    pub options: GenerationOptions,
    /// Alternatives to report per token; `None` for no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether the prompt's log-probabilities come too.
    pub scores_prompt: bool,
    /// Whether log-probabilities carry the tokens' texts.
    pub texts: bool,
    /// The id by which it can be ended.
    pub rid: Option<String>,
    /// Streaming.
    pub stream: StreamMode,
}

impl NativeRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let options = match fields.object("sampling_params")? {
            Some(mut params) => read_params(&mut params)?,
            None => GenerationOptions { max_tokens: Some(DEFAULT_MAX_NEW_TOKENS), ..GenerationOptions::read(fields)? },
        };
        let field = if fields.contains("input_ids") { "input_ids" } else { "text" };
        if field == "input_ids" && fields.contains("text") {
            return Err(fields.refuse("input_ids", &Value::from("given"), "it cannot be joined with `text`"));
        }
        for unsupported in ["image_data", "lora_path", "session_params", "input_embeds"] {
            if let Some(value) = fields.take(unsupported) {
                return Err(fields.refuse(unsupported, &value, "it is not offered here"));
            }
        }
        let (prompts, many) = read_prompt_list(fields, field)?;
        let top = fields.count("top_logprobs_num", 0, MAX_TOP_LOGPROBS)?.unwrap_or(0);
        let wanted = fields.boolean("return_logprob")?.unwrap_or(false);
        let start = fields.integer("logprob_start_len", -1, i64::from(u32::MAX))?.unwrap_or(-1);
        if start > 0 {
            let rule = "it must be -1 (none of the prompt) or 0 (all of it)";
            return Err(fields.refuse("logprob_start_len", &Value::from(start), rule));
        }
        let mut options = options;
        // Beside the parameters, too, where SGLang has `extra_key`.
        for name in ["cache_salt", "extra_key"] {
            options.cache_salt = read_salt(fields, name)?.or(options.cache_salt);
        }
        if wanted && start == 0 {
            options.prompt_logprobs = Some(top);
        }
        Ok(NativeRequest {
            listed: many || options.n > 1,
            prompts,
            logprobs: wanted.then_some(top),
            scores_prompt: wanted && start == 0,
            texts: fields.boolean("return_text_in_logprobs")?.unwrap_or(false),
            rid: fields.string("rid")?,
            stream: match fields.boolean("stream")? {
                Some(true) => StreamMode::Events(UsageReport::Off),
                _ => StreamMode::Whole,
            },
            options,
        })
    }
}

fn read_params(params: &mut Fields) -> Result<GenerationOptions, ProtocolError> {
    let limit = params.count("max_new_tokens", 1, u32::MAX as usize)?;
    let least = params.count("min_new_tokens", 0, u32::MAX as usize)?;
    let seed = params.integer("sampling_seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned);
    let mut options = GenerationOptions::read(params)?;
    options.max_tokens = Some(limit.unwrap_or(DEFAULT_MAX_NEW_TOKENS));
    options.min_tokens = least.unwrap_or(options.min_tokens);
    options.seed = seed.or(options.seed);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: Value) -> Result<NativeRequest, ProtocolError> {
        NativeRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn prompts_and_parameters() {
        let params = json!({"max_new_tokens": 3, "temperature": 0, "stop": "a", "regex": "b+", "sampling_seed": 7});
        let request = parse(json!({"text": "hi", "sampling_params": params, "rid": "r", "stream": true})).unwrap();
        assert_eq!((request.prompts.len(), request.listed, request.rid.as_deref()), (1, false, Some("r")));
        assert_eq!((request.options.max_tokens, request.options.seed), (Some(3), Some(7)));
        assert_eq!(request.options.structured.unwrap().field, "sampling_params.regex");
        for (name, params) in [("cache_salt", json!({})), ("extra_key", json!({"temperature": 0}))] {
            let request = parse(json!({"text": "hi", "sampling_params": params, name: "k"})).unwrap();
            assert_eq!(request.options.cache_salt.as_deref(), Some("k"), "{name}");
        }
        let ids = parse(
            json!({"input_ids": [[1, 2], [3]], "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2}),
        );
        let ids = ids.unwrap();
        assert_eq!((ids.prompts.len(), ids.listed, ids.logprobs, ids.scores_prompt), (2, true, Some(2), true));
        assert_eq!((ids.options.max_tokens, ids.options.prompt_logprobs), (Some(128), Some(2)));
        assert!(parse(json!({"text": ["a"]})).unwrap().listed);
    }

    #[test]
    fn wrong_values_name_their_field() {
        for (body, param) in [
            (json!({}), "text"),
            (json!({"text": "a", "input_ids": [1]}), "input_ids"),
            (json!({"input_ids": ["a"]}), "input_ids[0]"),
            (json!({"text": "a", "sampling_params": {"max_new_tokens": 0}}), "sampling_params.max_new_tokens"),
            (json!({"text": "a", "sampling_params": {"ebnf": 5}}), "sampling_params.ebnf"),
            (json!({"text": "a", "logprob_start_len": 5}), "logprob_start_len"),
            (json!({"text": "a", "top_logprobs_num": 21}), "top_logprobs_num"),
            (json!({"text": "a", "image_data": "x"}), "image_data"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err().param(), Some(param), "{body}");
        }
    }
}
