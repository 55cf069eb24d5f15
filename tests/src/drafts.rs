//! Drafts without a model: right up to some place, wrong from there on, or drawn by chance from a law of their own.

use std::hash::{DefaultHasher, Hash, Hasher};

use perilune_backend::{Backend, BackendError, Choice, RandomStream, uniform, uniform_of};
use perilune_model::{Caches, Kimi};
use perilune_speculate::{Draft, DraftRequest, Proposal, pick};
use perilune_tensor::TokenId;

/// Knows some sequences by heart and proposes how they go on.
#[derive(Debug, Clone)]
pub struct ByHeart {
    /// The sequences, from their first token on.
    pub book: Vec<Vec<TokenId>>,
    /// Most drafts.
    pub max_drafts: usize,
    /// Place in a proposal from which on it is wrong.
    pub wrong_at: Option<usize>,
    /// Token ids are below this.
    pub vocab_size: usize,
}

impl ByHeart {
    fn proposal(&self, history: &[TokenId], most: usize) -> Proposal {
        let known = self.book.iter().find(|known| known.len() > history.len() && known.starts_with(history));
        let guess = |place: usize| TokenId((hash(&(history, place)) % self.vocab_size as u64) as u32);
        let token = |place: usize| {
            let right = known.and_then(|known| known.get(history.len() + place).copied());
            let token = right.unwrap_or_else(|| guess(place));
            let wrong = self.wrong_at.is_some_and(|wrong_at| place >= wrong_at);
            if wrong { TokenId((token.0 + 1) % self.vocab_size as u32) } else { token }
        };
        // Not always as many as it might.
        let len = if hash(history).is_multiple_of(4) { most / 2 } else { most };
        Proposal { tokens: (0..len).map(token).collect(), ..Proposal::default() }
    }
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<B: Backend> Draft<B> for ByHeart {
    fn max_drafts(&self) -> usize {
        self.max_drafts
    }

    fn propose(
        &mut self,
        _: (&B, &Kimi<B>),
        requests: &[DraftRequest<'_>],
        _: &mut Caches<B>,
    ) -> Result<Vec<Proposal>, BackendError> {
        Ok(requests.iter().map(|request| self.proposal(request.history, request.max_drafts)).collect())
    }
}

/// Draws each draft from a law that depends on what comes before it and has nothing to do with the target's.
#[derive(Debug, Clone, Copy)]
pub struct ByChance {
    /// Most drafts.
    pub max_drafts: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// 0 for the same chance for every token; the larger, the more decided.
    pub sharpness: f64,
}

impl ByChance {
    fn proposal(&self, request: &DraftRequest<'_>) -> Proposal {
        let mut history = request.history.to_vec();
        let mut probabilities = Vec::new();
        for (place, row) in request.rows.iter().take(request.max_drafts).enumerate() {
            let seed_of_law = hash(&history);
            let law = |id: usize| (self.sharpness * uniform(seed_of_law, id as u64)).exp();
            let weights: Vec<f64> = (0..self.vocab_size).map(law).collect();
            let total: f64 = weights.iter().sum();
            let Choice::Draw { seed, .. } = row.choice else { panic!("drafts are drawn") };
            let step =
                request.rows.first().map_or(0, |row| if let Choice::Draw { step, .. } = row.choice { step } else { 0 });
            let chance = uniform_of(RandomStream::Proposal, seed, step, place as u64);
            let token = pick(&weights, chance).expect("some token has a chance");
            history.push(TokenId(token as u32));
            probabilities.push(weights.iter().map(|w| (w / total) as f32).collect());
        }
        let tokens = history.split_off(request.history.len());
        Proposal { tokens, probabilities: Some(probabilities), confidence: Vec::new() }
    }
}

impl<B: Backend> Draft<B> for ByChance {
    fn max_drafts(&self) -> usize {
        self.max_drafts
    }

    fn propose(
        &mut self,
        _: (&B, &Kimi<B>),
        requests: &[DraftRequest<'_>],
        _: &mut Caches<B>,
    ) -> Result<Vec<Proposal>, BackendError> {
        Ok(requests.iter().map(|request| self.proposal(request)).collect())
    }
}
