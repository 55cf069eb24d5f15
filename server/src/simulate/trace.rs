//! Traces of requests, one JSON object a line.
//!
//! Two forms are read. The published Mooncake form has `timestamp` (ms), `input_length`, `output_length` and `hash_ids`,
//! one id per 512 tokens of the prompt: equal ids stand for equal tokens. Our own form, which `serve --request-log` writes,
//! has a `timestamp`, the `tokens` themselves, the `output` tokens, `checkpoints`, the positions at which states are worth
//! saving, the best first, and `salt`, a name for what keeps the request's prefixes apart from those of others, absent
//! where nothing does.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use perilune_tensor::TokenId;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ServerError;

/// Tokens that a hash id of the Mooncake form stands for.
const HASHED: usize = 512;

/// Tokens of an answer at most: far beyond any context, and no line of a file claims all memory.
const MAX_OUTPUT: usize = 1 << 24;

/// A request.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    /// Prompt, then answer.
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_len: usize,
    /// Positions in the prompt at which states are worth saving, the best first.
    pub(super) save_at: Vec<usize>,
    /// When it arrived, ms.
    pub(super) timestamp: u64,
    /// Only requests of the same salt share.
    pub(super) salt: Option<Arc<str>>,
}

/// A line of our own form.
#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    timestamp: u64,
    tokens: Vec<u32>,
    #[serde(default)]
    output: Vec<u32>,
    #[serde(default)]
    checkpoints: Vec<usize>,
    salt: Option<String>,
}

/// A line of the Mooncake form.
#[derive(Deserialize)]
struct Mooncake {
    #[serde(default)]
    timestamp: u64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// The requests of a file in the order of their arrival; those without a time, or of the same, in that of the file.
///
/// # Errors
/// A file that cannot be read, or a line of neither form, with its number.
pub(super) fn read(path: &Path, block_size: usize) -> Result<Vec<Request>, ServerError> {
    let failed = |what: String| ServerError::Answer(format!("{}: {what}", path.display()));
    if block_size == 0 {
        return Err(failed("blocks have at least one token".to_owned()));
    }
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut requests = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| failed(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        requests.push(request(&line, index as u64).map_err(|what| failed(format!("line {}: {what}", index + 1)))?);
    }
    requests.sort_by_key(|request: &Request| request.timestamp);
    Ok(requests)
}

fn request(line: &str, number: u64) -> Result<Request, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let own = value.get("tokens").is_some();
    if !own && value.get("hash_ids").is_none() {
        return Err("neither `tokens` nor `hash_ids`".to_owned());
    }
    if own {
        of_tokens(serde_json::from_value(value).map_err(|error| error.to_string())?)
    } else {
        of_hashes(serde_json::from_value(value).map_err(|error| error.to_string())?, number)
    }
}

fn of_tokens(line: Tokens) -> Result<Request, String> {
    if line.tokens.is_empty() {
        return Err("`tokens` is empty".to_owned());
    }
    let prompt_len = line.tokens.len();
    let tokens = line.tokens.into_iter().chain(line.output).map(TokenId).collect();
    Ok(Request {
        tokens,
        prompt_len,
        save_at: line.checkpoints,
        timestamp: line.timestamp,
        salt: line.salt.map(Arc::from),
    })
}

fn of_hashes(line: Mooncake, number: u64) -> Result<Request, String> {
    let Mooncake { timestamp, input_length, output_length, hash_ids } = line;
    if input_length == 0 || hash_ids.len() < input_length.div_ceil(HASHED) {
        let wanted = input_length.div_ceil(HASHED).max(1);
        return Err(format!("{} `hash_ids` for {input_length} tokens, not {wanted}", hash_ids.len()));
    }
    if output_length > MAX_OUTPUT {
        return Err(format!("`output_length` is {output_length}, above {MAX_OUTPUT}"));
    }
    let prompt = (0..input_length).map(|i| stand_in(hash_ids[i / HASHED], i % HASHED));
    // Nothing is known of answers; no two are alike.
    let answer = (0..output_length).map(|i| stand_in(number ^ (1 << 60), i));
    let tokens = prompt.chain(answer).collect();
    Ok(Request { tokens, prompt_len: input_length, timestamp, ..Request::default() })
}

/// Token `i` of a stretch of text: equal for equal `id`.
pub(super) fn stand_in(id: u64, i: usize) -> TokenId {
    let mut z = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 32)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    TokenId((z >> 44) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, String> {
        request(text, 0)
    }

    #[test]
    fn both_forms() {
        let ours = parse(r#"{"tokens": [1, 2, 3], "output": [4], "checkpoints": [2]}"#).unwrap();
        assert_eq!((ours.tokens.len(), ours.prompt_len, ours.save_at, ours.salt), (4, 3, vec![2], None));
        assert_eq!(parse(r#"{"tokens": [1], "salt": "a"}"#).unwrap().salt.as_deref(), Some("a"));
        let line = r#"{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [3, 9]}"#;
        let theirs = parse(line).unwrap();
        assert_eq!((theirs.tokens.len(), theirs.prompt_len), (607, 600));
        let other = parse(&line.replace("[3, 9]", "[3, 8]")).unwrap();
        assert_eq!(theirs.tokens[..512], other.tokens[..512]);
        assert_ne!(theirs.tokens[512..600], other.tokens[512..600]);
    }

    #[test]
    fn a_file_is_read_in_the_order_of_arrival() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = |at: u64, token: u32| format!("{{\"timestamp\": {at}, \"tokens\": [{token}]}}\n");
        std::fs::write(&path, [line(5, 1), line(3, 2), line(5, 3), line(0, 4)].concat()).unwrap();
        let order: Vec<u32> = read(&path, 64).unwrap().iter().map(|request| request.tokens[0].0).collect();
        assert_eq!(order, [4, 2, 1, 3]);
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        assert!(parse(r#"{"tokens": []}"#).is_err());
        assert!(parse(r#"{"input_length": 600, "output_length": 7, "hash_ids": [3]}"#).unwrap_err().contains("not 2"));
        assert_eq!(parse(r#"{"input_length": 600}"#).unwrap_err(), "neither `tokens` nor `hash_ids`");
        assert!(parse(r#"{"tokens": ["a"]}"#).unwrap_err().contains("expected u32"));
        assert!(parse("{").is_err());
        let endless = r#"{"input_length": 1, "output_length": 9000000000000000000, "hash_ids": [1]}"#;
        assert!(parse(endless).unwrap_err().contains("output_length"));
    }
}
