//! What a sequence gets from stored prefixes, against an account of every unit's contents: random sequences that begin
//! alike, in memory for a few of them, with and without a host tier.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod random;
mod world;

use perilune_cache::{CacheKey, UnitKind};
use perilune_tensor::TokenId;
use random::Random;
use world::{BLOCK, Sequence, World, config, tokens};

#[test]
fn random_sequences_find_what_is_theirs() {
    let mut random = Random(17);
    let (mut hits, mut demotions, mut moves) = (0, 0, 0);
    for (len, host_len) in [(40, 0), (40, 60), (75, 20), (200, 0), (200, 300), (23, 9)] {
        let mut world = World::new(config(len, host_len));
        for _ in 0..170_000 {
            let (some, count) = (random.below(world.running.len().max(1)), 1 + random.below(9));
            match random.below(12) {
                0..3 if world.running.len() < 4 => {
                    let salt = (random.below(4) == 0).then(|| "tenant".into());
                    let tokens = tokens(&mut random);
                    world.open(CacheKey { salt, ..CacheKey::default() }, tokens);
                }
                0..9 if !world.running.is_empty() => world.compute(some, (count, random.below(9))),
                9 | 10 if !world.running.is_empty() => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.donate(cache, &key, &tokens[..computed]);
                }
                11 if !world.running.is_empty() => match random.below(8) {
                    0 => {
                        let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                        world.cache.discard(cache, &key, &tokens[..computed]);
                    }
                    1 => world.cache.flush(),
                    _ => drop(world.running.swap_remove(some)),
                },
                _ => {}
            }
            let usage = world.cache.usage();
            let held = usage.blocks_used + usage.blocks_stored + 5 * (usage.slots_used + usage.slots_stored);
            assert_eq!((held + usage.free_len, usage.slots_used), (len, world.running.len()), "{usage:?}");
            assert!(usage.host_used <= host_len);
        }
        world.running.clear();
        world.cache.flush();
        world.perform();
        let (usage, stats) = (world.cache.usage(), world.cache.stats());
        assert_eq!((usage.free_len, usage.nodes, usage.checkpoints, world.host.len()), (len, 0, 0, 0), "{usage:?}");
        hits += stats.hit_tokens;
        demotions += stats.demotions;
        moves += stats.moves;
    }
    assert!(hits > 10_000 && demotions > 1000 && moves > 100, "{hits} {demotions} {moves}");
}

/// A world with memory for everything.
fn roomy() -> World {
    World::new(config(1000, 0))
}

fn ids(range: std::ops::Range<u32>) -> Vec<TokenId> {
    range.map(TokenId).collect()
}

fn run_to_end(world: &mut World, tokens: Vec<TokenId>) -> usize {
    world.open(CacheKey::default(), tokens);
    let i = world.running.len() - 1;
    let cached = world.running[i].computed;
    world.compute(i, (1000, 0));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    world.cache.donate(cache, &key, &tokens[..computed]);
    cached
}

#[test]
fn a_state_serves_at_exactly_its_own_place() {
    // Every length around the ends of blocks, and continuations that agree to every place.
    for len in 1..3 * BLOCK as u32 + 2 {
        let mut world = roomy();
        assert_eq!(run_to_end(&mut world, ids(0..len)), 0);
        for more in 1..2 * BLOCK as u32 {
            let longer = ids(0..len + more);
            assert_eq!(world.cache.lookup(&CacheKey::default(), &longer, longer.len() - 1).found.cached, len as usize);
        }
        let same = ids(0..len);
        let found = world.cache.lookup(&CacheKey::default(), &same, same.len() - 1).found;
        assert_eq!((found.cached, found.agreeing), (0, len as usize), "all tokens but one are not all tokens");
        let mut parting = ids(0..len + 3);
        parting[len as usize - 1] = TokenId(99);
        let found = world.cache.lookup(&CacheKey::default(), &parting, parting.len() - 1).found;
        assert_eq!((found.cached, found.agreeing), (0, len as usize - 1));
    }
}

#[test]
fn keys_do_not_meet() {
    let mut world = roomy();
    run_to_end(&mut world, ids(0..20));
    let longer = ids(0..30);
    for key in [
        CacheKey { salt: Some("other".into()), ..CacheKey::default() },
        CacheKey { weight_version: 1, ..CacheKey::default() },
        CacheKey { adapter: Some("other".into()), ..CacheKey::default() },
    ] {
        assert_eq!(world.cache.lookup(&key, &longer, 29).found.cached, 0, "{key:?}");
    }
    assert_eq!(world.cache.lookup(&CacheKey::default(), &longer, 29).found.cached, 20);
}

