//! `generation_config.json`: what ends a generation, and the sampling a checkpoint asks for.
//!
//! Types are checked here. Whether a value is admissible is for the sampling crate to say, and whether an id is in the
//! vocabulary for whoever knows the vocabulary.

use std::path::Path;

use perilune_tensor::TokenId;
use serde_json::Value;

use crate::ConfigError;
use crate::file::read_text;
use crate::keys::{Found, Keys, whole};

const FILE: &str = "generation_config.json";
/// Largest token id and count that fit.
const MAX_COUNT: usize = u32::MAX as usize;

/// What `generation_config.json` says: ends of a generation and sampling defaults. `max_length` is ignored, since a
/// server has its own context length. Every other unknown key is ignored, too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Ids that end a generation, in file order; empty where the file names none.
    pub eos: Vec<TokenId>,
    /// Default temperature.
    pub temperature: Option<f32>,
    /// Default nucleus mass, 0 to 1.
    pub top_p: Option<f32>,
    /// Default number of candidates.
    pub top_k: Option<u32>,
    /// Default smallest probability relative to the best candidate.
    pub min_p: Option<f32>,
    /// Default repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// Whether to sample at all; `false` means greedy.
    pub do_sample: Option<bool>,
    /// Default limit of generated tokens, at least 1.
    pub max_new_tokens: Option<u64>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`; a missing file gives the empty configuration.
    ///
    /// # Errors
    /// `Io` when the file exists but cannot be read, `Parse` when it is not JSON, `Unsupported` for a value of the wrong
    /// type.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join(FILE);
        match read_text(&path) {
            Ok(text) => Self::from_json(&text, &path),
            Err(ConfigError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Parses the text of a `generation_config.json`; `path` only appears in errors.
    ///
    /// # Errors
    /// As [`GenerationConfig::from_dir`], `Io` excepted.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: error.to_string() })?;
        let keys = Keys::root(path, &value)?;
        let number = |key: &str| Ok::<_, ConfigError>(keys.optional_number(&[key])?.map(|(number, _)| number));
        let count = |key: &str, min| keys.find(&[key])?.map(|found| whole(&found, min, MAX_COUNT)).transpose();
        Ok(Self {
            eos: keys.find(&["eos_token_id"])?.map_or(Ok(Vec::new()), |found| token_ids(&found, MAX_COUNT))?,
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            top_k: count("top_k", 0)?.and_then(|count| u32::try_from(count).ok()),
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            do_sample: keys.flag(&["do_sample"])?,
            max_new_tokens: count("max_new_tokens", 1)?.map(|count| count as u64),
        })
    }
}

/// One token id or a list of them, none above `max`.
pub(crate) fn token_ids(found: &Found<'_>, max: usize) -> Result<Vec<TokenId>, ConfigError> {
    let one = std::slice::from_ref(found.value);
    let entries = found.value.as_array().map_or(one, Vec::as_slice);
    entries.iter().map(|value| token_id(&Found { key: found.key.clone(), value, ..*found }, max)).collect()
}

/// One token id, not above `max`.
pub(crate) fn token_id(found: &Found<'_>, max: usize) -> Result<TokenId, ConfigError> {
    whole(found, 0, max).map(|id| TokenId(id as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(text: &str) -> Result<GenerationConfig, ConfigError> {
        GenerationConfig::from_json(text, Path::new("somewhere/generation_config.json"))
    }

    #[test]
    fn one_or_many_ends() {
        let config = generation(r#"{"eos_token_id": [5, 4], "temperature": 0.5, "max_length": 9, "new_key": {}}"#);
        let config = config.unwrap();
        assert_eq!(config.eos, [TokenId(5), TokenId(4)]);
        assert_eq!((config.temperature, config.top_p), (Some(0.5), None));
        assert_eq!(generation(r#"{"eos_token_id": 3}"#).unwrap().eos, [TokenId(3)]);
        assert_eq!(generation(r#"{"max_new_tokens": 7, "top_k": null}"#).unwrap().max_new_tokens, Some(7));
    }

    #[test]
    fn wrong_types_name_file_field_value_and_rule() {
        let cases = [
            (r#"{"eos_token_id": "3"}"#, "eos_token_id", "\"3\"", "whole number"),
            (r#"{"eos_token_id": [1, true]}"#, "eos_token_id", "true", "whole number"),
            (r#"{"temperature": "hot"}"#, "temperature", "\"hot\"", "finite number"),
            (r#"{"top_p": 1e300}"#, "top_p", "1e+300", "finite number"),
            (r#"{"top_k": -1}"#, "top_k", "-1", "whole number from 0"),
            (r#"{"do_sample": 1}"#, "do_sample", "1", "true or false"),
            (r#"{"max_new_tokens": 0}"#, "max_new_tokens", "0", "from 1"),
        ];
        for (text, field, value, rule) in cases {
            let error = generation(text).unwrap_err().to_string();
            let parts = ["somewhere/generation_config.json", &format!("`{field}` is {value}"), rule];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        assert!(generation("[]").unwrap_err().to_string().contains("one JSON object"));
    }

    #[test]
    fn a_missing_file_is_empty() {
        assert_eq!(GenerationConfig::from_dir(Path::new("no-such-directory")).unwrap(), GenerationConfig::default());
    }
}
