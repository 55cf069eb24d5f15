//! A model small enough to run in a test, with both kinds of memory: a state that every token changes, in slots, and
//! tokens that later ones look back at, in blocks. Whoever mixes up, shares or fails to clear memory gets other tokens.

use std::ops::Range;

use std::collections::HashMap;

use perilune_cache::{CacheOp, HostId, Place, UnitKind};
use perilune_sampling::{SamplingParams, StopRules, TokenLogprob, TokenLogprobs, Verdict};
use perilune_scheduler::FinishReason;
use perilune_tensor::TokenId;

/// Tokens are below this.
pub(crate) const VOCAB: u32 = 29;
/// The end token.
pub(crate) const EOS: TokenId = TokenId(0);

pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 31)).wrapping_mul(0x7FB5_D329_728E_A185);
    z = (z ^ (z >> 27)).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    z ^ (z >> 33)
}

/// Memory of the model.
pub(crate) struct ToyModel {
    block_size: usize,
    slots: Vec<u64>,
    blocks: Vec<Vec<u32>>,
    host: HashMap<HostId, Unit>,
}

enum Unit {
    Slot(u64),
    Block(Vec<u32>),
}

/// A run: its tokens, the position of the first, and where its memory lies.
pub(crate) struct ToyRun<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) position: usize,
    pub(crate) slot: Place,
    pub(crate) blocks: &'a [Place],
    /// After which position a copy of the state goes to which slot.
    pub(crate) snapshots: &'a [(usize, Place)],
}

impl ToyModel {
    /// Memory filled with garbage: nothing may rely on what it did not write.
    pub(crate) fn new(block_size: usize, num_blocks: usize, num_slots: usize) -> Self {
        let blocks = vec![vec![0xBAD; block_size]; num_blocks];
        ToyModel { block_size, slots: vec![0xBAD; num_slots], blocks, host: HashMap::new() }
    }

    /// Does what is to be done with units. What was saved or moved away is overwritten at once.
    pub(crate) fn perform(&mut self, op: CacheOp) {
        match op {
            CacheOp::ZeroSlot(slot) => self.slots[slot as usize] = 0,
            CacheOp::Copy { kind, from, to } => {
                assert_ne!(from, to);
                let unit = self.unit(kind, from);
                self.put(unit, to);
            }
            CacheOp::Save { kind, from, to } => {
                let unit = self.unit(kind, from);
                assert!(self.host.insert(to, unit).is_none(), "a host id was used twice");
                match kind {
                    UnitKind::Slot => self.slots[from as usize] = 0xBAD,
                    UnitKind::Block => self.blocks[from as usize].fill(0xBAD),
                }
            }
            CacheOp::Load { kind, from, to } => {
                let unit = match (kind, &self.host[&from]) {
                    (UnitKind::Slot, Unit::Slot(state)) => Unit::Slot(*state),
                    (UnitKind::Block, Unit::Block(rows)) => Unit::Block(rows.clone()),
                    _ => panic!("{from:?} is of another kind"),
                };
                self.put(unit, to);
            }
            CacheOp::Forget(id) => assert!(self.host.remove(&id).is_some(), "{id:?} is not there"),
        }
    }

    /// Units kept in host memory.
    pub(crate) fn num_saved(&self) -> usize {
        self.host.len()
    }

    fn unit(&self, kind: UnitKind, place: Place) -> Unit {
        match kind {
            UnitKind::Slot => Unit::Slot(self.slots[place as usize]),
            UnitKind::Block => Unit::Block(self.blocks[place as usize].clone()),
        }
    }

    fn put(&mut self, unit: Unit, place: Place) {
        match unit {
            Unit::Slot(state) => self.slots[place as usize] = state,
            Unit::Block(rows) => self.blocks[place as usize] = rows,
        }
    }

    /// Computes tokens; returns a digest of the history after each.
    pub(crate) fn run(&mut self, run: &ToyRun<'_>) -> Vec<u64> {
        let mut digests = Vec::new();
        for (i, &token) in run.tokens.iter().enumerate() {
            let at = run.position + i;
            let place = |at: usize| (run.blocks[at / self.block_size] as usize, at % self.block_size);
            let (block, row) = place(at);
            self.blocks[block][row] = token.0;
            let state = &mut self.slots[run.slot as usize];
            *state = mix(*state ^ u64::from(token.0 + 1));
            let looked_back = (0..=at).map(place).fold(0, |sum, (block, row)| fold(sum, self.blocks[block][row]));
            digests.push(*state ^ looked_back);
            let state = *state;
            for (_, slot) in run.snapshots.iter().filter(|(position, _)| *position == at + 1) {
                self.slots[*slot as usize] = state;
            }
        }
        digests
    }
}

impl ToyModel {
    /// The digests that [`ToyModel::run`] would give, without its effect on the state.
    pub(crate) fn verify(&mut self, run: &ToyRun<'_>) -> Vec<u64> {
        let before = self.slots[run.slot as usize];
        let digests = self.run(&ToyRun { snapshots: &[], ..*run });
        self.slots[run.slot as usize] = before;
        digests
    }

    /// The state takes in the first tokens of a verified run; no block is touched.
    pub(crate) fn keep(&mut self, run: &ToyRun<'_>, kept: usize) {
        for (i, token) in run.tokens[..kept].iter().enumerate() {
            let state = mix(self.slots[run.slot as usize] ^ u64::from(token.0 + 1));
            self.slots[run.slot as usize] = state;
            for (_, slot) in run.snapshots.iter().filter(|(position, _)| *position == run.position + i + 1) {
                self.slots[*slot as usize] = state;
            }
        }
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
