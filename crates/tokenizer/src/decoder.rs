//! Tokens to text, one at a time.
//!
//! What: the text of a stream of tokens such that the pieces, joined, are exactly what `String::from_utf8_lossy` gives
//! for all bytes at once: an incomplete character waits (at most 3 bytes of it), bytes that can never become UTF-8 are
//! U+FFFD at once. The cost of a token depends on its own length only, whatever came before. What not: deciding which
//! channel a token belongs to (`output`).

use std::sync::Arc;

use perilune_tensor::TokenId;

use crate::{Tokenizer, TokenizerError};

/// What decoded text shows of special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SpecialTokens {
    /// Tokens for which [`Tokenizer::is_skipped`] holds are left out.
    #[default]
    Skip,
    /// Every token appears by its name.
    Keep,
}

/// Decodes a stream of tokens.
#[derive(Debug, Clone)]
pub struct IncrementalDecoder {
    tokenizer: Arc<Tokenizer>,
    specials: SpecialTokens,
    utf8: Utf8Stream,
}

impl IncrementalDecoder {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: Arc<Tokenizer>, specials: SpecialTokens) -> Self {
        Self { tokenizer, specials, utf8: Utf8Stream::default() }
    }

    /// Takes the next token and returns the text that is now certain, often all of the token's own.
    ///
    /// Errors: `UnknownToken` beyond the vocabulary; the decoder stays usable and has not taken the token.
    pub fn push(&mut self, token: TokenId) -> Result<String, TokenizerError> {
        let bytes = self.tokenizer.token_bytes(token)?;
        if self.specials == SpecialTokens::Skip && self.tokenizer.is_skipped(token) {
            return Ok(String::new());
        }
        Ok(self.utf8.push(bytes))
    }

    /// Ends the text: U+FFFD if a character was left incomplete, otherwise nothing. The decoder may begin a new text.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }

    /// Number of bytes that wait for the rest of their character, 0 to 3.
    pub fn num_held_bytes(&self) -> usize {
        self.utf8.num_held
    }
}

/// `String::from_utf8_lossy`, in pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Utf8Stream {
    /// The first `num_held` bytes begin a character and may still become one.
    held: [u8; 3],
    num_held: usize,
}

impl Utf8Stream {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = Vec::with_capacity(self.num_held + bytes.len());
        all.extend_from_slice(&self.held[..self.num_held]);
        all.extend_from_slice(bytes);
        self.num_held = 0;

        let mut text = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        for chunk in all.utf8_chunks() {
            text.push_str(chunk.valid());
            rest = &rest[chunk.valid().len()..];
            if self.hold(rest) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &rest[chunk.invalid().len()..];
            }
        }
        text
    }

    /// Keeps `rest` if it is all of a character's beginning and nothing more.
    fn hold(&mut self, rest: &[u8]) -> bool {
        let incomplete = rest.len() <= self.held.len()
            && std::str::from_utf8(rest).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
        if incomplete {
            self.held[..rest.len()].copy_from_slice(rest);
            self.num_held = rest.len();
        }
        incomplete
    }

    pub(crate) fn finish(&mut self) -> String {
        let incomplete = std::mem::take(&mut self.num_held) > 0;
        if incomplete { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::{fixed_cases, k3, tiny};

    fn decoder() -> IncrementalDecoder {
        IncrementalDecoder::new(tiny(&["[EOS]", "<|open|>"]), SpecialTokens::Skip)
    }

    /// Bytes that begin, continue and break characters of every length.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let awkward = vec![
            0x41, 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xc3, 0xe0, 0xe2, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff,
        ];
        proptest::collection::vec(proptest::sample::select(awkward), 0..50)
    }

    proptest! {
        #![proptest_config(fixed_cases(3000))]
        #[test]
        fn pieces_join_to_the_lossy_text(bytes in bytes(), cuts in proptest::collection::vec(1usize..5, 60)) {
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                text += &stream.push(head);
                rest = tail;
                let seen = &bytes[..bytes.len() - rest.len()];
                // never behind by more than one incomplete character
                prop_assert!(stream.num_held <= 3);
                prop_assert_eq!(text.clone() + &stream.clone().finish(), String::from_utf8_lossy(seen));
            }
            text += &stream.push(rest);
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_character_over_several_tokens_appears_when_it_is_complete() {
        let mut decoder = decoder();
        let pieces: Vec<String> = "😀".bytes().map(|byte| decoder.push(TokenId(byte.into())).unwrap()).collect();
        assert_eq!(pieces, ["", "", "", "😀"]);
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn an_emoji_of_two_k3_tokens_is_not_split() {
        let k3 = k3();
        let ids = k3.encode_text("😀");
        assert_eq!(ids.len(), 2);
        let mut decoder = IncrementalDecoder::new(k3, SpecialTokens::Skip);
        assert_eq!(decoder.push(ids[0]).unwrap(), "");
        assert_eq!(decoder.push(ids[1]).unwrap(), "😀");
    }

    #[test]
    fn lone_continuation_bytes_and_replacement_characters_flow_at_once() {
        let mut decoder = decoder();
        for _ in 0..5_000 {
            assert_eq!(decoder.push(TokenId(0x80)).unwrap(), "\u{fffd}");
            assert_eq!(decoder.num_held_bytes(), 0);
        }
        let replacement = "\u{fffd}".bytes().cycle().take(15_000);
        let text: String = replacement.map(|byte| decoder.push(TokenId(byte.into())).unwrap()).collect();
        assert_eq!(text, "\u{fffd}".repeat(5_000));
    }

    #[test]
    fn specials_are_skipped_or_named_and_strangers_refused() {
        let tokenizer = tiny(&["[EOS]", "<|open|>"]);
        let first = tokenizer.num_base_tokens() as u32;
        let ids = [TokenId(first), TokenId(first + 1), TokenId(97)];
        for (specials, expected) in [(SpecialTokens::Skip, "<|open|>a"), (SpecialTokens::Keep, "[EOS]<|open|>a")] {
            let mut decoder = IncrementalDecoder::new(tokenizer.clone(), specials);
            assert_eq!(ids.map(|id| decoder.push(id).unwrap()).concat(), expected);
        }
        let mut decoder = decoder();
        assert_eq!(decoder.push(TokenId(0xf0)).unwrap(), "");
        assert!(decoder.push(TokenId(first + 256)).is_err());
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }
}
