//! A tokenizer in the terms of llguidance: the bytes of every token in a trie.
//!
//! Control tokens get a marker byte in front that no text contains, so that no text can ever be one. Tokens that hold
//! the byte of that marker are left out: they are never part of valid UTF-8.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use perilune_tensor::TokenId;
use perilune_tokenizer::Tokenizer;

struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

/// The environment in which grammars over `tokenizer` are compiled; `ends` may come where a grammar is complete.
pub(crate) fn environment(tokenizer: Arc<Tokenizer>, ends: &[TokenId]) -> TokEnv {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    let word = |id: u32| {
        let id = TokenId(id);
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        match tokenizer.is_control(id) {
            true => [&[marker], bytes].concat(),
            false if bytes.contains(&marker) => Vec::new(),
            false => bytes.to_vec(),
        }
    };
    let vocab_size = tokenizer.vocab_size() as u32;
    let words: Vec<Vec<u8>> = (0..vocab_size).map(word).collect();
    let ends: Vec<u32> = ends.iter().map(|id| id.0).collect();
    let first = ends.first().copied().unwrap_or(vocab_size - 1);
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size, first), &words);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
    Arc::new(Vocabulary { tokenizer, trie })
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.tokenizer.encode_text(text).into_iter().map(|id| id.0).collect(),
            Err(_) => self.trie.greedy_tokenize(bytes),
        }
    }

    fn tokenize_is_canonical(&self) -> bool {
        // The model chooses how it spells what a grammar fixes.
        false
    }
}
