//! What comes back from a disk that forgets, fails and outlives the process, against an account of every unit's contents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod random;
mod world;

use perilune_cache::{CacheKey, CacheStats, DiskConfig, WriteFault};
use perilune_tensor::TokenId;
use random::Random;
use world::{Contents, Sequence, World, config, tokens};

#[test]
fn a_disk_that_forgets_fails_and_outlives_the_process_gives_everybody_what_is_theirs() {
    let mut random = Random(29);
    let mut total = CacheStats::default();
    for (len, host_len, disk_len) in [(40, 0, 2000), (60, 20, 400), (40, 0, 60), (200, 0, 10_000)] {
        let config = config(len, host_len);
        let disk = DiskConfig { len: disk_len, queue_len: 40 };
        let mut world = World::new(config);
        world.restart((config, disk));
        for _ in 0..60_000 {
            let (some, count) = (random.below(world.running.len().max(1)), 1 + random.below(9));
            match random.below(14) {
                0..3 if world.running.len() < 4 => {
                    let salt = (random.below(4) == 0).then(|| "tenant".into());
                    let (key, tokens) = (CacheKey { salt, ..CacheKey::default() }, tokens(&mut random));
                    if random.below(4) > 0 {
                        world.read_disk(&key, &tokens);
                    }
                    world.open(key, tokens);
                }
                0..9 if !world.running.is_empty() => world.compute(some, (count, random.below(9))),
                9 | 10 if !world.running.is_empty() => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.donate(cache, &key, &tokens[..computed]);
                }
                11 if !world.running.is_empty() && random.below(20) == 0 => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.discard(cache, &key, &tokens[..computed]);
                }
                11 if random.below(300) == 0 => world.cache.flush(),
                12 if !world.writing.is_empty() => {
                    let which = random.below(world.writing.len());
                    world.end_write(which, random.below(10) > 0);
                }
                13 => match random.below(400) {
                    0 => {
                        total = add(total, world.cache.stats());
                        world.restart((config, disk));
                    }
                    1 => drop(world.cache.archive_stored()),
                    2..20 => {
                        let written = world.disk.keys().copied().filter(|id| !world.writing.contains(id));
                        // The order of a hash map is not to decide.
                        let lost = written.min_by_key(|id| (id.0.wrapping_mul(count as u64 * 7919) % 1009, *id));
                        lost.map(|id| world.disk.remove(&id));
                    }
                    _ => {}
                },
                _ => {}
            }
            world.perform();
            let usage = world.cache.usage();
            let held = usage.blocks_used + usage.blocks_stored + 5 * (usage.slots_used + usage.slots_stored);
            assert_eq!((held + usage.free_len, usage.slots_used), (len, world.running.len()), "{usage:?}");
            assert!(usage.disk_used <= disk_len && usage.host_used <= host_len, "{usage:?}");
            let lost_units: usize = world.disk.values().map(|(_, contents)| unit_len(contents)).sum();
            assert!(lost_units <= usage.disk_used, "files that nobody accounts for");
        }
        world.running.clear();
        world.cache.flush();
        world.perform();
        total = add(total, world.cache.stats());
        let usage = world.cache.usage();
        assert_eq!((usage.free_len, usage.disk_used, usage.disk_states), (len, 0, 0), "{usage:?}");
        assert!(world.disk.is_empty() && world.host.is_empty());
    }
    let enough = total.disk_restores > 500 && total.disk_losses > 50 && total.disk_evictions > 100;
    assert!(enough && total.disk_writes > 2000 && total.disk_skips > 50, "{total:?}");
}

fn unit_len(contents: &Contents) -> usize {
    if matches!(contents, Contents::State(_)) { 5 } else { 1 }
}

/// The disk's counters of two processes together.
fn add(a: CacheStats, b: CacheStats) -> CacheStats {
    CacheStats {
        disk_writes: a.disk_writes + b.disk_writes,
        disk_skips: a.disk_skips + b.disk_skips,
        disk_restores: a.disk_restores + b.disk_restores,
        disk_evictions: a.disk_evictions + b.disk_evictions,
        disk_losses: a.disk_losses + b.disk_losses,
        ..a
    }
}

/// Stores a prefix of nine tokens in memory, has it written, and says what comes of that.
fn write(world: &mut World, which: u32, fault: Option<WriteFault>) {
    let tokens: Vec<TokenId> = (0..9).map(|i| TokenId(100 * which + i)).collect();
    world.open(CacheKey::default(), tokens);
    world.compute(0, (9, 0));
    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(0);
    world.cache.donate(cache, &key, &tokens[..computed]);
    world.cache.archive_stored();
    world.perform();
    for id in std::mem::take(&mut world.writing) {
        match fault {
            None => world.cache.record_written(id),
            Some(fault) => {
                world.disk.remove(&id);
                world.cache.record_not_written(id, fault);
            }
        }
    }
    world.perform();
}

#[test]
fn on_a_disk_that_is_full_what_is_worth_more_takes_the_place_of_what_is_worth_less() {
    let (config, disk) = (config(400, 0), DiskConfig { len: 1000, queue_len: 100 });
    let mut world = World::new(config);
    world.restart((config, disk));
    // Two blocks, a tail and a state each.
    (0..5).for_each(|which| write(&mut world, which, None));
    assert_eq!((world.cache.usage().disk_used, world.cache.usage().disk_states), (40, 5));
    write(&mut world, 5, Some(WriteFault::Other));
    let usage = world.cache.usage();
    assert_eq!((usage.disk_used, usage.disk_len), (40, 1000), "a fault says nothing of the room");
    write(&mut world, 6, Some(WriteFault::Full));
    let usage = world.cache.usage();
    assert!(usage.disk_used <= 40 && usage.disk_len == usage.disk_used, "{usage:?}");
    let before = world.cache.stats().disk_evictions;
    (7..20).for_each(|which| write(&mut world, which, None));
    let (after, stats) = (world.cache.usage(), world.cache.stats());
    assert!(after.disk_used <= usage.disk_len && stats.disk_evictions > before + 5, "{after:?}, {stats:?}");
    world.cache.flush();
    world.perform();
    assert_eq!((world.cache.usage().disk_used, world.cache.usage().disk_len), (0, 1000), "a flush makes room");
    assert!(world.disk.is_empty());
}
