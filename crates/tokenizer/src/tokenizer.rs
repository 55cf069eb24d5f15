//! A checkpoint's tokenizer: base vocabulary, pre-tokenizer and special tokens in one.
//!
//! What: text to ids, either as plain text or as markup in which special tokens are recognised; ids to bytes; and what
//! the special tokens are called. What not: streaming (`decoder`), chat formats (`chat`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use perilune_config::{GenerationConfig, TokenizerConfig};
use perilune_tensor::TokenId;
use regex::Regex;

use crate::pre_tokenizer::PreTokenizer;
use crate::{TokenizerError, Vocabulary, bpe};

/// Ids reserved for special tokens, right after the base vocabulary.
const NUM_SPECIAL_SLOTS: usize = 256;
const MODEL_FILE: &str = "tiktoken.model";
const END_OF_MESSAGE: [&str; 2] = ["<|end_of_msg|>", "<|im_end|>"];

/// Text to token ids and back.
///
/// Ids `0..n` are the base vocabulary by rank; the next 256 are special slots, named by the checkpoint or
/// `<|reserved_token_{id}|>`. Source: `spec/kimi-k3.md` 5.1 and 5.2.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    pre_tokenizer: PreTokenizer,
    config: TokenizerConfig,
    specials: Specials,
    stop_ids: Vec<TokenId>,
}

