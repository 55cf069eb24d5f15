//! Multi-head latent attention without positions: expanded keys and values, and the absorbed form (`kimi-k3.md` 3.4).

use crate::activation::sigmoid;
use crate::linear::{dot, linear};
use crate::norm::rms_norm;
use crate::residual::softmax;

/// Sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Heads.
    pub heads: usize,
    /// Key width from the latent, `n`.
    pub nope: usize,
    /// Shared key width, `r`.
    pub rope: usize,
    /// Value width, `v`.
    pub value: usize,
    /// Latent width, `C`.
    pub latent: usize,
}

/// The cache row of a token: its normalised latent, then the shared key part as it is.
pub fn latent_row(kv_a: &[f32], norm: &[f32], eps: f32) -> Vec<f32> {
    let (latent, shared) = kv_a.split_at(norm.len());
    let mut row = rms_norm(latent, norm, eps);
    row.extend_from_slice(shared);
    row
}

/// Attention of one query `[heads (n + r)]` over cache rows, with keys and values expanded per head; `[heads v]`.
pub fn expanded(dims: Dims, q: &[f32], kv_b: &[f32], rows: &[&[f32]]) -> Vec<f32> {
    let per_head = dims.nope + dims.value;
    let expanded: Vec<Vec<f32>> = rows.iter().map(|row| linear(&row[..dims.latent], kv_b)).collect();
    let mut out = Vec::with_capacity(dims.heads * dims.value);
    for h in 0..dims.heads {
        let query = &q[h * (dims.nope + dims.rope)..(h + 1) * (dims.nope + dims.rope)];
        let score = |t: usize| {
            let key = &expanded[t][h * per_head..h * per_head + dims.nope];
            (dot(&query[..dims.nope], key) + dot(&query[dims.nope..], &rows[t][dims.latent..])) * scale(dims)
        };
        let weights = softmax(&(0..rows.len()).map(score).collect::<Vec<_>>());
        for c in 0..dims.value {
            let values = expanded.iter().map(|e| e[h * per_head + dims.nope + c]);
            out.push(values.zip(&weights).map(|(v, w)| v * w).sum());
        }
    }
    out
}

/// The same with the key matrix absorbed into the query and the value matrix applied after the mixture.
pub fn absorbed(dims: Dims, q: &[f32], kv_b: &[f32], rows: &[&[f32]]) -> Vec<f32> {
    let per_head = (dims.nope + dims.value) * dims.latent;
    let mut out = Vec::with_capacity(dims.heads * dims.value);
    for h in 0..dims.heads {
        let query = &q[h * (dims.nope + dims.rope)..(h + 1) * (dims.nope + dims.rope)];
        let (keys, values) = kv_b[h * per_head..(h + 1) * per_head].split_at(dims.nope * dims.latent);
        let mut wide: Vec<f32> = vec![0.0; dims.latent];
        for (weight, row) in query[..dims.nope].iter().zip(keys.chunks_exact(dims.latent)) {
            wide.iter_mut().zip(row).for_each(|(w, k)| *w += weight * k);
        }
        wide.extend_from_slice(&query[dims.nope..]);
        let weights = softmax(&rows.iter().map(|row| dot(&wide, row) * scale(dims)).collect::<Vec<_>>());
        let mut mixture = vec![0.0; dims.latent];
        for (weight, row) in weights.iter().zip(rows) {
            mixture.iter_mut().zip(&row[..dims.latent]).for_each(|(m, c)| *m += weight * c);
        }
        out.extend(linear(&mixture, values));
    }
    out
}

/// `o ⊙ σ(γ)`.
pub fn gate_output(out: &[f32], gate: &[f32]) -> Vec<f32> {
    out.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)).collect()
}

fn scale(dims: Dims) -> f32 {
    ((dims.nope + dims.rope) as f32).powf(-0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: usize) -> f32 {
        ((seed as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    #[test]
    fn absorbed_equals_expanded() {
        let dims = Dims { heads: 2, nope: 4, rope: 3, value: 5, latent: 6 };
        let make = |n: usize, salt: usize| (0..n).map(|i| noise(i + salt * 7919)).collect::<Vec<_>>();
        let (q, kv_b) = (make(14, 1), make(2 * 9 * 6, 2));
        for tokens in [1, 2, 7] {
            let rows: Vec<Vec<f32>> = (0..tokens).map(|t| make(9, 3 + t)).collect();
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let (a, b) = (absorbed(dims, &q, &kv_b, &rows), expanded(dims, &q, &kv_b, &rows));
            assert!(a.iter().zip(&b).all(|(x, y)| (x - y).abs() < 1e-5), "{a:?} {b:?}");
        }
    }

    #[test]
    fn one_key_returns_its_value_whatever_the_score() {
        let dims = Dims { heads: 1, nope: 1, rope: 1, value: 1, latent: 1 };
        // kv_b: key row 9, value row 2.
        assert_eq!(expanded(dims, &[50.0, -3.0], &[9.0, 2.0], &[&[1.5, 7.0]]), [3.0]);
    }

    #[test]
    fn the_shared_key_part_is_not_normalised() {
        let row = latent_row(&[3.0, -3.0, 42.0], &[1.0, 2.0], 0.0);
        assert_eq!(row, [1.0, -2.0, 42.0]);
    }
}
