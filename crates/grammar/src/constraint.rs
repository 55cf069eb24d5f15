//! One sequence in a grammar: thinking first, free; then what closes it; then the grammar.

use std::sync::Arc;

use llguidance::Matcher;
use perilune_sampling::{ConstraintError, TokenConstraint};
use perilune_tensor::{TokenId, TokenMask};

/// What a model writes before the channel that a grammar governs.
#[derive(Debug)]
pub(crate) struct Thinking {
    /// Opens a marker that closes the channel.
    pub close: TokenId,
    /// The rest of that marker.
    pub rest: Vec<TokenId>,
    /// Everything but control tokens; `close` is allowed.
    pub free: TokenMask,
}

/// The state of one sequence.
pub(crate) struct GrammarConstraint {
    matcher: Matcher,
    thinking: Option<Arc<Thinking>>,
    /// Where it stood before each token that came before the grammar; the last is where it stands.
    preamble: Vec<Preamble>,
    in_grammar: usize,
    vocab_size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preamble {
    Free,
    /// So many tokens of the closing marker have come.
    Closing(u8),
    Over,
}

impl GrammarConstraint {
    pub(crate) fn new(matcher: Matcher, thinking: Option<Arc<Thinking>>, vocab_size: usize) -> Self {
        let first = if thinking.is_some() { Preamble::Free } else { Preamble::Over };
        GrammarConstraint { matcher, thinking, preamble: vec![first], in_grammar: 0, vocab_size }
    }

    fn at(&self) -> Preamble {
        self.preamble.last().copied().unwrap_or(Preamble::Over)
    }

    /// What must come next of the marker that closes the think channel.
    fn forced(&self, come: u8) -> Option<TokenId> {
        self.thinking.as_ref()?.rest.get(usize::from(come) - 1).copied()
    }

    fn after(&self, token: TokenId) -> Result<Preamble, ConstraintError> {
        let Some(thinking) = &self.thinking else { return Ok(Preamble::Over) };
        match self.at() {
            Preamble::Free if token == thinking.close => Ok(Preamble::Closing(1)),
            Preamble::Free if thinking.free.allows(token) => Ok(Preamble::Free),
            Preamble::Closing(come) if self.forced(come) == Some(token) => {
                let all = usize::from(come) == thinking.rest.len();
                Ok(if all { Preamble::Over } else { Preamble::Closing(come + 1) })
            }
            _ => Err(ConstraintError::Broken(format!("token {token} was not allowed while the model thinks"))),
        }
    }
}

impl TokenConstraint for GrammarConstraint {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        match (self.at(), &self.thinking) {
            (Preamble::Free, Some(thinking)) => Ok(thinking.free.clone()),
            (Preamble::Closing(come), _) => {
                let forced: Vec<TokenId> = self.forced(come).into_iter().collect();
                Ok(TokenMask::of(&forced, self.vocab_size))
            }
            _ => {
                let mask = self.matcher.compute_mask_or_eos().map_err(|error| failed(&error.to_string()))?;
                let mut words: Vec<u32> = mask.into();
                words.truncate(self.vocab_size.div_ceil(32));
                let mask = TokenMask::from_words(words);
                if mask.is_empty() { Err(failed("no token can follow")) } else { Ok(mask) }
            }
        }
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if self.at() != Preamble::Over {
            let next = self.after(token)?;
            self.preamble.push(next);
            return Ok(());
        }
        if !self.matcher.is_stopped() {
            self.matcher.consume_token(token.0).map_err(|error| failed(&error.to_string()))?;
        } else if self.matcher.is_error() {
            return Err(failed(&self.matcher.get_error().unwrap_or_default()));
        } else {
            return Err(ConstraintError::Broken("the answer was complete".to_owned()));
        }
        self.in_grammar += 1;
        Ok(())
    }

    fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        let inside = count.min(self.in_grammar);
        if inside > 0 {
            self.matcher.rollback(inside).map_err(|error| failed(&error.to_string()))?;
            self.in_grammar -= inside;
        }
        let before = count - inside;
        if before >= self.preamble.len() {
            return Err(ConstraintError::Broken("more tokens were to be taken back than had come".to_owned()));
        }
        self.preamble.truncate(self.preamble.len() - before);
        Ok(())
    }
}

impl std::fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GrammarConstraint({:?}, {} tokens in the grammar)", self.at(), self.in_grammar)
    }
}

/// A sentence without the state dump that the library may add. What it says is about the grammar, but for its own panics and
/// for tokens that its mask did not allow.
fn failed(reason: &str) -> ConstraintError {
    let first = match reason.lines().next().unwrap_or_default() {
        // The parser's name for it.
        first if first.contains("NoExtensionBias") => "no text can follow what has been written",
        first => first,
    };
    let message = format!("the grammar cannot go on: {first}");
    let faults = ["panic: ", "out of range", "doesn't satisfy the grammar", "rollback"];
    if faults.iter().any(|fault| first.contains(fault)) {
        return ConstraintError::Broken(message);
    }
    if ["max is", "fuel", "limit"].iter().any(|word| first.contains(word)) {
        return ConstraintError::Limit(message);
    }
    ConstraintError::Impossible(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_library_are_not_the_requests() {
        let broken = |reason: &str| matches!(failed(reason), ConstraintError::Broken(_));
        assert!(broken("panic: index out of bounds\n<backtrace>"));
        assert!(broken("token \"a\" doesn't satisfy the grammar; forced bytes: got 'a'"));
        let limit = failed("Parser Error: Current row has 2007 items; max is 2000\nand more");
        assert!(matches!(limit, ConstraintError::Limit(message) if message.ends_with("max is 2000")));
        let nothing = failed("NoExtensionBias\n<non-verbose/>");
        assert!(matches!(nothing, ConstraintError::Impossible(message) if message.ends_with("what has been written")));
    }
}
