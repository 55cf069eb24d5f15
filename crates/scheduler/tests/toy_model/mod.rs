//! A model small enough to run in a test, with both kinds of memory: a state that every token changes, in slots, and
//! tokens that later ones look back at, in blocks. Whoever mixes up, shares or fails to clear memory gets other tokens.

use std::ops::Range;

use perilune_cache::{BlockId, SlotId};
use perilune_sampling::{SamplingParams, StopRules, TokenLogprob, TokenLogprobs, Verdict};
use perilune_scheduler::FinishReason;
use perilune_tensor::TokenId;

/// Tokens are below this.
pub(crate) const VOCAB: u32 = 29;
/// The end token.
pub(crate) const EOS: TokenId = TokenId(0);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 31)).wrapping_mul(0x7FB5_D329_728E_A185);
    z = (z ^ (z >> 27)).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    z ^ (z >> 33)
}

/// Memory of the model.
pub(crate) struct ToyModel {
    block_size: usize,
    slots: Vec<u64>,
    blocks: Vec<Vec<u32>>,
}

impl ToyModel {
    /// Memory filled with garbage: nothing may rely on what it did not write.
    pub(crate) fn new(block_size: usize, num_blocks: usize, num_slots: usize) -> Self {
        ToyModel { block_size, slots: vec![0xBAD; num_slots], blocks: vec![vec![0xBAD; block_size]; num_blocks] }
    }

    /// Clears a state slot.
    pub(crate) fn zero_slot(&mut self, slot: SlotId) {
        self.slots[slot.index as usize] = 0;
    }

    /// Computes `tokens` from `position` on; returns a digest of the history after each.
    pub(crate) fn run(
        &mut self,
        tokens: &[TokenId],
        position: usize,
        (slot, blocks): (SlotId, &[BlockId]),
    ) -> Vec<u64> {
        let mut digests = Vec::new();
        for (i, &token) in tokens.iter().enumerate() {
            let at = position + i;
            let place = |at: usize| (blocks[at / self.block_size].0 as usize, at % self.block_size);
            let (block, row) = place(at);
            self.blocks[block][row] = token.0;
            let state = &mut self.slots[slot.index as usize];
            *state = mix(*state ^ u64::from(token.0 + 1));
            let looked_back = (0..=at).map(place).fold(0, |sum, (block, row)| fold(sum, self.blocks[block][row]));
            digests.push(*state ^ looked_back);
        }
        digests
    }
}

fn fold(sum: u64, token: u32) -> u64 {
    mix(sum.wrapping_add(u64::from(token)).wrapping_add(0x51))
}

/// The digest of a history, worked out without any cache.
pub(crate) fn digest(history: &[TokenId]) -> u64 {
    let state = history.iter().fold(0, |state, token| mix(state ^ u64::from(token.0 + 1)));
    state ^ history.iter().fold(0, |sum, token| fold(sum, token.0))
}

/// The token drawn after a history: a function of digest, seed, step and the tokens that must not come.
pub(crate) fn draw(digest: u64, (seed, step): (u64, usize), banned: &[TokenId]) -> TokenId {
    let start = mix(digest ^ mix(seed.wrapping_add(step as u64)));
    let candidates = (0..u64::from(VOCAB)).map(|i| TokenId(((start.wrapping_add(i)) % u64::from(VOCAB)) as u32));
    candidates.into_iter().find(|id| !banned.contains(id)).expect("some token is allowed")
}

/// The log-probabilities reported for a token after a history.
pub(crate) fn logprobs(digest: u64, id: TokenId) -> TokenLogprobs {
    let logprob = -((mix(digest ^ u64::from(id.0)) % 1000) as f32) / 100.0;
    TokenLogprobs { chosen: TokenLogprob { id, logprob }, top: Vec::new() }
}

/// Log-probabilities of every token of `tokens[range]` but the very first of all.
pub(crate) fn prompt_logprobs(tokens: &[TokenId], range: Range<usize>) -> Vec<Option<TokenLogprobs>> {
    range.map(|i| (i > 0).then(|| logprobs(digest(&tokens[..i]), tokens[i]))).collect()
}

/// What a request alone in the world gives.
pub(crate) fn oracle(
    prompt: &[TokenId],
    params: &SamplingParams,
    (seed, room): (u64, usize),
) -> (Vec<TokenId>, FinishReason) {
    let rules = StopRules::new(params, &[EOS], room);
    let mut tokens = prompt.to_vec();
    if rules.max_tokens() == 0 {
        return (Vec::new(), FinishReason::Length);
    }
    loop {
        let step = tokens.len() - prompt.len();
        let next = draw(digest(&tokens), (seed, step), rules.banned(step));
        tokens.push(next);
        match rules.verdict(next, step + 1) {
            Verdict::Continue => (),
            Verdict::Stop(token) => return (tokens.split_off(prompt.len()), FinishReason::Stop { token }),
            Verdict::Length => return (tokens.split_off(prompt.len()), FinishReason::Length),
        }
    }
}
