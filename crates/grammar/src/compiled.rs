//! A compiled grammar: the state before the first token, copied for each sequence.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use perilune_sampling::{Grammar, TokenConstraint};

use crate::constraint::{GrammarConstraint, Thinking};

/// A grammar that sequences can start in.
pub struct CompiledGrammar {
    template: Mutex<Matcher>,
    thinking: Option<Arc<Thinking>>,
    vocab_size: usize,
}

impl CompiledGrammar {
    pub(crate) fn new(template: Matcher, thinking: Option<Arc<Thinking>>, vocab_size: usize) -> Self {
        CompiledGrammar { template: Mutex::new(template), thinking, vocab_size }
    }
}

impl Grammar for CompiledGrammar {
    fn start(&self) -> Box<dyn TokenConstraint> {
        // Independent lexer caches: sequences are advanced on several threads.
        let matcher = self.template.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Box::new(GrammarConstraint::new(matcher, self.thinking.clone(), self.vocab_size))
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledGrammar(thinks first: {})", self.thinking.is_some())
    }
}
