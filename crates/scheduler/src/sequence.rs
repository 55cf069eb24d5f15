//! One request on its way: its tokens, how far they are computed, what it holds.

use std::collections::HashMap;

use perilune_cache::{CacheKey, SequenceCache};
use perilune_sampling::{SamplingParams, StopRules, TokenLogprobs, Verdict};
use perilune_tensor::TokenId;

use crate::checkpoints::PlannedPositions;
use crate::{Event, EventKind, FinishReason, RowOutcome, SeqId, TokenRole, Usage};

/// A request to be scheduled. The caller has checked it: prompt not empty, parameters valid, prompt and output fit.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceRequest {
    /// Its number; larger than that of every earlier one.
    pub id: SeqId,
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// How to continue it.
    pub params: SamplingParams,
    /// Fixes its random numbers.
    pub seed: u64,
    /// Whom it shares prefixes with.
    pub key: CacheKey,
    /// Positions in the prompt at which later requests are likely to part from it, the best first.
    pub checkpoint_hints: Vec<usize>,
}

/// How often a token occurs in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occurrences {
    /// In the prompt.
    pub in_prompt: u32,
    /// In the output so far.
    pub in_output: u32,
}

/// A sequence known to the scheduler.
#[derive(Debug)]
pub struct Sequence {
    id: SeqId,
    /// Prompt, then output.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    params: SamplingParams,
    seed: u64,
    rules: StopRules,
    /// Tokens whose latents and state are in its cache.
    pub(crate) computed: usize,
    /// Prompt tokens whose log-probability is settled; the first has none.
    pub(crate) scored: usize,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Kept only where a penalty is on.
    occurrences: HashMap<TokenId, Occurrences>,
    /// What it holds while it runs.
    pub(crate) cache: Option<SequenceCache>,
    key: CacheKey,
    hints: Vec<usize>,
    /// Tokens of the last state that was stored or is being saved, its own or the one it started from.
    pub(crate) saved: usize,
    /// Where its state is saved while it runs.
    pub(crate) planned: PlannedPositions,
    /// Prompt tokens that it did not have to compute, as of its first start.
    pub(crate) cached_tokens: Option<usize>,
    drafted_tokens: usize,
    accepted_tokens: usize,
}

impl Sequence {
    pub(crate) fn new(request: SequenceRequest, eos_ids: &[TokenId], context_length: usize) -> Self {
        let SequenceRequest { id, prompt, params, seed, key, checkpoint_hints } = request;
        let rules = StopRules::new(&params, eos_ids, context_length.saturating_sub(prompt.len()));
        let mut occurrences: HashMap<TokenId, Occurrences> = HashMap::new();
        if params.has_penalties() {
            prompt.iter().for_each(|token| occurrences.entry(*token).or_default().in_prompt += 1);
        }
        let (prompt_len, tokens) = (prompt.len(), prompt);
        let prompt_logprobs = if params.prompt_logprobs.is_some() { vec![None] } else { vec![] };
        let (computed, scored) = (0, 1);
        Sequence {
            id,
            tokens,
            prompt_len,
            params,
            seed,
            rules,
            computed,
            scored,
            prompt_logprobs,
            occurrences,
            cache: None,
            key,
            hints: checkpoint_hints,
            saved: 0,
            planned: PlannedPositions::default(),
            cached_tokens: None,
            drafted_tokens: 0,
            accepted_tokens: 0,
        }
    }

    /// Its number.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// Prompt and output so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// What the caller asked for.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Fixes its random numbers, together with the number of the token.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Stop tokens that must not come `ahead` tokens after the next one.
    pub fn banned(&self, ahead: usize) -> &[TokenId] {
        self.rules.banned(self.generated() + ahead)
    }

    /// Most drafts that make sense for it now, of `most`: one more token is drawn after them.
    pub(crate) fn max_drafts(&self, most: usize) -> usize {
        let left = self.rules.max_tokens().saturating_sub(self.generated() + 1);
        most.min(left).min(self.params.max_drafts.unwrap_or(most))
    }

    /// So many drafts were verified for it.
    pub(crate) fn note_drafted(&mut self, drafts: usize) {
        self.drafted_tokens += drafts;
    }

    /// A draft was kept, and with it what was computed for it.
    pub(crate) fn note_accepted(&mut self) {
        self.computed += 1;
        self.accepted_tokens += 1;
    }

    /// Occurrences of its tokens; empty where no penalty is on.
    pub fn occurrences(&self) -> &HashMap<TokenId, Occurrences> {
        &self.occurrences
    }

