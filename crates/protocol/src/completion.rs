//! The body of `POST /v1/completions`.

use serde_json::Value;

use crate::fields::{Fields, invalid, token_ids};
use crate::generation::{MAX_TOP_LOGPROBS, check_best_of};
use crate::{GenerationOptions, ProtocolError, StreamMode, parse_object};

/// Most prompts in one request.
const MAX_PROMPTS: usize = 1024;

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text to tokenise.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A text completion as the client asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The model's name; absent means the one served.
    pub model: Option<String>,
    /// The prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Whether the prompt comes back before the completion.
    pub echo: bool,
    /// Alternatives to report per token; `None` for no log-probabilities.
    pub logprobs: Option<usize>,
    /// Sampling, stopping, choices. `max_tokens` is 0 only with `echo` or `prompt_logprobs`.
    pub options: GenerationOptions,
    /// Streaming.
    pub stream: StreamMode,
}

impl CompletionRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let options = GenerationOptions::read(fields)?;
        check_best_of(fields, options.n)?;
        if let Some(suffix) = fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) {
            return Err(fields.refuse("suffix", &Value::String(suffix), "this model does not fill in the middle"));
        }
        let request = CompletionRequest {
            model: fields.string("model")?,
            prompts: read_prompts(fields)?,
            echo: fields.boolean("echo")?.unwrap_or(false),
            logprobs: fields.count("logprobs", 0, MAX_TOP_LOGPROBS)?,
            stream: StreamMode::read(fields)?,
            options,
        };
        let scores = request.echo || request.options.prompt_logprobs.is_some();
        if request.options.max_tokens == Some(0) && !scores {
            let rule = "it must be at least 1 unless `echo` or `prompt_logprobs` is set";
            return Err(fields.refuse("max_tokens", &Value::from(0), rule));
        }
        Ok(request)
    }
}

fn read_prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ProtocolError> {
    Ok(read_prompt_list(fields, "prompt")?.0)
}

/// Prompts under `key`, and whether they came as a list.
pub(crate) fn read_prompt_list(fields: &mut Fields, key: &str) -> Result<(Vec<Prompt>, bool), ProtocolError> {
    const RULE: &str = "it must be a string, an array of strings, an array of token ids, or an array of those";
    let path = fields.path(key);
    let items = match fields.take(key) {
        None => return Err(fields.missing(key, RULE)),
        Some(Value::String(text)) => return Ok((vec![Prompt::Text(text)], false)),
        Some(Value::Array(items)) if !items.is_empty() => items,
        Some(other) => return Err(fields.refuse(key, &other, RULE)),
    };
    if items[0].is_number() {
        return Ok((vec![Prompt::Ids(token_ids(&path, &items)?)], false));
    }
    if items.len() > MAX_PROMPTS {
        return Err(invalid(&path, &Value::Array(items), "at most 1024 prompts fit in one request"));
    }
    let ids_only = key == "input_ids";
    let prompt = |(i, item)| match item {
        Value::String(text) if !ids_only => Ok(Prompt::Text(text)),
        Value::Array(ids) if !ids.is_empty() => Ok(Prompt::Ids(token_ids(&format!("{path}[{i}]"), &ids)?)),
        other => Err(invalid(&format!("{path}[{i}]"), &other, "it must be a string or an array of token ids")),
    };
    Ok((items.into_iter().enumerate().map(prompt).collect::<Result<_, _>>()?, true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: Value) -> Result<CompletionRequest, ProtocolError> {
        CompletionRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn all_four_shapes_of_a_prompt() {
        let prompts = |prompt: Value| parse(json!({"prompt": prompt})).unwrap().prompts;
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(prompts(json!("a")), [text("a")]);
        assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(prompts(json!([1, 2])), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(prompts(json!([[1], [2, 3]])), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    }

    #[test]
    fn wrong_prompts_name_their_place() {
        let cases = [
            (json!({}), "prompt"),
            (json!({"prompt": null}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt[1]"),
            (json!({"prompt": ["a", 1]}), "prompt[1]"),
            (json!({"prompt": [[1, -2]]}), "prompt[0][1]"),
            (json!({"prompt": [[]]}), "prompt[0]"),
            (json!({"prompt": [1.5]}), "prompt[0]"),
            (json!({"prompt": [4_294_967_296_u64]}), "prompt[0]"),
        ];
        for (body, param) in cases {
            assert_eq!(parse(body.clone()).unwrap_err().param(), Some(param), "{body}");
        }
    }

    #[test]
    fn limits() {
        assert_eq!(parse(json!({"prompt": "a"})).unwrap().options.max_tokens, None);
        assert_eq!(parse(json!({"prompt": "a", "max_tokens": 0})).unwrap_err().param(), Some("max_tokens"));
        assert!(parse(json!({"prompt": "a", "max_tokens": 0, "echo": true})).is_ok());
        assert!(parse(json!({"prompt": "a", "max_tokens": 0, "prompt_logprobs": 1})).is_ok());
        for bad in [json!(21), json!(-1), json!(true), json!("5")] {
            assert_eq!(parse(json!({"prompt": "a", "logprobs": bad})).unwrap_err().param(), Some("logprobs"));
        }
        for (key, bad) in [("best_of", json!(2)), ("suffix", json!("x")), ("best_of", json!("1"))] {
            assert_eq!(parse(json!({"prompt": "a", key: bad})).unwrap_err().param(), Some(key));
        }
        assert!(parse(json!({"prompt": "a", "best_of": 1, "suffix": ""})).is_ok());
    }
}
