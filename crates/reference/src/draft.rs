//! Attention of a draft model: rotation, the rows that tokens leave behind, and attention over given rows
//! (`kimi-k3.md` 6.1 to 6.3).

use crate::linear::dot;
use crate::norm::rms_norm;
use crate::residual::softmax;

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `i` with `i + R/2`.
    Halves,
    /// `2i` with `2i + 1`.
    Interleaved,
}

/// Sizes of grouped heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouped {
    /// Query heads `A`.
    pub heads: usize,
    /// Key heads `G`.
    pub kv_heads: usize,
    /// Head width `D`.
    pub width: usize,
}

/// Cosines, then sines, of one position, `[R]`.
pub fn rotary_row(frequencies: &[f32], position: usize, amplitude: f32) -> Vec<f32> {
    let angle = |f: &f32| position as f64 * f64::from(*f);
    let cosines = frequencies.iter().map(|f| (angle(f).cos() * f64::from(amplitude)) as f32);
    let sines = frequencies.iter().map(|f| (angle(f).sin() * f64::from(amplitude)) as f32);
    cosines.chain(sines).collect()
}

/// A head rotated by a row of [`rotary_row`].
pub fn rotate(pairing: Pairing, x: &[f32], rotary: &[f32]) -> Vec<f32> {
    let half = x.len() / 2;
    let (cosines, sines) = rotary.split_at(half);
    let mut out = vec![0.0; x.len()];
    for i in 0..half {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + half),
            Pairing::Interleaved => (2 * i, 2 * i + 1),
        };
        out[a] = x[a] * cosines[i] - x[b] * sines[i];
        out[b] = x[b] * cosines[i] + x[a] * sines[i];
    }
    out
}

/// Every head of a row normed, then rotated.
pub fn normed_heads(x: &[f32], (norm, eps): (&[f32], f32), (pairing, rotary): (Pairing, &[f32])) -> Vec<f32> {
    x.chunks_exact(norm.len()).flat_map(|head| rotate(pairing, &rms_norm(head, norm, eps), rotary)).collect()
}

/// Attention of the queries of one row, `[A D]`, over rows `[k | v]`; `[A D]`.
pub fn attend(dims: Grouped, q: &[f32], rows: &[&[f32]], scale: f32) -> Vec<f32> {
    let Grouped { heads, kv_heads, width } = dims;
    let mut out = Vec::with_capacity(heads * width);
    for h in 0..heads {
        let group = h / (heads / kv_heads);
        let query = &q[h * width..(h + 1) * width];
        let key = |row: &[f32]| dot(query, &row[group * width..(group + 1) * width]) * scale;
        let weights = softmax(&rows.iter().map(|row| key(row)).collect::<Vec<_>>());
        for c in 0..width {
            let values = rows.iter().map(|row| row[(kv_heads + group) * width + c]);
            out.push(values.zip(&weights).map(|(v, w)| v * w).sum());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn() {
        let quarter = rotary_row(&[std::f32::consts::FRAC_PI_2, 0.0], 1, 2.0);
        assert!((quarter[0]).abs() < 1e-6 && (quarter[2] - 2.0).abs() < 1e-6, "{quarter:?}");
        assert_eq!((quarter[1], quarter[3]), (2.0, 0.0));
        let exact = [0.0, 1.0, 1.0, 0.0];
        assert_eq!(rotate(Pairing::Halves, &[1.0, 2.0, 3.0, 4.0], &exact), [-3.0, 2.0, 1.0, 4.0]);
        assert_eq!(rotate(Pairing::Interleaved, &[1.0, 2.0, 3.0, 4.0], &exact), [-2.0, 1.0, 3.0, 4.0]);
    }

    #[test]
    fn scores_depend_on_distance_alone() {
        let f = [1.0, 0.01];
        let score = |a: usize, b: usize| {
            let q = rotate(Pairing::Halves, &[0.3, -1.0, 0.7, 2.0], &rotary_row(&f, a, 1.0));
            dot(&q, &rotate(Pairing::Halves, &[1.1, 0.2, -0.4, 0.9], &rotary_row(&f, b, 1.0)))
        };
        assert!((score(7, 3) - score(104, 100)).abs() < 1e-5);
        assert!((score(7, 3) - score(7, 4)).abs() > 1e-2);
    }

    #[test]
    fn groups_read_their_own_keys_and_values() {
        let dims = Grouped { heads: 4, kv_heads: 2, width: 1 };
        let rows: [&[f32]; 2] = [&[0.0, 0.0, 1.0, 10.0], &[0.0, 100.0, 3.0, 30.0]];
        // The first group sees equal keys; of the second, one head prefers the second row, the other the first.
        assert_eq!(attend(dims, &[5.0, -5.0, 1.0, -1.0], &rows, 1.0), [2.0, 2.0, 30.0, 10.0]);
    }
}
