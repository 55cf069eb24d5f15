//! The policy that other engines use for hybrid models, as their public code describes it: a state is saved at every
//! multiple of 256 tokens at which a chunk of prefill or an answer ends, and where a request parts from a stored one
//! (rounded down to 256). Blocks and states have pools of their own and two separate queues by last use. A state's use is its consumption; a block's any walk over it.
//!
//! Requests hold their blocks and a state until others have come, as with the first policy. Simpler than the real thing
//! where that favours it: nothing fragments, and the split of the memory is the best of four for the trace at hand.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::trace::Request;
use super::{Outcome, Sizes};

/// Tokens between places at which a state may be saved.
const GRID: usize = 256;
/// Tokens of a chunk of prefill.
const CHUNK: usize = 8192;

#[derive(Default)]
struct Node {
    parent: Option<u64>,
    children: usize,
    last_use: u64,
    /// When the state saved after this block was last consumed, or saved.
    state: Option<u64>,
}

struct Blind {
    block_size: usize,
    max_blocks: usize,
    max_states: usize,
    nodes: HashMap<u64, Node>,
    /// Leaves by last use.
    leaves: BTreeSet<(u64, u64)>,
    states: BTreeSet<(u64, u64)>,
    clock: u64,
    evictions: u64,
    /// Blocks of the requests that run, earliest first.
    running: VecDeque<Vec<u64>>,
    /// How many of them use a block.
    held: HashMap<u64, usize>,
    concurrency: usize,
}

/// Every request in turn.
pub(super) fn run(requests: &[Request], sizes: Sizes) -> Outcome {
    let mut best = Outcome::default();
    // The split of the memory that serves this trace best.
    for states in [0.3, 0.5, 0.7, 0.85] {
        let mut policy = Blind {
            block_size: sizes.block_size,
            max_blocks: (sizes.memory as f64 * (1.0 - states)) as usize / sizes.block,
            max_states: (sizes.memory as f64 * states) as usize / sizes.slot,
            nodes: HashMap::new(),
            leaves: BTreeSet::new(),
            states: BTreeSet::new(),
            clock: 0,
            evictions: 0,
            running: VecDeque::new(),
            held: HashMap::new(),
            concurrency: sizes.concurrency,
        };
        let mut outcome = Outcome { requests: requests.len(), ..Outcome::default() };
        for request in requests {
            outcome.prompt_tokens += request.prompt_len as u64;
            outcome.hit_tokens += policy.serve(request) as u64;
        }
        outcome.evictions = policy.evictions;
        outcome.nodes = policy.nodes.len();
        if outcome.hit_tokens >= best.hit_tokens {
            best = outcome;
        }
    }
    best
}

impl Blind {
    /// Tokens of the prompt that were found.
    fn serve(&mut self, request: &Request) -> usize {
        let chain = self.chain(request);
        let usable = (request.prompt_len - 1) / self.block_size;
        let known = chain.iter().take(usable).take_while(|id| self.nodes.contains_key(id)).count();
        let hit = (1..=known).rev().find(|n| self.nodes[&chain[n - 1]].state.is_some()).unwrap_or(0);
        if hit > 0 {
            self.set_state(chain[hit - 1]);
        }
        let hit = hit * self.block_size;
        for (i, id) in chain.iter().enumerate() {
            self.touch(*id, i.checked_sub(1).map(|before| chain[before]));
        }
        let ends = (hit / CHUNK + 1..).map(|n| n * CHUNK).take_while(|end| *end < request.prompt_len);
        let answered = request.tokens.len() - 1;
        let fork = known * self.block_size;
        for end in ends.chain([fork, request.prompt_len - 1, answered]) {
            let place = end / GRID * GRID;
            if place > hit
                && let Some(id) = chain.get(place / self.block_size - 1)
            {
                self.set_state(*id);
            }
        }
        chain.iter().for_each(|id| *self.held.entry(*id).or_default() += 1);
        self.running.push_back(chain);
        if self.running.len() > self.concurrency {
            self.end_earliest();
        }
        self.evict();
        hit
    }

