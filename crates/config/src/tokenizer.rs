//! The two small files beside the vocabulary: `tokenizer_config.json` and `generation_config.json`.
//!
//! What: names of the special tokens, which of them begin and end a text, and the sampling defaults a checkpoint asks
//! for. What not: the vocabulary itself and its use (the tokenizer crate), and whether a default is admissible (the
//! sampling crate).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use perilune_tensor::TokenId;
use serde::Deserialize;
use serde_json::Value;

use crate::ConfigError;

const TOKENIZER_FILE: &str = "tokenizer_config.json";
const GENERATION_FILE: &str = "generation_config.json";

/// A named token outside the base vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Its text, such as `<|end_of_msg|>`.
    pub content: String,
    /// Whether the checkpoint marks it as special. K3 marks its structure tokens (`<|open|>`, `<|close|>`, `<|sep|>`)
    /// as *not* special, so this flag only says what "skip special tokens" leaves out of decoded text.
    pub special: bool,
}

/// What `tokenizer_config.json` says.
///
/// Source: `spec/kimi-k3.md` 5.1 and 5.2.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenizerConfig {
    /// Named tokens by id.
    pub added_tokens: BTreeMap<TokenId, AddedToken>,
    /// Begin of text.
    pub bos: Option<TokenId>,
    /// End of text. K3's is the end of a document, not of a message.
    pub eos: Option<TokenId>,
    /// Padding.
    pub pad: Option<TokenId>,
    /// Unknown text.
    pub unk: Option<TokenId>,
    /// Longest sequence in tokens; `None` where absent or a "no limit" placeholder beyond 2^53.
    pub model_max_length: Option<u64>,
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json` in `dir`.
    ///
    /// Errors: `Io` when the file cannot be read, `Parse` when it is not of the expected shape, `Unsupported` when an
    /// id is no number, two ids share a name, or `bos_token`, `eos_token`, `pad_token` or `unk_token` names a token
    /// that `added_tokens_decoder` lacks.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join(TOKENIZER_FILE);
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Io { path: path.clone(), source })?;
        Self::from_json(&text, &path)
    }

    /// Parses the text of a `tokenizer_config.json`; `path` only appears in errors.
    ///
    /// Errors: as [`TokenizerConfig::from_dir`], `Io` excepted.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: RawTokenizer = parse(text, path)?;
        let added_tokens = added_tokens(raw.added_tokens_decoder)?;
        let resolve = |key: &str, token: Option<RawToken>| resolve(&added_tokens, key, token);
        Ok(Self {
            bos: resolve("bos_token", raw.bos_token)?,
            eos: resolve("eos_token", raw.eos_token)?,
            pad: resolve("pad_token", raw.pad_token)?,
            unk: resolve("unk_token", raw.unk_token)?,
            model_max_length: raw.model_max_length.and_then(|value| sensible_length(&value)),
            added_tokens,
        })
    }

    /// The id of the named token `content`.
    pub fn id_of(&self, content: &str) -> Option<TokenId> {
        self.added_tokens.iter().find(|(_, token)| token.content == content).map(|(id, _)| *id)
    }
}

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
    /// Default limit of generated tokens.
    pub max_new_tokens: Option<u64>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`; a missing file gives the empty configuration.
    ///
    /// Errors: `Io` when the file exists but cannot be read, `Parse` when it is not of the expected shape.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join(GENERATION_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::from_json(&text, &path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Io { path, source }),
        }
    }

    /// Parses the text of a `generation_config.json`; `path` only appears in errors.
    ///
    /// Errors: `Parse` when it is not of the expected shape.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: RawGeneration = parse(text, path)?;
        let eos = match raw.eos_token_id {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![TokenId(id)],
            Some(OneOrMany::Many(ids)) => ids.into_iter().map(TokenId).collect(),
        };
        Ok(Self {
            eos,
            temperature: raw.temperature,
            top_p: raw.top_p,
            top_k: raw.top_k,
            min_p: raw.min_p,
            repetition_penalty: raw.repetition_penalty,
            do_sample: raw.do_sample,
            max_new_tokens: raw.max_new_tokens,
        })
    }
}

#[derive(Deserialize)]
struct RawTokenizer {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, RawAdded>,
    bos_token: Option<RawToken>,
    eos_token: Option<RawToken>,
    pad_token: Option<RawToken>,
    unk_token: Option<RawToken>,
    model_max_length: Option<Value>,
}

#[derive(Deserialize)]
struct RawAdded {
    content: String,
    #[serde(default)]
    special: bool,
}

/// A token is named by its text, or by an object that holds its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawToken {
    Name(String),
    Object { content: String },
}