impl Tokenizer {
    /// Reads `tiktoken.model` (or the only `*.tiktoken` file), `tokenizer_config.json` and, where present,
    /// `generation_config.json` in `dir`.
    ///
    /// Errors: `Io`, `NoVocabulary`, `Config`, and those of [`Vocabulary::parse`] and [`Tokenizer::from_parts`].
    pub fn from_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let path = vocabulary_file(dir)?;
        let file = std::fs::read(&path).map_err(|source| TokenizerError::Io { path, source })?;
        let config = TokenizerConfig::from_dir(dir)?;
        let generation = GenerationConfig::from_dir(dir)?;
        Self::from_parts(Vocabulary::parse(&file)?, config, &generation.eos)
    }

    /// Joins a base vocabulary and the names of its special tokens. `more_stops` are ids that end a generation besides
    /// the tokenizer's own (usually `generation_config.json`'s).
    ///
    /// Errors: `Vocabulary` when a named token is not one of the 256 special slots, `UnknownToken` when one of
    /// `more_stops` is beyond them.
    pub fn from_parts(
        vocabulary: Vocabulary,
        config: TokenizerConfig,
        more_stops: &[TokenId],
    ) -> Result<Self, TokenizerError> {
        let specials = Specials::new(vocabulary.num_tokens(), &config)?;
        let vocab_size = vocabulary.num_tokens() + NUM_SPECIAL_SLOTS;
        if let Some(id) = more_stops.iter().find(|id| id.index() >= vocab_size) {
            return Err(TokenizerError::UnknownToken { id: *id, vocab_size });
        }
        let ends = END_OF_MESSAGE.iter().filter_map(|name| specials.ids.get(*name).copied());
        let mut stop_ids: Vec<TokenId> = ends.chain(config.eos).chain(more_stops.iter().copied()).collect();
        stop_ids.sort_unstable();
        stop_ids.dedup();
        Ok(Self { vocabulary, pre_tokenizer: PreTokenizer::new()?, config, specials, stop_ids })
    }

    /// Encodes plain text: what looks like a special token is ordinary text, so every id is below
    /// [`Tokenizer::num_base_tokens`].
    pub fn encode_text(&self, text: &str) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(text.len() / 3);
        self.append_text(text, &mut out);
        out
    }

    /// As [`Tokenizer::encode_text`], behind what `out` already holds.
    pub fn append_text(&self, text: &str, out: &mut Vec<TokenId>) {
        for piece in self.pre_tokenizer.split(text) {
            bpe::encode(&self.vocabulary, piece.as_bytes(), out);
        }
    }

    /// Encodes markup: special tokens, named or reserved, become their ids (the longest name where several begin at
    /// one place); the text between them is encoded as plain text. Never for text that a client controls inside a
    /// chat message.
    pub fn encode_markup(&self, text: &str) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut at = 0;
        for found in self.specials.pattern.find_iter(text) {
            self.append_text(&text[at..found.start()], &mut out);
            out.extend(self.specials.ids.get(found.as_str()));
            at = found.end();
        }
        self.append_text(&text[at..], &mut out);
        out
    }

    /// The bytes a token stands for: for a special token, those of its name.
    ///
    /// Errors: `UnknownToken` beyond the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Result<&[u8], TokenizerError> {
        match self.special_name(id) {
            Some(name) => Ok(name.as_bytes()),
            None => {
                self.vocabulary.token(id.0).ok_or(TokenizerError::UnknownToken { id, vocab_size: self.vocab_size() })
            }
        }
    }

    /// The bytes of `ids`, one after the other. They need not be UTF-8 where `ids` were not made from text.
    ///
    /// Errors: `UnknownToken` for the first id beyond the vocabulary.
    pub fn decode_bytes(&self, ids: &[TokenId]) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            bytes.extend_from_slice(self.token_bytes(*id)?);
        }
        Ok(bytes)
    }

    /// Number of ids: base tokens and all 256 special slots. The model's own vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.num_tokens() + NUM_SPECIAL_SLOTS
    }

    /// Number of base tokens; ids from here on are special.
    pub fn num_base_tokens(&self) -> usize {
        self.vocabulary.num_tokens()
    }

    /// Whether `id` is beyond the base vocabulary, so that it can never come from plain text.
    pub fn is_control(&self, id: TokenId) -> bool {
        id.index() >= self.vocabulary.num_tokens()
    }

    /// Whether "skip special tokens" leaves `id` out of decoded text: tokens the checkpoint marks as special, and
    /// unnamed slots. K3's `<|open|>`, `<|close|>` and `<|sep|>` are not among them.
    pub fn is_skipped(&self, id: TokenId) -> bool {
        self.is_control(id) && self.config.added_tokens.get(&id).is_none_or(|token| token.special)
    }

    /// The id of a special token by its exact name.
    pub fn special_id(&self, name: &str) -> Option<TokenId> {
        self.specials.ids.get(name).copied()
    }

    /// The name of a special token; `None` for base tokens and beyond the vocabulary.
    pub fn special_name(&self, id: TokenId) -> Option<&str> {
        let slot = id.index().checked_sub(self.vocabulary.num_tokens())?;
        self.specials.names.get(slot).map(String::as_str)
    }

    /// What `tokenizer_config.json` says: begin, end, padding and unknown ids, and the longest sequence.
    pub fn config(&self) -> &TokenizerConfig {
        &self.config
    }

    /// The id that ends a document (`[EOS]`), where the checkpoint names one.
    pub fn eos_id(&self) -> Option<TokenId> {
        self.config.eos
    }

    /// Every id that ends a generation, ascending: the end of a message, the end of a document, and those of
    /// `generation_config.json`.
    pub fn stop_ids(&self) -> &[TokenId] {
        &self.stop_ids
    }

    /// Whether `id` ends a generation.
    pub fn is_stop(&self, id: TokenId) -> bool {
        self.stop_ids.binary_search(&id).is_ok()
    }
}

/// The names of the 256 slots behind the base vocabulary.
#[derive(Debug)]
struct Specials {
    names: Vec<String>,
    ids: HashMap<String, TokenId>,
    /// Any one name; longer names first, as the engine prefers the first alternative.
    pattern: Regex,
}

