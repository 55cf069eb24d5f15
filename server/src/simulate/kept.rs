//! The cache that serves, driven as the scheduler drives it.

use std::collections::VecDeque;

use perilune_engine::{
    ArenaShape, CacheConfig, CacheKey, CacheManager, CheckpointRules, KnownPlaces, Prefixes, SequenceCache, UnitKind,
};

use super::trace::Request;
use super::{Outcome, Sizes};

struct Running<'r> {
    cache: SequenceCache,
    request: &'r Request,
}

/// Every request in turn; each holds its memory until `concurrency` others have come.
pub(super) fn run(requests: &[Request], sizes: Sizes) -> Outcome {
    let arena = ArenaShape { len: sizes.memory, block_len: sizes.block, slot_len: sizes.slot };
    let (block_size, prefixes, host_len) = (sizes.block_size, Prefixes::Keep, sizes.host);
    let mut cache = CacheManager::new(CacheConfig { arena, block_size, prefixes, host_len });
    let rules = CheckpointRules { interval: sizes.slot.div_ceil(sizes.block) * block_size, least_gap: block_size };
    let mut outcome = Outcome { requests: requests.len(), ..Outcome::default() };
    let mut running: VecDeque<Running<'_>> = VecDeque::new();
    for (number, request) in requests.iter().enumerate() {
        if running.len() == sizes.concurrency {
            finish(&mut cache, running.pop_front());
        }
        outcome.prompt_tokens += request.prompt_len as u64;
        loop {
            if let Some(cached) = start(&mut cache, request, rules, &mut running) {
                outcome.hit_tokens += cached as u64;
                break;
            }
            // No room: the earliest ends first.
            let Some(earliest) = running.pop_front() else {
                outcome.refused += 1;
                break;
            };
            finish(&mut cache, Some(earliest));
        }
        cache.take_ops();
        if number % 64 == 0 {
            let usage = cache.usage();
            let lendable = cache.lendable(UnitKind::Block) * sizes.block;
            let lost = usage.free_len.saturating_sub(lendable) as f64 / usage.arena_len as f64;
            outcome.worst_fragmentation = outcome.worst_fragmentation.max(lost);
            outcome.nodes = outcome.nodes.max(usage.nodes);
        }
    }
    let stats = cache.stats();
    Outcome { evictions: stats.evictions, moves: stats.moves, ..outcome }
}

fn finish(cache: &mut CacheManager, running: Option<Running<'_>>) {
    if let Some(Running { cache: held, request }) = running {
        // The last token of an answer is never computed.
        let computed = request.tokens.len() - 1;
        cache.donate(held, &key(request), &request.tokens[..computed.max(request.prompt_len)]);
    }
}

fn key(request: &Request) -> CacheKey {
    CacheKey { salt: request.salt.clone(), ..CacheKey::default() }
}

/// Tokens that the request found; `None` where it does not fit now.
fn start<'r>(
    cache: &mut CacheManager,
    request: &'r Request,
    rules: CheckpointRules,
    running: &mut VecDeque<Running<'r>>,
) -> Option<usize> {
    let (key, prompt) = (key(request), &request.tokens[..request.prompt_len]);
    let limit = request.prompt_len - 1;
    let lookup = cache.lookup(&key, prompt, limit);
    let found = lookup.found;
    if !cache.has_room(found, (request.tokens.len(), 0)) {
        return None;
    }
    let mut opened = cache.open(lookup).ok()?;
    cache.grow(&mut opened.cache, request.tokens.len()).ok()?;
    let places = rules.places(KnownPlaces {
        hints: &request.save_at,
        cached: opened.cached,
        fork: found.agreeing,
        prompt_len: request.prompt_len,
    });
    let mut saved = opened.cached;
    for place in places.between(opened.cached, request.prompt_len) {
        if let Some(slot) = cache.spare_slot(place - saved) {
            cache.store(&mut opened.cache, &key, &prompt[..place], slot);
            saved = place;
        }
    }
    running.push_back(Running { cache: opened.cache, request });
    Some(opened.cached)
}
