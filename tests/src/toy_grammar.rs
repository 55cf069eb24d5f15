//! A grammar without a language: which tokens may come next follows from those that came. It notices tokens that it had
//! not allowed, and may fail on purpose.

use std::sync::Arc;

use perilune_engine::{ConstraintError, Grammar, SharedGrammar, TokenConstraint};
use perilune_tensor::{TokenId, TokenMask};

/// Allows about a third of a vocabulary of 64, never none.
#[derive(Debug, Clone, Copy)]
pub struct ToyGrammar {
    /// Tokens after which it cannot go on.
    pub fails_after: Option<usize>,
}

impl ToyGrammar {
    /// One that never fails, as a request carries it.
    pub fn shared() -> SharedGrammar {
        SharedGrammar(Arc::new(ToyGrammar { fails_after: None }))
    }
}

#[derive(Debug)]
struct Toy {
    grammar: ToyGrammar,
    tokens: Vec<TokenId>,
}

impl Grammar for ToyGrammar {
    fn start(&self) -> Box<dyn TokenConstraint> {
        Box::new(Toy { grammar: *self, tokens: Vec::new() })
    }
}

impl TokenConstraint for Toy {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        if self.grammar.fails_after == Some(self.tokens.len()) {
            return Err(ConstraintError::Impossible("the toy was told to fail".to_owned()));
        }
        let sum: u32 = self.tokens.iter().map(|id| id.0 * 7 + 1).sum();
        let allowed: Vec<TokenId> = (0..64).filter(|id| (id * 5 + sum).is_multiple_of(3)).map(TokenId).collect();
        Ok(TokenMask::of(&allowed, 64))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if !self.mask()?.allows(token) {
            return Err(ConstraintError::Broken(format!("token {token} was not allowed")));
        }
        self.tokens.push(token);
        Ok(())
    }

    fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        self.tokens.truncate(self.tokens.len() - count);
        Ok(())
    }
}
