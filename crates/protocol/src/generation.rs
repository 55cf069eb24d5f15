//! What chat and text completions share: sampling, stopping, the number of choices, streaming.
//!
//! Types and fixed ranges are checked here. Ranges of sampling values and ids against a vocabulary are checked by the
//! sampling crate, which names the same fields.

use serde_json::Value;

use crate::fields::{Fields, integral, invalid, token_ids};
use crate::{ProtocolError, StructuredOutput};

/// Most choices of one request.
const MAX_CHOICES: usize = 128;
/// Most stop strings of one request.
const MAX_STOPS: usize = 16;
/// Largest count of log-probabilities per position.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;
/// Longest cache salt.
const MAX_SALT_BYTES: usize = 1024;
/// Bounds of a logit bias; values beyond them mean the bound.
const MAX_BIAS: f64 = 100.0;

/// Sampling and stopping, as the client wrote them; absent values are `None` so that a model's defaults can apply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationOptions {
    /// Choices to generate, 1 to 128.
    pub n: usize,
    /// Seed; negative ones are taken as their two's complement.
    pub seed: Option<u64>,
    /// Texts that end the output, none empty, at most 16.
    pub stop: Vec<String>,
    /// Tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// Tokens before which nothing ends the output.
    pub min_tokens: usize,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Whether the end-of-message token is generated over.
    pub ignore_eos: bool,
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Number of candidates; 0 or -1 is off.
    pub top_k: Option<i64>,
    /// Least probability relative to the most likely.
    pub min_p: Option<f64>,
    /// OpenAI's presence penalty.
    pub presence_penalty: Option<f64>,
    /// OpenAI's frequency penalty.
    pub frequency_penalty: Option<f64>,
    /// Multiplicative penalty; 1 is off.
    pub repetition_penalty: Option<f64>,
    /// Added to logits, clamped to -100…100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Most likely tokens to report for each prompt position.
    pub prompt_logprobs: Option<usize>,
    /// Whether token ids are returned beside the text.
    pub return_token_ids: bool,
    /// Whether special tokens are left out of the text; `true` where absent.
    pub skip_special_tokens: bool,
    /// Stored prefixes are shared only among requests of equal salts.
    pub cache_salt: Option<String>,
    /// Most tokens to draft ahead in a step, where the server speculates; 0 turns that off.
    pub max_draft_tokens: Option<usize>,
    /// What the output must be.
    pub structured: Option<StructuredOutput>,
}

/// More than any draft proposes.
const MAX_DRAFT_TOKENS: usize = 64;

impl GenerationOptions {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        refuse_unoffered(fields)?;
        let options = GenerationOptions {
            n: fields.count("n", 1, MAX_CHOICES)?.unwrap_or(1),
            seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned),
            stop: read_stops(fields)?,
            stop_token_ids: read_ids(fields, "stop_token_ids")?.unwrap_or_default(),
            min_tokens: fields.count("min_tokens", 0, u32::MAX as usize)?.unwrap_or(0),
            max_tokens: fields.count("max_tokens", 0, u32::MAX as usize)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            temperature: fields.number("temperature")?,
            top_p: fields.number("top_p")?,
            top_k: fields.integer("top_k", -1, i64::from(u32::MAX))?,
            min_p: fields.number("min_p")?,
            presence_penalty: fields.number("presence_penalty")?,
            frequency_penalty: fields.number("frequency_penalty")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            logit_bias: read_bias(fields)?,
            prompt_logprobs: fields.count("prompt_logprobs", 0, MAX_TOP_LOGPROBS)?,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            cache_salt: read_salt(fields, "cache_salt")?,
            max_draft_tokens: fields.count("max_draft_tokens", 0, MAX_DRAFT_TOKENS)?,
            structured: StructuredOutput::read(fields)?,
        };
        if options.ignore_eos && options.structured.is_some() {
            let rule = "an output that must have a form cannot go on after its end";
            return Err(fields.refuse("ignore_eos", &Value::Bool(true), rule));
        }
        Ok(options)
    }
}

/// When usage is reported in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageReport {
    /// Never.
    Off,
    /// In one last chunk.
    Final,
    /// In every chunk and one last.
    Continuous,
}