#[derive(Deserialize)]
struct RawGeneration {
    eos_token_id: Option<OneOrMany>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    do_sample: Option<bool>,
    max_new_tokens: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

fn parse<T: for<'a> Deserialize<'a>>(text: &str, path: &Path) -> Result<T, ConfigError> {
    serde_json::from_str(text)
        .map_err(|error| ConfigError::Parse { path: PathBuf::from(path), reason: error.to_string() })
}

fn added_tokens(raw: BTreeMap<String, RawAdded>) -> Result<BTreeMap<TokenId, AddedToken>, ConfigError> {
    let mut tokens: BTreeMap<TokenId, AddedToken> = BTreeMap::new();
    for (key, token) in raw {
        let unsupported = |found: String, rule: &str| ConfigError::Unsupported {
            key: format!("added_tokens_decoder.{key}"),
            found,
            rule: rule.to_owned(),
        };
        let id: u32 = key.parse().map_err(|_| unsupported(format!("keyed `{key}`"), "a key must be a token id"))?;
        if token.content.is_empty() {
            return Err(unsupported("empty".to_owned(), "a named token needs a text"));
        }
        if tokens.values().any(|other| other.content == token.content) {
            return Err(unsupported(format!("`{}`", token.content), "two ids may not share a name"));
        }
        tokens.insert(TokenId(id), AddedToken { content: token.content, special: token.special });
    }
    Ok(tokens)
}

fn resolve(
    tokens: &BTreeMap<TokenId, AddedToken>,
    key: &str,
    token: Option<RawToken>,
) -> Result<Option<TokenId>, ConfigError> {
    let Some(RawToken::Name(name) | RawToken::Object { content: name }) = token else { return Ok(None) };
    match tokens.iter().find(|(_, token)| token.content == name) {
        Some((id, _)) => Ok(Some(*id)),
        None => Err(ConfigError::Unsupported {
            key: key.to_owned(),
            found: format!("`{name}`"),
            rule: "it must be one of the tokens in added_tokens_decoder".to_owned(),
        }),
    }
}

/// Published files write numbers near 1e30 for "no limit".
fn sensible_length(value: &Value) -> Option<u64> {
    value.as_u64().filter(|length| *length < 1 << 53)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(text: &str) -> Result<TokenizerConfig, ConfigError> {
        TokenizerConfig::from_json(text, Path::new("tokenizer_config.json"))
    }

    fn generation(text: &str) -> Result<GenerationConfig, ConfigError> {
        GenerationConfig::from_json(text, Path::new("generation_config.json"))
    }

    #[test]
    fn names_resolve_to_ids_in_both_spellings() {
        let config = tokenizer(
            r#"{"eos_token": "[EOS]", "bos_token": {"content": "[BOS]", "lstrip": false}, "model_max_length": 4096,
               "added_tokens_decoder": {"10": {"content": "[BOS]", "special": true},
                                        "9": {"content": "[EOS]", "special": true}, "11": {"content": "<|open|>"}}}"#,
        )
        .unwrap();
        assert_eq!(config.bos, Some(TokenId(10)));
        assert_eq!(config.eos, Some(TokenId(9)));
        assert_eq!((config.pad, config.unk), (None, None));
        assert_eq!(config.model_max_length, Some(4096));
        assert_eq!(config.id_of("<|open|>"), Some(TokenId(11)));
        assert!(!config.added_tokens[&TokenId(11)].special);
    }

    #[test]
    fn a_no_limit_placeholder_is_no_length() {
        let config = tokenizer(r#"{"model_max_length": 1000000000000000019884624838656}"#).unwrap();
        assert_eq!(config.model_max_length, None);
    }

    #[test]
    fn bad_names_are_refused_by_key() {
        let error = tokenizer(r#"{"eos_token": "[EOS]"}"#).unwrap_err().to_string();
        assert!(error.contains("eos_token") && error.contains("[EOS]"), "{error}");
        let error = tokenizer(r#"{"added_tokens_decoder": {"x7": {"content": "a"}}}"#).unwrap_err().to_string();
        assert!(error.contains("added_tokens_decoder.x7"), "{error}");
        let error = tokenizer(r#"{"added_tokens_decoder": {"7": {"content": "a"}, "8": {"content": "a"}}}"#);
        assert!(error.unwrap_err().to_string().contains("share a name"));
        let error = tokenizer("{\"added_tokens_decoder\": 3}").unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }

    #[test]
    fn generation_accepts_one_or_many_ends() {
        let config = generation(r#"{"eos_token_id": [5, 4], "temperature": 0.5, "max_length": 9, "new_key": {}}"#);
        let config = config.unwrap();
        assert_eq!(config.eos, [TokenId(5), TokenId(4)]);
        assert_eq!((config.temperature, config.top_p), (Some(0.5), None));
        assert_eq!(generation(r#"{"eos_token_id": 3}"#).unwrap().eos, [TokenId(3)]);
        assert!(generation(r#"{"eos_token_id": "3"}"#).is_err());
    }

    #[test]
    fn a_missing_generation_file_is_empty_but_a_missing_tokenizer_file_is_an_error() {
        let nowhere = Path::new("no-such-directory");
        assert_eq!(GenerationConfig::from_dir(nowhere).unwrap(), GenerationConfig::default());
        assert!(matches!(TokenizerConfig::from_dir(nowhere), Err(ConfigError::Io { .. })));
    }
}
