//! Expert choice and routed experts.

use perilune_backend::{Activation, Backend, Expert, MoeExperts, MoeRoute, Renormalize, Write};
use perilune_reference::moe::{self, Routing};
use perilune_tensor::{QuantFormat, TensorSpec};

use crate::rig::{Noise, Rig, assert_close, fitting, for_all, tolerance};
use crate::token_wise::reference_act;

/// Choices are those of the reference, in its order; weights are close and sum to the scale.
pub fn check_moe_route<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    // Experts, choices, groups, groups kept.
    let shapes = [(8, 3, 1, 1), (16, 2, 0, 1), (1, 1, 1, 1), (12, 4, 4, 2), (896, 16, 1, 1), (256, 8, 8, 4)];
    for (num_experts, top_k, num_groups, topk_groups) in shapes {
        for renormalize in [Renormalize::Sum, Renormalize::Off] {
            for_all(6, 0_usize..7, |rows| {
                let mut noise = Noise::new(rows as u64 + num_experts as u64);
                let (logits, bias) = (noise.row(rows * num_experts, 4.0), noise.row(num_experts, 0.3));
                let (l, b) = (rig.f32([rows, num_experts], &logits), rig.f32([num_experts], &bias));
                let mut ids = backend.alloc(&TensorSpec::u32([rows, top_k])).unwrap();
                let mut weights = rig.poison([rows, top_k]);
                let op = MoeRoute {
                    rows,
                    logits: &l,
                    bias: &b,
                    num_groups,
                    topk_groups,
                    renormalize,
                    scale: 2.446,
                    ids: &mut ids,
                    weights: &mut weights,
                };
                backend.moe_route(op).unwrap();
                let routing = Routing {
                    bias: &bias,
                    top_k,
                    num_groups,
                    topk_groups,
                    renormalize: renormalize == Renormalize::Sum,
                    scale: 2.446,
                };
                let want = logits.chunks_exact(num_experts).flat_map(|row| moe::route(row, &routing));
                let (want_ids, want_weights): (Vec<f32>, Vec<f32>) = want.map(|(e, w)| (e as f32, w)).unzip();
                assert_eq!(rig.read(&ids), want_ids);
                let weights = rig.read(&weights);
                assert_close("moe_route", &weights, &want_weights, 2e-6);
                if renormalize == Renormalize::Sum && top_k > 1 {
                    let sums = weights.chunks_exact(top_k).map(|row| row.iter().sum::<f32>());
                    sums.for_each(|sum| assert!((sum - 2.446).abs() < 1e-5, "{sum}"));
                }
            });
        }
    }
}

/// Sums over chosen experts, overwriting and adding, with experts that nobody or everybody chose.
pub fn check_moe_experts<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for format in rig.formats() {
        for (rows, top_k) in [(0, 1), (1, 1), (1, 4), (3, 2), (9, 3), (40, 4)] {
            for (width, inner) in [(32, 32), (96, 64), (33, 17)] {
                if fitting(format, [width, inner]) != [width, inner] {
                    continue;
                }
                for write in [Write::Replace, Write::Add] {
                    one_layer(&rig, (format, write), [rows, top_k, width, inner]);
                }
            }
        }
    }
}

fn one_layer<B: Backend>(
    rig: &Rig<'_, B>,
    (format, write): (QuantFormat, Write),
    [rows, top_k, width, inner]: [usize; 4],
) {
    const EXPERTS: usize = 6;
    let act = Activation::Situ { beta: 4.0, linear_beta: Some(25.0) };
    let mut noise = Noise::new((rows * 7 + width) as u64);
    let (mut experts, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..EXPERTS {
        let (gate, gate_values) = rig.weight(format, [inner, width], &mut noise);
        let (up, up_values) = rig.weight(format, [inner, width], &mut noise);
        let (down, down_values) = rig.weight(format, [width, inner], &mut noise);
        experts.push(Expert { gate, up, down });
        plain.push(moe::Expert { gate: gate_values, up: up_values, down: down_values });
    }
    let x = noise.row(rows * width, 1.0);
    // Expert 5 is nobody's, expert 0 everybody's.
    let choose = |noise: &mut Noise| {
        let mut chosen = vec![0];
        chosen.extend(noise.shuffled(EXPERTS - 2).into_iter().map(|e| e + 1).take(top_k - 1));
        chosen
    };
    let ids: Vec<u32> = (0..rows).flat_map(|_| choose(&mut noise)).collect();
    let weights: Vec<f32> = (0..rows * top_k).map(|_| noise.unit().abs()).collect();
    let before = noise.row(rows * width, 1.0);
    let mut out = rig.f32([rows, width], &before);
    let mut id_tensor = rig.0.alloc(&TensorSpec::u32([rows, top_k])).unwrap();
    rig.0.write_u32(&mut id_tensor, &ids).unwrap();
    let (x_tensor, weight_tensor) = (rig.f32([rows, width], &x), rig.f32([rows, top_k], &weights));
    let op = MoeExperts {
        rows,
        x: &x_tensor,
        ids: &id_tensor,
        weights: &weight_tensor,
        experts: &experts,
        act,
        out: &mut out,
        write,
    };
    rig.0.moe_experts(op).unwrap();
    let mut want = if write == Write::Add { before } else { vec![0.0; rows * width] };
    for (i, row) in want.chunks_exact_mut(width).enumerate() {
        let range = i * top_k..(i + 1) * top_k;
        let chosen: Vec<(usize, f32)> =
            ids[range.clone()].iter().map(|e| *e as usize).zip(weights[range].iter().copied()).collect();
        let y = moe::experts(&x[i * width..(i + 1) * width], &chosen, &plain, |g, u| reference_act(act, g, u));
        row.iter_mut().zip(y).for_each(|(o, y)| *o += y);
    }
    assert_close(
        &format!("moe_experts {format:?} {write:?} [{rows}, {width}]"),
        &rig.read(&out),
        &want,
        tolerance(format, 2e-5),
    );
}
