//! `tokenizer_config.json`, the small file beside the vocabulary.
//!
//! What: names of the special tokens, and which of them begin and end a text. What not: the vocabulary itself and its use
//! (the tokenizer crate).

use std::collections::BTreeMap;
use std::path::Path;

use perilune_tensor::TokenId;
use serde::Deserialize;
use serde_json::Value;

use crate::ConfigError;
use crate::file::read_text;

const FILE: &str = "tokenizer_config.json";

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
        let path = dir.join(FILE);
        Self::from_json(&read_text(&path)?, &path)
    }

    /// Parses the text of a `tokenizer_config.json`; `path` only appears in errors.
    ///
    /// Errors: as [`TokenizerConfig::from_dir`], `Io` excepted.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: RawTokenizer = serde_json::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: error.to_string() })?;
        let added_tokens = added_tokens(raw.added_tokens_decoder, path)?;
        let resolve = |key: &str, token: Option<RawToken>| resolve(&added_tokens, (key, token), path);
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
#[serde(untagged, expecting = "a token is expected: its name, or an object with its name as `content`")]
enum RawToken {
    Name(String),
    Object { content: String },
}

fn added_tokens(raw: BTreeMap<String, RawAdded>, path: &Path) -> Result<BTreeMap<TokenId, AddedToken>, ConfigError> {
    let mut tokens: BTreeMap<TokenId, AddedToken> = BTreeMap::new();
    for (key, token) in raw {
        let unsupported = |found: String, rule: &str| ConfigError::Unsupported {
            path: path.to_owned(),
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
    (key, token): (&str, Option<RawToken>),
    path: &Path,
) -> Result<Option<TokenId>, ConfigError> {
    let Some(RawToken::Name(name) | RawToken::Object { content: name }) = token else { return Ok(None) };
    match tokens.iter().find(|(_, token)| token.content == name) {
        Some((id, _)) => Ok(Some(*id)),
        None => Err(ConfigError::Unsupported {
            path: path.to_owned(),
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
        let error = tokenizer(r#"{"eos_token": 3}"#).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json") && error.contains("a token is expected"), "{error}");
        let error = tokenizer("{\"added_tokens_decoder\": 3}").unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(matches!(TokenizerConfig::from_dir(Path::new("no-such-directory")), Err(ConfigError::Io { .. })));
    }
}