/// How the answer is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// One JSON body.
    Whole,
    /// Server-sent events.
    Events(UsageReport),
}

impl StreamMode {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let mut report = UsageReport::Off;
        if let Some(mut options) = fields.object("stream_options")? {
            let last = options.boolean("include_usage")?.unwrap_or(false);
            report = match options.boolean("continuous_usage_stats")? {
                Some(true) if last => UsageReport::Continuous,
                _ if last => UsageReport::Final,
                _ => UsageReport::Off,
            };
        }
        Ok(if stream { StreamMode::Events(report) } else { StreamMode::Whole })
    }
}

/// What keeps prefixes apart, in the field of one dialect or another.
pub(crate) fn read_salt(fields: &mut Fields, name: &'static str) -> Result<Option<String>, ProtocolError> {
    match fields.string(name)? {
        Some(salt) if salt.is_empty() || salt.len() > MAX_SALT_BYTES => {
            Err(fields.refuse(name, &Value::String(salt), "must have 1 to 1024 bytes"))
        }
        salt => Ok(salt),
    }
}

/// What other servers offer and this one does not, with the value that asks for nothing: what would change the answer must
/// not be dropped silently.
const UNOFFERED: [(&str, Value, &str); 8] = [
    ("use_beam_search", Value::Bool(false), "beam search is not offered"),
    ("continue_final_message", Value::Bool(false), "an answer is a message of its own"),
    ("add_generation_prompt", Value::Bool(true), "an answer is a message of its own"),
    ("allowed_token_ids", Value::Null, "use `structured_outputs` or `logit_bias`"),
    ("bad_words", Value::Array(Vec::new()), "use `logit_bias`"),
    ("truncate_prompt_tokens", Value::Null, "prompts are not cut"),
    ("functions", Value::Array(Vec::new()), "use `tools`"),
    ("function_call", Value::Null, "use `tool_choice`"),
];

fn refuse_unoffered(fields: &mut Fields) -> Result<(), ProtocolError> {
    for (name, nothing, rule) in UNOFFERED {
        if let Some(value) = fields.take(name).filter(|value| *value != nothing) {
            return Err(fields.refuse(name, &value, rule));
        }
    }
    Ok(())
}

fn read_stops(fields: &mut Fields) -> Result<Vec<String>, ProtocolError> {
    const RULE: &str = "it must be a string or an array of at most 16 strings, none empty";
    let Some(value) = fields.take("stop") else { return Ok(Vec::new()) };
    let items = match value {
        Value::String(text) if !text.is_empty() => return Ok(vec![text]),
        Value::Array(items) if items.len() <= MAX_STOPS => items,
        other => return Err(fields.refuse("stop", &other, RULE)),
    };
    let path = fields.path("stop");
    let text = |(i, item)| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => Err(invalid(&format!("{path}[{i}]"), &other, "it must be a string, not empty")),
    };
    items.into_iter().enumerate().map(text).collect()
}

/// A list of token ids; `None` where it is absent.
pub(crate) fn read_ids(fields: &mut Fields, key: &str) -> Result<Option<Vec<u32>>, ProtocolError> {
    let path = fields.path(key);
    fields.array(key)?.map(|items| token_ids(&path, &items)).transpose()
}

fn read_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ProtocolError> {
    let path = fields.path("logit_bias");
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(invalid(&path, &other, "it must be an object from token ids to numbers")),
    };
    let mut bias = Vec::with_capacity(map.len());
    for (key, value) in map {
        let id = key.parse::<u32>().ok().filter(|_| key.bytes().all(|byte| byte.is_ascii_digit()));
        let id = id.ok_or_else(|| ProtocolError::Invalid {
            field: path.clone(),
            value: format!("an object with the key {:?}", key.chars().take(40).collect::<String>()),
            rule: "keys must be token ids: decimal integers from 0".to_owned(),
        })?;
        let amount = value.as_f64().ok_or_else(|| invalid(&path, &value, "every value must be a number"))?;
        bias.push((id, amount.clamp(-MAX_BIAS, MAX_BIAS) as f32));
    }
    Ok(bias)
}