    fn end_earliest(&mut self) {
        for id in self.running.pop_front().unwrap_or_default() {
            if let Some(uses) = self.held.get_mut(&id) {
                *uses -= 1;
                if *uses == 0 {
                    self.held.remove(&id);
                }
            }
        }
    }

    /// A name for each whole block that depends on all tokens before it, and on who may share it.
    fn chain(&self, request: &Request) -> Vec<u64> {
        let mut hasher = DefaultHasher::new();
        request.salt.hash(&mut hasher);
        let mut before = hasher.finish();
        let name = |block: &[perilune_tensor::TokenId]| {
            let mut hasher = DefaultHasher::new();
            (before, block).hash(&mut hasher);
            before = hasher.finish();
            before
        };
        request.tokens[..request.tokens.len() - 1].chunks_exact(self.block_size).map(name).collect()
    }

    fn touch(&mut self, id: u64, parent: Option<u64>) {
        self.clock += 1;
        let clock = self.clock;
        let new = !self.nodes.contains_key(&id);
        let node = self.nodes.entry(id).or_insert_with(|| Node { parent, ..Node::default() });
        if node.children == 0 {
            self.leaves.remove(&(node.last_use, id));
            self.leaves.insert((clock, id));
        }
        node.last_use = clock;
        if let Some(above) = parent.filter(|_| new).and_then(|parent| self.nodes.get_mut(&parent)) {
            above.children += 1;
            let entry = (above.last_use, parent.unwrap_or(0));
            self.leaves.remove(&entry);
        }
    }

    fn set_state(&mut self, id: u64) {
        self.clock += 1;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(before) = node.state.replace(self.clock) {
            self.states.remove(&(before, id));
        }
        self.states.insert((self.clock, id));
    }

    fn evict(&mut self) {
        while self.states.len() + self.running.len() > self.max_states {
            let Some((_, id)) = self.states.pop_first() else { break };
            self.evictions += 1;
            if let Some(node) = self.nodes.get_mut(&id) {
                node.state = None;
            }
        }
        while self.nodes.len() > self.max_blocks {
            let free = self.leaves.iter().find(|(_, id)| !self.held.contains_key(id)).copied();
            let Some((when, id)) = free else {
                // All are held: the earliest request ends first.
                if self.running.is_empty() {
                    break;
                }
                self.end_earliest();
                continue;
            };
            self.leaves.remove(&(when, id));
            let Some(node) = self.nodes.remove(&id) else { continue };
            if let Some(when) = node.state {
                self.states.remove(&(when, id));
            }
            let Some(parent) = node.parent else { continue };
            if let Some(above) = self.nodes.get_mut(&parent) {
                above.children -= 1;
                if above.children == 0 {
                    self.leaves.insert((above.last_use, parent));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::trace::stand_in;

    fn request(pieces: &[(u64, usize)]) -> Request {
        let tokens: Vec<_> = pieces.iter().flat_map(|(id, len)| (0..*len).map(|i| stand_in(*id, i))).collect();
        Request { prompt_len: tokens.len() - 1, tokens, ..Request::default() }
    }

    #[test]
    fn hits_lie_on_the_grid_and_forks_are_saved() {
        let sizes = Sizes { memory: 1 << 20, slot: 100, block: 1, block_size: 64, host: 0, concurrency: 1 };
        let trace = [request(&[(1, 1000)]), request(&[(1, 700), (2, 300)]), request(&[(1, 700), (3, 300)])];
        let outcome = run(&trace, sizes);
        // The first has a state at 768; the second parts before it and saves one at 512, which the third finds.
        assert_eq!(outcome.hit_tokens, 512);
    }

    #[test]
    fn salts_part_requests_under_both_policies() {
        let sizes = Sizes { memory: 1 << 20, slot: 100, block: 1, block_size: 64, host: 0, concurrency: 1 };
        let salted = |salt: &str| Request { salt: Some(salt.into()), ..request(&[(1, 1000)]) };
        for policy in [run, super::super::kept::run] {
            let hits = |trace: &[Request]| policy(trace, sizes).hit_tokens;
            assert_eq!(hits(&[request(&[(1, 1000)]), salted("a"), salted("b")]), 0);
            assert!(hits(&[salted("a"), salted("b"), salted("a")]) > 700);
        }
    }
}