#[test]
fn a_second_sequence_saves_its_state_where_it_parted_and_the_third_starts_there() {
    let mut world = roomy();
    run_to_end(&mut world, ids(0..40));
    let forked: Vec<TokenId> = ids(0..22).into_iter().chain(ids(100..110)).collect();
    let found = world.cache.lookup(&CacheKey::default(), &forked, forked.len() - 1).found;
    assert_eq!((found.cached, found.agreeing), (0, 22));
    world.open(CacheKey::default(), forked);
    world.compute(0, (100, found.agreeing));
    let third: Vec<TokenId> = ids(0..22).into_iter().chain(ids(200..203)).collect();
    assert_eq!(world.cache.lookup(&CacheKey::default(), &third, third.len() - 1).found.cached, 22);
}

#[test]
fn what_a_corrupt_sequence_stored_is_not_found() {
    let mut world = roomy();
    world.open(CacheKey::default(), ids(0..20));
    world.compute(0, (10, 9));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    assert_eq!(world.cache.lookup(&key, &tokens, 19).found.cached, 9);
    world.cache.discard(cache, &key, &tokens[..computed]);
    assert_eq!(world.cache.lookup(&key, &tokens, 19).found.cached, 0);
    assert_eq!(world.cache.usage().free_len, 1000);
}

#[test]
fn memory_for_one_sequence_and_its_state_alone_still_continues_it() {
    // 20 tokens: five blocks and a slot. There is no room for a copy of the state.
    let mut world = World::new(config(5 + 5 + 1, 0));
    world.open(CacheKey::default(), ids(0..20));
    world.compute(0, (15, 0));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    world.cache.donate(cache, &key, &tokens[..computed]);
    world.open(key, tokens);
    assert_eq!(world.running[0].computed, 15, "the sequence takes the state itself");
    world.compute(0, (5, 0));
    assert_eq!(world.running[0].computed, 20);
}

#[test]
fn a_sequence_that_found_no_room_is_counted_when_it_starts() {
    let mut world = World::new(config(14, 0));
    let key = CacheKey::default();
    assert_eq!(run_to_end(&mut world, ids(0..9)), 0);
    // Two that fill all memory between them, so that a third has to wait.
    world.open(key.clone(), ids(0..10));
    world.open(key.clone(), ids(50..60));
    assert_eq!(world.running.len(), 2);
    let before = world.cache.stats();
    assert_eq!((before.queried_tokens, before.hit_tokens), (29, 9));
    for _ in 0..3 {
        world.open(key.clone(), ids(0..11));
    }
    let after = world.cache.stats();
    assert_eq!((world.running.len(), after.queried_tokens, after.hit_tokens), (2, 29, 9), "nobody has started");
    world.running.clear();
    world.open(key, ids(0..11));
    assert_eq!(world.cache.stats().queried_tokens, 40);
}

/// What is in host memory frees nothing on the device: giving it up for a slot there would be for nothing.
#[test]
fn what_is_in_host_memory_stays_when_the_device_is_full() {
    let mut world = World::new(config(20, 1000));
    for which in 0..6 {
        run_to_end(&mut world, ids(100 * which..100 * which + 9));
    }
    // All of memory, and more copies of states than there is room for.
    world.open(CacheKey::default(), ids(1000..1060));
    world.compute(0, (60, 0));
    assert_eq!(world.cache.lendable(UnitKind::Slot), 0);
    for tokens in [1, 50, 100_000] {
        assert_eq!(world.cache.spare_slot(tokens), None);
    }
    world.perform();
    assert_eq!(world.cache.stats().host_evictions, 0);
    world.running.clear();
    for which in 0..6 {
        let again: Vec<TokenId> = ids(100 * which..100 * which + 9).into_iter().chain(ids(7..9)).collect();
        assert_eq!(run_to_end(&mut world, again), 9, "prefix {which} came back");
    }
}

/// Blocks that a sequence brought back from host memory go there again when it has ended, to the state that stayed there.
#[test]
fn what_came_back_from_host_memory_goes_there_again() {
    let mut world = World::new(config(20, 1000));
    assert_eq!(run_to_end(&mut world, ids(0..13)), 0);
    for round in 0..4 {
        // Everything leaves the device.
        let all = ids(1000 * round + 1000..1000 * round + 1056);
        world.open(CacheKey { salt: Some("all".into()), ..CacheKey::default() }, all);
        world.compute(0, (56, 0));
        assert_eq!(world.cache.lendable(UnitKind::Block), 1);
        world.running.clear();
        world.perform();
        // The same again, whose states are stored already.
        world.open(CacheKey::default(), ids(0..14));
        let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
        assert_eq!(computed, 13, "round {round}");
        world.cache.donate(cache, &key, &tokens[..computed]);
        world.perform();
    }
    assert_eq!(world.cache.stats().host_evictions, 0);
}
