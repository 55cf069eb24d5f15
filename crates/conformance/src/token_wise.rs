//! Embedding, gather, norms, activations and attention residuals.

use perilune_backend::{Activation, AttnResidual, Backend, Embed, GatedAct, RmsNorm, SelectRows};
use perilune_reference::{activation, norm, residual};

use crate::rig::{Noise, Rig, assert_close, assert_untouched, for_all};

const ROWS: std::ops::Range<usize> = 0..9;
const WIDTH: std::ops::Range<usize> = 1..80;

/// Rows of the table, widened exactly; rows beyond `rows` stay as they were.
pub fn check_embed<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for format in rig.formats().into_iter().filter(|f| f.is_float()) {
        for_all(8, (ROWS, WIDTH), |(rows, width)| {
            let mut noise = Noise::new(width as u64);
            let (table, values) = rig.weight(format, [11, width], &mut noise);
            let ids: Vec<u32> = (0..rows + 1).map(|_| noise.below(11) as u32).collect();
            let mut out = rig.poison([rows + 1, width]);
            backend.embed(Embed { rows, table: &table, ids: &rig.u32(&ids), out: &mut out }).unwrap();
            let got = rig.read(&out);
            for (i, id) in ids[..rows].iter().enumerate() {
                let id = *id as usize;
                assert_eq!(got[i * width..(i + 1) * width], values[id * width..(id + 1) * width]);
            }
            assert_untouched("embed", &got[rows * width..]);
        });
    }
}

/// Copies of rows, exactly.
pub fn check_select_rows<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for_all(12, (ROWS, WIDTH), |(rows, width)| {
        let mut noise = Noise::new(width as u64);
        let x = noise.row(6 * width, 1.0);
        let index: Vec<u32> = (0..rows + 1).map(|_| noise.below(6) as u32).collect();
        let mut out = rig.poison([rows + 1, width]);
        let (x_tensor, index_tensor) = (rig.f32([6, width], &x), rig.u32(&index));
        backend.select_rows(SelectRows { rows, x: &x_tensor, index: &index_tensor, out: &mut out }).unwrap();
        let got = rig.read(&out);
        for (i, row) in index[..rows].iter().enumerate() {
            let row = *row as usize;
            assert_eq!(got[i * width..(i + 1) * width], x[row * width..(row + 1) * width]);
        }
        assert_untouched("select_rows", &got[rows * width..]);
    });
}

/// RMS norms of rows of any size and scale.
pub fn check_rms_norm<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for_all(24, (ROWS, WIDTH, 0_usize..3), |(rows, width, kind)| {
        let mut noise = Noise::new(width as u64);
        let scale = [1.0, 1e-4, 1e4][kind];
        let (x, weight) = (noise.row(rows * width, scale), noise.row(width, 2.0));
        let mut out = rig.poison([rows + 1, width]);
        let x_tensor = rig.f32([rows, width], &x);
        let weight_tensor = rig.f32([width], &weight);
        let op = RmsNorm { rows, x: &x_tensor, weight: &weight_tensor, eps: 1e-5, out: &mut out };
        backend.rms_norm(op).unwrap();
        let want: Vec<f32> = x.chunks_exact(width).flat_map(|row| norm::rms_norm(row, &weight, 1e-5)).collect();
        let got = rig.read(&out);
        assert_close("rms_norm", &got[..rows * width], &want, 2e-6);
        assert_untouched("rms_norm", &got[rows * width..]);
    });
}

/// SiLU and SiTU gates, at small, moderate and saturating arguments.
pub fn check_gated_act<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    let acts = [
        Activation::Silu,
        Activation::Situ { beta: 4.0, linear_beta: Some(25.0) },
        Activation::Situ { beta: 7.0, linear_beta: None },
    ];
    for act in acts {
        for_all(12, (ROWS, WIDTH, 0_usize..3), |(rows, width, kind)| {
            let mut noise = Noise::new(width as u64);
            let scale = [1e-3, 5.0, 300.0][kind];
            let (gate, up) = (noise.row(rows * width, scale), noise.row(rows * width, scale));
            let mut out = rig.poison([rows + 1, width]);
            let (g, u) = (rig.f32([rows, width], &gate), rig.f32([rows, width], &up));
            backend.gated_act(GatedAct { rows, act, gate: &g, up: &u, out: &mut out }).unwrap();
            let want: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| reference_act(act, *g, *u)).collect();
            let got = rig.read(&out);
            assert_close("gated_act", &got[..rows * width], &want, 2e-6);
            assert_untouched("gated_act", &got[rows * width..]);
        });
    }
}

/// The reference of an activation.
pub(crate) fn reference_act(act: Activation, gate: f32, up: f32) -> f32 {
    match act {
        Activation::Silu => activation::silu_glu(gate, up),
        Activation::Situ { beta, linear_beta } => activation::situ_glu(gate, up, beta, linear_beta),
    }
}

/// Mixtures of 1 to 9 rows.
pub fn check_attn_residual<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for_all(32, (ROWS, WIDTH, 1_usize..10, 0_usize..3), |(rows, width, sources, kind)| {
        let mut noise = Noise::new(width as u64);
        let scale = [1.0, 1e-3, 1e3][kind];
        let data: Vec<Vec<f32>> = (0..sources).map(|_| noise.row(rows * width, scale)).collect();
        let score = noise.row(width, 1.0);
        let tensors: Vec<B::Tensor> = data.iter().map(|d| rig.f32([rows, width], d)).collect();
        let sources: Vec<&B::Tensor> = tensors.iter().collect();
        let mut out = rig.poison([rows + 1, width]);
        let score_tensor = rig.f32([width], &score);
        let op = AttnResidual { rows, sources: &sources, score: &score_tensor, eps: 1e-5, out: &mut out };
        backend.attn_residual(op).unwrap();
        let row = |i: usize| data.iter().map(|d| &d[i * width..(i + 1) * width]).collect::<Vec<_>>();
        let want: Vec<f32> = (0..rows).flat_map(|i| residual::mix(&row(i), &score, 1e-5)).collect();
        let got = rig.read(&out);
        assert_close("attn_residual", &got[..rows * width], &want, 1e-5);
        assert_untouched("attn_residual", &got[rows * width..]);
    });
}