/// `best_of` of text completions: only the value that asks for nothing is accepted.
pub(crate) fn check_best_of(fields: &mut Fields, n: usize) -> Result<(), ProtocolError> {
    match fields.take("best_of") {
        Some(value) if integral(&value).and_then(|best| usize::try_from(best).ok()) != Some(n) => {
            Err(fields.refuse("best_of", &value, "choosing among more than `n` choices is not offered"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<GenerationOptions, ProtocolError> {
        GenerationOptions::read(&mut Fields::of(String::new(), value)?)
    }

    #[test]
    fn defaults_and_nulls_are_the_same() {
        let nulls =
            json!({"n": null, "seed": null, "stop": null, "logit_bias": null, "max_tokens": null, "top_k": null});
        let options = read(nulls).unwrap();
        let nothing = json!({"add_generation_prompt": true, "continue_final_message": false, "bad_words": [],
            "allowed_token_ids": null, "use_beam_search": false});
        assert_eq!(read(nothing).unwrap(), options);
        assert_eq!(options, read(json!({"foo": 1})).unwrap());
        assert_eq!((options.n, options.skip_special_tokens, options.max_tokens), (1, true, None));
    }

    #[test]
    fn every_wrong_type_names_its_field() {
        let wrong = json!({
            "n": 0, "seed": "1", "stop": [""], "stop_token_ids": [-1], "min_tokens": -1, "max_tokens": 1.5,
            "ignore_eos": 1, "temperature": "hot", "top_p": true, "top_k": -2, "min_p": [], "presence_penalty": {},
            "frequency_penalty": "", "repetition_penalty": false, "logit_bias": [1], "prompt_logprobs": 21,
            "return_token_ids": "yes", "skip_special_tokens": 0, "use_beam_search": true, "bad_words": ["x"],
            "continue_final_message": true, "add_generation_prompt": false, "allowed_token_ids": [5], "functions": [{}],
            "truncate_prompt_tokens": 5, "function_call": "auto",
        });
        for (key, value) in wrong.as_object().unwrap() {
            let error = read(json!({key: value})).unwrap_err();
            assert!(error.param().unwrap().starts_with(key.as_str()), "{key}: {error}");
        }
    }

    #[test]
    fn logit_bias_keys_are_ids_and_values_are_clamped() {
        for key in ["AI", "-1", "1.5", "+1", "", " 1", "4294967296"] {
            let error = read(json!({"logit_bias": {key: 1}})).unwrap_err().to_string();
            assert!(error.contains(&format!("{key:?}")), "{error}");
        }
        for value in [json!("1"), json!(true), json!(null), json!([])] {
            assert_eq!(read(json!({"logit_bias": {"7": value}})).unwrap_err().param(), Some("logit_bias"));
        }
        let bias = read(json!({"logit_bias": {"7": 1e300, "3": -1e300, "1": 1e-320, "2": 5}})).unwrap().logit_bias;
        assert_eq!(bias, vec![(7, 100.0), (3, -100.0), (1, 0.0), (2, 5.0)]);
    }

    #[test]
    fn stops_may_be_one_or_many() {
        assert_eq!(read(json!({"stop": "a"})).unwrap().stop, ["a"]);
        assert_eq!(read(json!({"stop": ["a", "b"]})).unwrap().stop, ["a", "b"]);
        assert!(read(json!({"stop": []})).unwrap().stop.is_empty());
        for bad in [json!(""), json!(5), json!(["a", 1]), json!(vec!["a"; 17])] {
            assert!(read(json!({"stop": bad})).is_err());
        }
    }

    #[test]
    fn stream_options_matter_only_in_streams() {
        let mode = |value| StreamMode::read(&mut Fields::of(String::new(), value).unwrap()).unwrap();
        assert_eq!(mode(json!({})), StreamMode::Whole);
        assert_eq!(mode(json!({"stream": true})), StreamMode::Events(UsageReport::Off));
        let options = |usage: bool, continuous: bool| {
            mode(json!({"stream": true, "stream_options":
                {"include_usage": usage, "continuous_usage_stats": continuous, "other": 1}}))
        };
        assert_eq!(options(true, false), StreamMode::Events(UsageReport::Final));
        assert_eq!(options(true, true), StreamMode::Events(UsageReport::Continuous));
        assert_eq!(options(false, true), StreamMode::Events(UsageReport::Off));
    }
}
