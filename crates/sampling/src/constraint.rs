//! What decides which tokens may come next: the contract between a grammar and an engine.
//!
//! A [`Grammar`] is what a request carries; each of its sequences starts a [`TokenConstraint`] of its own, which follows
//! the sequence token by token. The engine asks for a mask before a token is drawn, tells which token came, and for runs
//! of drafted tokens asks for the masks of all rows at once ([`masks_along`]). Grammars themselves are not here.

use std::fmt;
use std::sync::Arc;

use perilune_tensor::{TokenId, TokenMask};

/// Why a constraint cannot go on. Ends its sequence alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// What the request demands cannot be written: nothing can follow.
    #[error("{0}")]
    Impossible(String),
    /// Following what the request demands needs more than a limit allows.
    #[error("{0}")]
    Limit(String),
    /// A fault of whoever follows the grammar, or a token that was not allowed: nothing that the request could do better.
    #[error("{0}")]
    Broken(String),
}

/// The state of one sequence in a grammar.
pub trait TokenConstraint: Send + fmt::Debug {
    /// The tokens that may come next, never none.
    ///
    /// # Errors
    /// Where a limit of the grammar's is reached.
    fn mask(&mut self) -> Result<TokenMask, ConstraintError>;

    /// Goes on by a token.
    ///
    /// # Errors
    /// Where the token was not allowed.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// Goes back by the last `count` accepted tokens.
    ///
    /// # Errors
    /// Where fewer were accepted.
    fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError>;
}

/// Starts constraints.
pub trait Grammar: Send + Sync + fmt::Debug {
    /// A constraint before the first generated token.
    fn start(&self) -> Box<dyn TokenConstraint>;
}

/// A grammar as requests share it; equal to itself alone.
#[derive(Debug, Clone)]
pub struct SharedGrammar(pub Arc<dyn Grammar>);

impl PartialEq for SharedGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The masks of the rows that verify a draft: one before each drafted token and one after the last. Ends early after a
/// drafted token that is not allowed, whose row is the last: it can only be rejected; and after one that is allowed but not
/// accepted, the end of an output. Leaves the constraint where it was.
///
/// # Errors
/// Those of the constraint.
pub fn masks_along(
    constraint: &mut dyn TokenConstraint,
    drafted: &[TokenId],
) -> Result<Vec<TokenMask>, ConstraintError> {
    let mut masks = vec![constraint.mask()?];
    let mut accepted = 0;
    for token in drafted {
        if !masks.last().is_some_and(|mask| mask.allows(*token)) {
            break;
        }
        // What ends an output may be allowed and yet be nothing that a constraint can go on with: no row after it matters.
        if constraint.accept(*token).is_err() {
            break;
        }
        accepted += 1;
        masks.push(constraint.mask()?);
    }
    constraint.roll_back(accepted)?;
    Ok(masks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows the token after the last one, and nothing beyond 5.
    #[derive(Debug)]
    struct Counting(Vec<u32>);

    impl TokenConstraint for Counting {
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            Ok(TokenMask::of(&[TokenId(self.0.last().map_or(0, |last| last + 1))], 6))
        }

        fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
            self.0.push(token.0);
            Ok(())
        }

        fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
            self.0.truncate(self.0.len() - count);
            Ok(())
        }
    }

    #[test]
    fn a_draft_has_a_mask_per_row_and_leaves_no_trace() {
        let mut constraint = Counting(vec![0]);
        let drafted = [1, 2, 9, 3].map(TokenId);
        let masks = masks_along(&mut constraint, &drafted).unwrap();
        assert_eq!(masks, [1, 2, 3].map(|id| TokenMask::of(&[TokenId(id)], 6)));
        assert_eq!(constraint.0, [0]);
        assert_eq!(masks_along(&mut constraint, &[]).unwrap().len(), 1);
    }

    /// Complete after one token: then only the end is allowed, which it does not accept.
    #[derive(Debug)]
    struct Complete(Vec<TokenId>);

    impl TokenConstraint for Complete {
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            Ok(TokenMask::of(&[TokenId(self.0.len() as u32)], 6))
        }

        fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
            if !self.0.is_empty() {
                return Err(ConstraintError::Broken("the answer was complete".to_owned()));
            }
            self.0.push(token);
            Ok(())
        }

        fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
            self.0.truncate(self.0.len() - count);
            Ok(())
        }
    }

    #[test]
    fn a_draft_that_goes_on_after_the_end_is_no_fault() {
        let mut constraint = Complete(Vec::new());
        for drafted in [vec![0, 1], vec![0, 1, 1], vec![0, 1, 5]] {
            let drafted: Vec<TokenId> = drafted.into_iter().map(TokenId).collect();
            let masks = masks_along(&mut constraint, &drafted).unwrap();
            assert_eq!(masks, [0, 1].map(|id| TokenMask::of(&[TokenId(id)], 6)), "{drafted:?}");
            assert!(constraint.0.is_empty());
        }
    }
}
