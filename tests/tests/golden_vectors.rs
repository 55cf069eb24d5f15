//! Logits, states and latents of two tiny models against an independent float64 oracle (`kimi-k3.md` section 9).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_cpu::{CpuBackend, CpuOptions};
use perilune_tests::Golden;

/// Largest difference of a logit.
const LOGIT_TOLERANCE: f64 = 2e-5;

fn golden(tag: &str) -> Golden<CpuBackend> {
    Golden::on(CpuBackend::new(CpuOptions::default()).unwrap(), tag)
}

#[test]
fn whole() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let rows = golden.bench.chunked(0, &golden.ids.clone(), &[24]);
        golden.check_logits(&rows, (tag, LOGIT_TOLERANCE));
        golden.check_state(tag);
    }
}

#[test]
fn every_split_in_two_and_token_by_token() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let ids = golden.ids.clone();
        let whole = golden.bench.chunked(0, &ids, &[24]);
        let mut chunkings: Vec<Vec<usize>> = (1..24).map(|first| vec![first, 24 - first]).collect();
        chunkings.extend([vec![1; 24], vec![5, 5, 5, 5, 4], vec![9, 1, 1, 13], vec![8, 8, 8], vec![10, 14]]);
        for lengths in chunkings {
            let rows = golden.bench.chunked(0, &ids, &lengths);
            golden.check_logits(&rows, (&format!("{tag} {lengths:?}"), LOGIT_TOLERANCE));
            golden.check_state(&format!("{tag} {lengths:?}"));
            assert!(rows == whole, "{tag} {lengths:?}: other bits than in one piece");
        }
    }
}

#[test]
fn together_with_others() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let ids = golden.ids.clone();
        let whole = golden.bench.chunked(0, &ids, &[24]);
        golden.bench.restart(0);
        // Sequence 0 in three steps, beside a long prompt, a decoding sequence and one that comes and goes.
        let others: Vec<u32> = ids.iter().rev().copied().collect();
        let mut rows = golden.bench.step(&[(1, &others[..20]), (0, &ids[..7]), (2, &others[..1])]).remove(1);
        rows.extend(golden.bench.step(&[(0, &ids[7..8]), (2, &others[1..2]), (3, &others)]).remove(0));
        rows.extend(golden.bench.step(&[(2, &others[2..3]), (0, &ids[8..])]).remove(1));
        golden.check_logits(&rows, (tag, LOGIT_TOLERANCE));
        golden.check_state(tag);
        assert!(rows == whole, "{tag}: other bits than alone");
    }
}

/// The logits of `k3` hardly change without the division by the sum (the latent norm hides it), so it is looked at here.
#[test]
fn routing_weights_sum_to_the_scaling_factor() {
    for (tag, factor) in [("k3", 1.0), ("kl", 2.446)] {
        let mut golden = golden(tag);
        golden.bench.chunked(0, &golden.ids.clone(), &[24]);
        let rows = golden.bench.routing_weights(24);
        assert_eq!(rows.len(), 24);
        for row in rows {
            let sum: f32 = row.iter().sum();
            assert!((sum - factor).abs() < 1e-5, "{tag}: {row:?}");
            assert!(row.iter().all(|weight| *weight > 0.0), "{tag}: {row:?}");
        }
    }
}