impl Specials {
    fn new(num_base: usize, config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let slots = num_base..num_base + NUM_SPECIAL_SLOTS;
        let vocabulary = |reason: String| TokenizerError::Vocabulary { reason };
        if let Some((id, token)) = config.added_tokens.iter().find(|(id, _)| !slots.contains(&id.index())) {
            let (first, last, name) = (slots.start, slots.end - 1, &token.content);
            return Err(vocabulary(format!("`{name}` has id {id}, but the special slots are {first} to {last}")));
        }
        let name = |id: usize| match config.added_tokens.get(&TokenId(id as u32)) {
            Some(token) => token.content.clone(),
            None => format!("<|reserved_token_{id}|>"),
        };
        let names: Vec<String> = slots.clone().map(name).collect();
        let mut ids = HashMap::with_capacity(names.len());
        for (name, id) in names.iter().zip(slots) {
            if ids.insert(name.clone(), TokenId(id as u32)).is_some() {
                return Err(vocabulary(format!("two special slots are called `{name}`")));
            }
        }
        let mut escaped: Vec<&String> = names.iter().collect();
        escaped.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let escaped: Vec<String> = escaped.into_iter().map(|name| regex::escape(name)).collect();
        let pattern =
            Regex::new(&escaped.join("|")).map_err(|error| vocabulary(format!("names of special tokens: {error}")))?;
        Ok(Self { names, ids, pattern })
    }
}

