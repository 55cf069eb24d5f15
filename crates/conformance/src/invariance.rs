//! Equal bits whatever the batch and the chunking.

use perilune_backend::{Activation, Backend, Expert, KdaDims, KdaGate, Linear, LinearPart, MlaDims, MoeExperts, Write};
use perilune_tensor::{QuantFormat, TensorSpec};

use crate::attention::{Gated, MlaCase, MlaRun, MlaShape};
use crate::kda::{Entry, KdaCase};
use crate::rig::{Noise, Rig, fitting};

/// A row alone gives the bits that it gives in a batch of any size, at any place.
pub fn check_bits_linear<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for format in rig.formats() {
        for (inp, out) in [(32, 5), (96, 40), (160, 301)] {
            let [out, inp] = fitting(format, [out, inp]);
            let mut noise = Noise::new(inp as u64);
            let (weight, _) = rig.weight(format, [out, inp], &mut noise);
            let x = noise.row(70 * inp, 1.0);
            let product = |first: usize, rows: usize| {
                let mut y = rig.poison([rows, out]);
                let x_tensor = rig.f32([rows, inp], &x[first * inp..(first + rows) * inp]);
                let mut parts = [LinearPart { weight: &weight, out: &mut y, write: Write::Replace }];
                backend.linear(Linear { rows, x: &x_tensor, parts: &mut parts }).unwrap();
                rig.read(&y)
            };
            let all = product(0, 70);
            for (first, rows) in [(0, 1), (69, 1), (3, 2), (10, 3), (5, 7), (20, 8), (1, 9), (6, 64)] {
                assert_eq!(product(first, rows), all[first * out..(first + rows) * out], "{format:?} {first} {rows}");
            }
        }
    }
}

/// One run, runs of any length, and single tokens through either entry: the same outputs and the same state.
pub fn check_bits_kda<B: Backend>(backend: &B) {
    const TOKENS: usize = 75;
    let rig = Rig(backend);
    for (heads, head_dim) in [(2, 16), (1, 64), (3, 32), (1, 128)] {
        for gate in [KdaGate::Bounded { lower_bound: -5.0 }, KdaGate::Softplus] {
            let case = KdaCase::new(KdaDims { num_heads: heads, head_dim, conv_kernel: 4 }, gate, TOKENS);
            let pass = |lengths: &[usize], entry: Entry| {
                let mut states = case.states(&rig, 1, &[0]);
                let (mut first, mut all) = (0, Vec::new());
                let p = case.dims.width();
                for len in lengths {
                    let out = case.run(&rig, (&[(first..first + len, 0)], entry), &mut states).unwrap();
                    all.extend_from_slice(&out[first * p..(first + len) * p]);
                    first += len;
                }
                assert_eq!(first, TOKENS);
                let end = states.read(&rig, (case.dims, 0));
                (all, end.recurrent, end.conv)
            };
            let whole = pass(&[TOKENS], Entry::Prefill);
            for lengths in [&[1; TOKENS][..], &[64, 11], &[16, 17, 42], &[1, 2, 3, 69], &[74, 1]] {
                assert!(pass(lengths, Entry::Prefill) == whole, "{gate:?} {lengths:?}");
            }
            assert!(pass(&[1; TOKENS], Entry::Decode) == whole, "{gate:?} decode");
            assert!(pass(&[8, 8, 8, 8, 8, 8, 8, 8, 8, 3], Entry::Decode) == whole, "{gate:?} verify");
        }
    }
}

/// One run, runs of any length, and single tokens through either entry, over any block size: the same outputs.
pub fn check_bits_mla<B: Backend>(backend: &B) {
    const TOKENS: usize = 150;
    let rig = Rig(backend);
    let dims = MlaDims { num_heads: 3, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32, kv_lora_rank: 40 };
    let pass = |lengths: &[usize], entry: Entry, block_size: usize| {
        let shape = MlaShape { dims, format: QuantFormat::Bf16, gated: Gated::Yes, rows: TOKENS, block_size };
        let case = MlaCase::new(&rig, shape);
        let blocks = Noise::new(block_size as u64).shuffled(TOKENS.div_ceil(block_size));
        let mut cache = case.cache(&rig, blocks.len());
        let (mut first, mut all) = (0, Vec::new());
        let width = dims.num_heads * dims.v_head_dim;
        for len in lengths {
            let run = MlaRun { rows: first..first + len, position: first, blocks: blocks.clone() };
            let out = case.run(&rig, (&[run], entry), &mut cache).unwrap();
            all.extend_from_slice(&out[first * width..(first + len) * width]);
            first += len;
        }
        assert_eq!(first, TOKENS);
        all
    };
    let whole = pass(&[TOKENS], Entry::Prefill, 64);
    for block_size in [1, 16, 37, 64, 128] {
        for lengths in [&[1; TOKENS][..], &[64, 86], &[63, 1, 1, 85], &[7, 100, 43]] {
            assert!(pass(lengths, Entry::Prefill, block_size) == whole, "{lengths:?}, blocks of {block_size}");
        }
        assert!(pass(&[1; TOKENS], Entry::Decode, block_size) == whole, "decode, blocks of {block_size}");
    }
}

/// A row's mixture of experts does not depend on who else chose them.
pub fn check_bits_moe<B: Backend>(backend: &B) {
    const EXPERTS: usize = 5;
    let (rig, width, inner, top_k) = (Rig(backend), 96, 64, 3);
    for format in rig.formats() {
        let mut noise = Noise::new(9);
        let experts: Vec<Expert<B::Tensor>> = (0..EXPERTS)
            .map(|_| Expert {
                gate: rig.weight(format, [inner, width], &mut noise).0,
                up: rig.weight(format, [inner, width], &mut noise).0,
                down: rig.weight(format, [width, inner], &mut noise).0,
            })
            .collect();
        let x = noise.row(30 * width, 1.0);
        let ids: Vec<u32> =
            (0..30).flat_map(|_| noise.shuffled(EXPERTS).into_iter().take(top_k).collect::<Vec<_>>()).collect();
        let weights = noise.row(30 * top_k, 1.0);
        let mixture = |first: usize, rows: usize| {
            let (range, chosen) = (first * width..(first + rows) * width, first * top_k..(first + rows) * top_k);
            let mut id_tensor = backend.alloc(&TensorSpec::u32([rows, top_k])).unwrap();
            backend.write_u32(&mut id_tensor, &ids[chosen.clone()]).unwrap();
            let mut out = rig.poison([rows, width]);
            let op = MoeExperts {
                rows,
                x: &rig.f32([rows, width], &x[range]),
                ids: &id_tensor,
                weights: &rig.f32([rows, top_k], &weights[chosen]),
                experts: &experts,
                act: Activation::Silu,
                out: &mut out,
                write: Write::Replace,
            };
            backend.moe_experts(op).unwrap();
            rig.read(&out)
        };
        let all = mixture(0, 30);
        for (first, rows) in [(0, 1), (29, 1), (4, 2), (7, 5), (3, 17)] {
            assert_eq!(mixture(first, rows), all[first * width..(first + rows) * width], "{format:?} {first} {rows}");
        }
    }
}
