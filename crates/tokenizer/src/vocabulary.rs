//! The base vocabulary of a tiktoken file: byte strings by rank, and back.
//!
//! What: parsing with line-precise errors, and the two look-ups. What not: special tokens (they are no byte strings of
//! the base vocabulary; see [`crate::Tokenizer`]) and merging (the `bpe` module).

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::TokenizerError;

/// Byte strings with ranks `0..n`, each rank once, all 256 single bytes among them.
///
/// Source: `spec/kimi-k3.md` 5.1.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// All tokens' bytes, one after the other in rank order.
    bytes: Vec<u8>,
    /// `offsets[rank]..offsets[rank + 1]` are a token's bytes; `[n + 1]`.
    offsets: Vec<u32>,
    ranks: HashMap<Box<[u8]>, u32>,
    longest: usize,
}

impl Vocabulary {
    /// Parses a tiktoken file: lines of `base64(token bytes) rank`, in any order; empty lines are skipped.
    ///
    /// Errors: `Line` with number and reason for a line that is not of this form, an empty token, a rank or a token
    /// seen before; `Vocabulary` when a rank below the highest is missing, a single byte has no token, or the file
    /// holds nothing.
    pub fn parse(file: &[u8]) -> Result<Self, TokenizerError> {
        let mut ranks = HashMap::new();
        let mut by_rank: Vec<Option<Box<[u8]>>> = Vec::new();
        let num_lines = file.iter().filter(|byte| **byte == b'\n').count() + 1;
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let at_line = |reason: String| TokenizerError::Line { line: index + 1, reason };
            let (token, rank) = parse_line(line, num_lines).map_err(at_line)?;
            let slot = rank as usize;
            if by_rank.len() <= slot {
                by_rank.resize(slot + 1, None);
            }
            if by_rank[slot].is_some() {
                return Err(at_line(format!("rank {rank} appeared before")));
            }
            if let Some(other) = ranks.insert(token.clone(), rank) {
                return Err(at_line(format!("this token appeared before with rank {other}")));
            }
            by_rank[slot] = Some(token);
        }
        Self::from_ranks(by_rank, ranks)
    }

    fn from_ranks(by_rank: Vec<Option<Box<[u8]>>>, ranks: HashMap<Box<[u8]>, u32>) -> Result<Self, TokenizerError> {
        let mut bytes = Vec::new();
        let mut offsets = vec![0];
        let mut longest = 0;
        let reason = |reason: String| TokenizerError::Vocabulary { reason };
        for (rank, token) in by_rank.into_iter().enumerate() {
            let token = token.ok_or_else(|| reason(format!("rank {rank} is missing")))?;
            longest = longest.max(token.len());
            bytes.extend_from_slice(&token);
            let end = u32::try_from(bytes.len()).map_err(|_| reason("its tokens exceed 4 GiB".to_owned()))?;
            offsets.push(end);
        }
        if let Some(byte) = (0..=255u8).find(|byte| !ranks.contains_key([*byte].as_slice())) {
            return Err(reason(format!("the single byte 0x{byte:02x} has no token, so not every text can be encoded")));
        }
        Ok(Self { bytes, offsets, ranks, longest })
    }

    /// Number of tokens.
    pub fn num_tokens(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rank of a byte string, if it is a token.
    pub fn rank(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.longest { None } else { self.ranks.get(bytes).copied() }
    }

    /// The bytes of the token with this rank; `None` beyond the vocabulary.
    pub fn token(&self, rank: u32) -> Option<&[u8]> {
        let start = *self.offsets.get(rank as usize)? as usize;
        let end = *self.offsets.get(rank as usize + 1)? as usize;
        self.bytes.get(start..end)
    }
}

/// A rank cannot reach the number of lines; saying so here keeps one absurd line from taking all memory.
fn parse_line(line: &[u8], num_lines: usize) -> Result<(Box<[u8]>, u32), String> {
    let shown = || String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let (Some(token), Some(rank), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(format!("expected `base64 rank`, found `{}`", shown()));
    };
    let token = STANDARD.decode(token).map_err(|error| format!("the token is not base64 ({error}): `{}`", shown()))?;
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    let rank: u32 = std::str::from_utf8(rank)
        .ok()
        .and_then(|rank| rank.parse().ok())
        .ok_or_else(|| format!("the rank is not a number: `{}`", shown()))?;
    if rank as usize >= num_lines {
        return Err(format!("rank {rank} in a file of {num_lines} lines leaves ranks missing"));
    }
    Ok((token.into_boxed_slice(), rank))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A vocabulary of the 256 bytes followed by `merges`, in rank order.
    pub(crate) fn small(merges: &[&str]) -> Vocabulary {
        Vocabulary::parse(file(merges).as_bytes()).unwrap()
    }

    pub(crate) fn file(merges: &[&str]) -> String {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let merges = merges.iter().map(|merge| merge.as_bytes().to_vec());
        let lines = bytes.chain(merges).enumerate();
        lines.map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
    }

    fn error_of(file: &str) -> String {
        Vocabulary::parse(file.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn tokens_are_found_by_rank_and_by_bytes() {
        let vocabulary = small(&["ab", "abc"]);
        assert_eq!(vocabulary.num_tokens(), 258);
        assert_eq!(vocabulary.rank(b"abc"), Some(257));
        assert_eq!(vocabulary.rank(b"abcd"), None);
        assert_eq!(vocabulary.token(256), Some(b"ab".as_slice()));
        assert_eq!(vocabulary.token(258), None);
    }

    #[test]
    fn order_of_lines_and_line_ends_do_not_matter() {
        let text = file(&["ab", "cd"]);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.reverse();
        let vocabulary = Vocabulary::parse(lines.join("\r\n").as_bytes()).unwrap();
        assert_eq!(vocabulary.token(257), Some(b"cd".as_slice()));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let good = file(&[]);
        for (line, reason) in [
            ("YWI=", "expected `base64 rank`"),
            ("YWI= 256 7", "expected `base64 rank`"),
            ("Y*I= 256", "not base64"),
            ("YWI= x", "not a number"),
            ("YWI= -1", "not a number"),
            (" 256", "empty"),
            ("YWI= 4000000000", "leaves ranks missing"),
            ("YWI= 7", "rank 7 appeared before"),
            ("YQ== 256", "appeared before with rank 97"),
        ] {
            let error = error_of(&format!("{good}{line}\n"));
            assert!(error.contains("line 257") && error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn missing_ranks_and_bytes_are_refused() {
        let good = file(&["ab"]);
        assert!(error_of(&good.replace("YWI= 256", "YWI= 257")).contains("rank 256 is missing"));
        let without_zero: String = good.lines().skip(1).map(|line| format!("{line}\n")).collect();
        assert!(error_of(&without_zero).contains("rank 0 is missing"));
        assert!(error_of("").contains("0x00"));
    }
}