fn vocabulary_file(dir: &Path) -> Result<PathBuf, TokenizerError> {
    let usual = dir.join(MODEL_FILE);
    if usual.is_file() {
        return Ok(usual);
    }
    let io = |source| TokenizerError::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "tiktoken") {
            found.push(path);
        }
    }
    match (found.pop(), found.len()) {
        (Some(path), 0) => Ok(path),
        (last, others) => {
            Err(TokenizerError::NoVocabulary { dir: dir.to_owned(), found: others + usize::from(last.is_some()) })
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, LazyLock};

    use perilune_config::AddedToken;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::vocabulary::tests::small;

    pub(crate) fn fixed_cases(cases: u32) -> ProptestConfig {
        ProptestConfig { cases, rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() }
    }

    /// K3's own vocabulary and names; read once, since every test module asks for it and reading takes a while.
    pub(crate) fn k3() -> Arc<Tokenizer> {
        static K3: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
            Arc::new(Tokenizer::from_dir(&data).unwrap())
        });
        K3.clone()
    }

    /// The 256 bytes, some merges, and `names` in the first special slots.
    pub(crate) fn tiny(names: &[&str]) -> Arc<Tokenizer> {
        let vocabulary = small(&["th", "ink", "think", "re", "sponse", "response", "message", "call", "tools"]);
        let first = vocabulary.num_tokens() as u32;
        let token = |name: &&str| AddedToken { content: (*name).to_owned(), special: name.starts_with('[') };
        let added_tokens: BTreeMap<_, _> = (first..).map(TokenId).zip(names.iter().map(token)).collect();
        let eos = added_tokens.iter().find(|(_, token)| token.content == "[EOS]").map(|(id, _)| *id);
        let config = TokenizerConfig { added_tokens, eos, ..TokenizerConfig::default() };
        Arc::new(Tokenizer::from_parts(vocabulary, config, &[]).unwrap())
    }

    #[test]
    fn special_looking_text_is_ordinary_text_unless_it_is_markup() {
        let k3 = k3();
        let text = "a<|close|>message<|sep|><|end_of_msg|><|reserved_token_163700|>";
        assert!(k3.encode_text(text).iter().all(|id| !k3.is_control(*id)));
        let markup = k3.encode_markup(text);
        let specials: Vec<u32> = markup.iter().filter(|id| k3.is_control(**id)).map(|id| id.0).collect();
        assert_eq!(specials, [163588, 163589, 163586, 163700]);
        assert_eq!(k3.decode_bytes(&markup).unwrap(), text.as_bytes());
        assert_eq!(k3.decode_bytes(&k3.encode_text(text)).unwrap(), text.as_bytes());
    }

    #[test]
    fn the_think_tag_is_three_ordinary_tokens() {
        assert_eq!(k3().encode_text("<think>").len(), 3);
    }

    #[test]
    fn ids_names_and_ends() {
        let k3 = k3();
        assert_eq!((k3.vocab_size(), k3.num_base_tokens()), (163_840, 163_584));
        assert_eq!(k3.special_id("<|open|>"), Some(TokenId(163_587)));
        assert_eq!(k3.special_name(TokenId(163_594)), Some("<|reserved_token_163594|>"));
        assert_eq!(k3.special_name(TokenId(5)), None);
        assert_eq!(k3.eos_id(), Some(TokenId(163_585)));
        assert_eq!(k3.stop_ids(), [163_585, 163_586].map(TokenId));
        assert!(k3.is_skipped(TokenId(163_585)) && k3.is_skipped(TokenId(163_594)));
        assert!(!k3.is_skipped(TokenId(163_587)) && !k3.is_skipped(TokenId(7)));
        let error = k3.token_bytes(TokenId(163_840)).unwrap_err().to_string();
        assert!(error.contains("163840") && error.contains("vocabulary"), "{error}");
    }

    #[test]
    fn the_longest_special_name_wins() {
        let tokenizer = tiny(&["<a>", "<a><b>"]);
        let first = tokenizer.num_base_tokens() as u32;
        assert_eq!(tokenizer.encode_markup("<a><b><a>"), [first + 1, first].map(TokenId));
    }

    #[test]
    fn names_outside_the_slots_and_unknown_stops_are_refused() {
        let config = TokenizerConfig {
            added_tokens: BTreeMap::from([(TokenId(3), AddedToken { content: "<x>".to_owned(), special: true })]),
            ..TokenizerConfig::default()
        };
        let error = Tokenizer::from_parts(small(&[]), config, &[]).unwrap_err().to_string();
        assert!(error.contains("`<x>` has id 3") && error.contains("256 to 511"), "{error}");
        let error = Tokenizer::from_parts(small(&[]), TokenizerConfig::default(), &[TokenId(512)]);
        assert!(error.unwrap_err().to_string().contains("512"));
    }

    /// An independent implementation of the whole: published expression, backtracking engine, another merge loop.
    fn oracle(k3: &Tokenizer) -> tiktoken_rs::CoreBPE {
        let ranks = (0..k3.num_base_tokens() as u32).map(|rank| (k3.vocabulary.token(rank).unwrap().to_vec(), rank));
        let pattern = crate::pre_tokenizer::tests::published();
        tiktoken_rs::CoreBPE::new(ranks.collect(), Default::default(), &pattern).unwrap()
    }

    #[test]
    fn equals_an_independent_tokenizer_on_the_real_vocabulary() {
        let k3 = k3();
        let oracle = oracle(&k3);
        let words = "the quick  brown\n\nFox don't 北京是中国的首都 😀 HTTPServer2024 x=3.14159; naïve Ünïcödé مرحبا 12345678 \t\tif";
        let words: Vec<&str> = words.split(' ').collect();
        let separator = proptest::sample::select(vec![" ", "", "  ", "\n", " \n ", "\r\n", ". "]);
        let text = proptest::collection::vec((proptest::sample::select(words), separator), 0..60);
        proptest!(fixed_cases(300), |(parts in text, any in "\\PC{0,40}")| {
            let known: String = parts.into_iter().flat_map(|(word, separator)| [word, separator]).collect();
            for text in [known, any] {
                let ids: Vec<u32> = k3.encode_text(&text).iter().map(|id| id.0).collect();
                prop_assert_eq!(ids, oracle.encode_ordinary(&text));
            }
        });
        let long = "ACGT".repeat(5_000);
        assert_eq!(k3.encode_text(&long).iter().map(|id| id.0).collect::<Vec<_>>(), oracle.encode_ordinary(&long));
    }

    proptest! {
        #![proptest_config(fixed_cases(300))]
        #[test]
        fn text_survives_the_round_trip(text in any::<String>()) {
            let tokenizer = tiny(&["<|open|>"]);
            prop_assert_eq!(tokenizer.decode_bytes(&tokenizer.encode_text(&text)).unwrap(), text.as_bytes());
            prop_assert_eq!(tokenizer.decode_bytes(&tokenizer.encode_markup(&text)).unwrap(), text.as_bytes());
        }
    }
}
