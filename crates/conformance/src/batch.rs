//! A sequence alone and in a batch, and whatever the room of its block table.

use perilune_backend::{Backend, KdaDims, KdaGate, MlaDims};

use crate::attention::{Gated, MlaCase, MlaRun, MlaShape};
use crate::kda::{Entry, KdaCase, Run};
use crate::rig::{Noise, Rig, assert_close};

/// KDA decode: outputs and state of a sequence are, bit for bit, the same alone and among others, at any place.
pub fn check_kda_batch<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    // Rows of the case and slots: single rows, and a run of several.
    let runs: [Run; 5] = [(0..1, 3), (1..2, 0), (2..5, 4), (5..6, 6), (6..14, 1)];
    for (heads, head_dim) in [(2, 16), (3, 33), (1, 128)] {
        for gate in [KdaGate::Bounded { lower_bound: -5.0 }, KdaGate::Softplus] {
            let dims = KdaDims { num_heads: heads, head_dim, conv_kernel: 4 };
            let (case, p) = (KdaCase::new(dims, gate, 14), dims.width());
            let slots = runs.clone().map(|(_, slot)| slot);
            let mut batch = case.states(&rig, 8, &slots);
            let all = case.run(&rig, (&runs, Entry::Decode), &mut batch).unwrap();
            for (rows, slot) in &runs {
                let mut alone = case.states(&rig, 8, &[*slot]);
                let out = case.run(&rig, (&[(rows.clone(), *slot)], Entry::Decode), &mut alone).unwrap();
                let (at, what) = (rows.start * p..rows.end * p, format!("kda {dims:?} {gate:?}: rows {rows:?} alone"));
                assert_eq!(out[at.clone()], all[at], "{what}");
                let (got, want) = (alone.read(&rig, (dims, *slot)), batch.read(&rig, (dims, *slot)));
                assert_eq!((got.recurrent, got.conv), (want.recurrent, want.conv), "{what}: state");
            }
        }
    }
}

/// MLA decode: a sequence gives the same to rounding alone and among others, and whether its table has room for its own
/// tokens or for thousands, by which a backend may divide its work: the parts merge exactly, empty ones included. Entries of
/// nobody are not followed.
pub fn check_mla_splits<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    let dims = MlaDims { num_heads: 2, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32, kv_lora_rank: 64 };
    for format in rig.formats().into_iter().filter(|f| f.is_float()) {
        for (tokens, block_size) in [(1, 16), (2, 1), (5, 16), (40, 16), (150, 64)] {
            let shape = MlaShape { dims, format, gated: Gated::Yes, rows: 2 * tokens, block_size };
            let mut case = MlaCase::new(&rig, shape);
            let needed = tokens.div_ceil(block_size);
            let ids = Noise::new(tokens as u64).shuffled(2 * needed);
            let prompt = |s: usize| MlaRun {
                rows: s * tokens..(s + 1) * tokens - 1,
                position: 0,
                blocks: ids[s * needed..(s + 1) * needed].to_vec(),
            };
            let last = |s: usize| MlaRun {
                rows: (s + 1) * tokens - 1..(s + 1) * tokens,
                position: tokens - 1,
                blocks: ids[s * needed..(s + 1) * needed].to_vec(),
            };
            let mut cache = case.cache(&rig, ids.len());
            if tokens > 1 {
                case.run(&rig, (&[prompt(0), prompt(1)], Entry::Prefill), &mut cache).unwrap();
            }
            let width = dims.num_heads * dims.v_head_dim;
            for room in [0, 1000] {
                case.table_len = room;
                let both = case.run(&rig, (&[last(0), last(1)], Entry::Decode), &mut cache).unwrap();
                for s in 0..2 {
                    let at = ((s + 1) * tokens - 1) * width..(s + 1) * tokens * width;
                    let want = case.reference(&(s * tokens..(s + 1) * tokens).collect::<Vec<_>>());
                    let (want, what) =
                        (&want[(tokens - 1) * width..], format!("{format:?}, {tokens} tokens, room {room}"));
                    assert_close(&format!("mla among others: {what}"), &both[at.clone()], want, 2e-5);
                    let alone = case.run(&rig, (&[last(s)], Entry::Decode), &mut cache).unwrap();
                    assert_close(&format!("mla alone: {what}"), &alone[at], want, 2e-5);
                }
            }
        }
    }
}
