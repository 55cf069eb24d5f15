//! A model without weights: draws among the tokens that a grammar allows, and reads what it wrote as a client would.

use std::path::Path;
use std::sync::Arc;

use perilune_grammar::{ChatRule, Grammars, Limits, Rule};
use perilune_sampling::{Grammar, TokenConstraint};
use perilune_tensor::{TokenId, TokenMask};
use perilune_tokenizer::{OutputOptions, OutputParser, OutputStart, ParsedMessage, Tokenizer};

/// Longest walk, in tokens.
const MAX_STEPS: usize = 4000;

/// The demo's vocabulary.
pub fn tokenizer() -> Arc<Tokenizer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    Arc::new(Tokenizer::from_dir(&dir).unwrap())
}

pub fn grammars() -> (Arc<Tokenizer>, Grammars) {
    let tokenizer = tokenizer();
    (tokenizer.clone(), Grammars::new(tokenizer, Limits::default()))
}

/// Numbers from a seed.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Tokens that a grammar allows, drawn until it is complete; `None` where that takes too long. Tokens that end things
/// (control tokens, quotes, brackets) are drawn more often than others, as else few walks would end.
pub fn walk(grammar: &dyn Grammar, tokenizer: &Tokenizer, seed: u64) -> Option<Vec<TokenId>> {
    let mut constraint = grammar.start();
    let mut noise = Noise(seed);
    let mut tokens = Vec::new();
    while tokens.len() < MAX_STEPS {
        let mask = constraint.mask().unwrap();
        let token = draw(&mask, tokenizer, &mut noise);
        tokens.push(token);
        if tokenizer.is_stop(token) {
            return Some(tokens);
        }
        constraint.accept(token).unwrap();
        sometimes_roll_back(constraint.as_mut(), &mut tokens, &mut noise);
    }
    None
}

fn draw(mask: &TokenMask, tokenizer: &Tokenizer, noise: &mut Noise) -> TokenId {
    let allowed: Vec<TokenId> = (0..tokenizer.vocab_size() as u32).map(TokenId).filter(|id| mask.allows(*id)).collect();
    assert!(!allowed.is_empty());
    let ends = |id: &&TokenId| {
        let bytes = tokenizer.token_bytes(**id).unwrap();
        tokenizer.is_control(**id) || [&b"\""[..], b"}", b"]", b"\"}", b"\"]"].contains(&bytes)
    };
    let ending: Vec<&TokenId> = allowed.iter().filter(ends).collect();
    match (noise.next() % 4, ending.len() as u64) {
        (0, count) if count > 0 => *ending[(noise.next() % count) as usize],
        _ => allowed[(noise.next() % allowed.len() as u64) as usize],
    }
}

/// Takes a few tokens back and puts them again, as a rejected draft would.
fn sometimes_roll_back(constraint: &mut dyn TokenConstraint, tokens: &mut [TokenId], noise: &mut Noise) {
    if !noise.next().is_multiple_of(16) {
        return;
    }
    let count = (noise.next() as usize % 5).min(tokens.len());
    let before = constraint.mask().unwrap();
    constraint.roll_back(count).unwrap();
    for token in &tokens[tokens.len() - count..] {
        assert!(constraint.mask().unwrap().allows(*token));
        constraint.accept(*token).unwrap();
    }
    assert_eq!(constraint.mask().unwrap(), before, "a mask after going back and forth");
}

/// What a client reads of a walk through the answer of a chat.
pub fn read(tokenizer: &Arc<Tokenizer>, start: OutputStart, tokens: &[TokenId]) -> ParsedMessage {
    let options = OutputOptions { start, stops: Vec::new() };
    let mut parser = OutputParser::new(tokenizer.clone(), &options).unwrap();
    let mut message = ParsedMessage::default();
    tokens.iter().for_each(|token| message.apply(parser.push(*token).unwrap()));
    message.apply(parser.finish());
    message
}

/// Walks of a chat rule that ended, as messages.
pub fn messages(
    (tokenizer, grammars): &(Arc<Tokenizer>, Grammars),
    rule: ChatRule,
    seeds: std::ops::Range<u64>,
) -> Vec<ParsedMessage> {
    let start = rule.start;
    let grammar = grammars.compile(&Rule::Chat(rule)).unwrap_or_else(|error| panic!("{error}"));
    let walks = seeds.filter_map(|seed| walk(grammar.as_ref(), tokenizer, seed));
    walks.map(|tokens| read(tokenizer, start, &tokens)).collect()
}