    /// Slot and blocks while it runs.
    pub fn cache(&self) -> Option<&SequenceCache> {
        self.cache.as_ref()
    }

    /// Tokens not yet computed; 0 once nothing is left to do but to end.
    pub(crate) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether anything is generated at all.
    pub(crate) fn generates(&self) -> bool {
        self.rules.max_tokens() > 0
    }

    /// Positions of `computed .. end` whose logits score a prompt token that has no log-probability yet.
    pub(crate) fn to_score(&self, end: usize) -> std::ops::Range<usize> {
        if self.params.prompt_logprobs.is_none() {
            return 0..0;
        }
        let first = self.computed.max(self.scored - 1);
        let last = end.min(self.prompt_len - 1);
        first..last.max(first)
    }

    /// Whom it shares prefixes with.
    pub fn key(&self) -> &CacheKey {
        &self.key
    }

    /// Where its author expects others to part from it.
    pub(crate) fn hints(&self) -> &[usize] {
        &self.hints
    }

    /// Tokens that a stored state may save it: one must be left to compute, and all whose logits are still to be scored.
    pub(crate) fn reusable(&self) -> usize {
        let all_but_one = self.tokens.len().saturating_sub(1);
        let unscored = self.params.prompt_logprobs.is_some() && self.scored < self.prompt_len;
        if unscored { all_but_one.min(self.scored - 1) } else { all_but_one }
    }

    /// Starts to run with some tokens computed.
    pub(crate) fn start(&mut self, cache: SequenceCache, computed: usize) {
        self.cache = Some(cache);
        (self.computed, self.saved) = (computed, computed);
        self.cached_tokens.get_or_insert(computed);
    }

    /// What it holds, and its first `len` tokens, which must be computed.
    pub(crate) fn split_for_store(&mut self, len: usize) -> Option<(&mut SequenceCache, &[TokenId])> {
        let tokens = self.tokens.get(..len).filter(|_| len <= self.computed)?;
        Some((self.cache.as_mut()?, tokens))
    }

    /// Stops running: what it held, and the tokens whose state and latents that has.
    pub(crate) fn stop(&mut self) -> Option<(SequenceCache, &[TokenId])> {
        let computed = std::mem::take(&mut self.computed);
        Some((self.cache.take()?, &self.tokens[..computed]))
    }

    /// Takes in the log-probability of the next prompt token.
    pub(crate) fn score(&mut self, row: TokenLogprobs) {
        self.prompt_logprobs.push(Some(row));
        self.scored += 1;
    }

    /// The event with all prompt log-probabilities, once they are complete.
    pub(crate) fn take_prompt_logprobs(&mut self) -> Option<Event> {
        let complete = self.prompt_logprobs.len() == self.prompt_len && self.computed >= self.prompt_len;
        let list = complete.then(|| std::mem::take(&mut self.prompt_logprobs))?;
        Some(self.event(EventKind::PromptLogprobs(list)))
    }

    /// Takes in a drawn token; adds its event, and the last one where it ends the sequence.
    pub(crate) fn push(&mut self, row: TokenLogprobs, events: &mut Vec<Event>) {
        let id = row.chosen.id;
        self.tokens.push(id);
        if self.params.has_penalties() {
            self.occurrences.entry(id).or_default().in_output += 1;
        }
        let verdict = self.rules.verdict(id, self.generated());
        let role = if matches!(verdict, Verdict::Stop(_)) { TokenRole::Stop } else { TokenRole::Content };
        let logprobs = self.params.logprobs.map(|_| row);
        events.push(self.event(EventKind::Token { id, role, logprobs }));
        match verdict {
            Verdict::Continue => {}
            Verdict::Stop(token) => events.push(self.finish(FinishReason::Stop { token })),
            Verdict::Length => events.push(self.finish(FinishReason::Length)),
        }
    }

    pub(crate) fn finish(&self, reason: FinishReason) -> Event {
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            completion_tokens: self.generated(),
            cached_tokens: self.cached_tokens.unwrap_or(0).min(self.prompt_len),
            drafted_tokens: self.drafted_tokens,
            accepted_tokens: self.accepted_tokens,
        };
        self.event(EventKind::Finished { reason, usage })
    }

    pub(crate) fn event(&self, kind: EventKind) -> Event {
        Event { seq: self.id, kind }
    }
}

/// The token of a row; `None` where the logits were not finite.
pub(crate) fn finite(row: RowOutcome) -> Option<TokenLogprobs> {
    match row {
        RowOutcome::Token(row) => Some(row),
        RowOutcome::NonFinite => None,
    }
}
