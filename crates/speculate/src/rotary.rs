//! Frequencies of rotary positions, stretched by YaRN where asked for (`kimi-k3.md` 6.2).

use std::f64::consts::TAU;

use perilune_config::{Rotary, Yarn};

/// Radians per position of each pair of a head that is `width` wide, `[width / 2]`.
pub(crate) fn frequencies(rotary: &Rotary, width: usize) -> Vec<f32> {
    let plain = |j: usize| rotary.theta.powf(-2.0 * j as f64 / width as f64);
    let ramp = rotary.yarn.map(|yarn| (ramp(&yarn, rotary.theta, width), yarn.factor));
    let frequency = |j: usize| match ramp {
        None => plain(j),
        Some(((low, high), factor)) => {
            let stretched = ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
            plain(j) * (1.0 - stretched) + plain(j) / factor * stretched
        }
    };
    (0..width / 2).map(|j| frequency(j) as f32).collect()
}

/// Between which pairs frequencies go from unchanged to divided by the factor.
fn ramp(yarn: &Yarn, theta: f64, width: usize) -> (f64, f64) {
    let turns = |turns: f64| width as f64 * (yarn.original_positions as f64 / (turns * TAU)).ln() / (2.0 * theta.ln());
    let last = (width - 1) as f64;
    let low = turns(yarn.beta_fast).floor().clamp(0.0, last);
    let high = turns(yarn.beta_slow).ceil().clamp(0.0, last);
    if high > low { (low, high) } else { (low, low + 1e-3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_scaling_they_fall_from_one() {
        let plain = frequencies(&Rotary { theta: 10_000.0, yarn: None }, 64);
        assert_eq!((plain.len(), plain[0]), (32, 1.0));
        assert!((plain[16] - 0.01).abs() < 1e-8, "{}", plain[16]);
    }

    /// The published draft: by the formulas of the specification, pairs up to 10 keep their frequency and pairs from 23
    /// on have a sixteenth of it.
    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let yarn = Yarn {
            factor: 16.0,
            original_positions: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            amplitude: 1.2773,
            score_factor: 1.0,
        };
        let plain = frequencies(&Rotary { theta: 10_000.0, yarn: None }, 64);
        let scaled = frequencies(&Rotary { theta: 10_000.0, yarn: Some(yarn) }, 64);
        // 64 ln(4096 / 64π) / (2 ln 10⁴) = 10.47; 64 ln(4096 / 2π) / (2 ln 10⁴) = 22.51.
        for j in 0..=10 {
            assert_eq!(scaled[j], plain[j], "{j}");
        }
        for j in 23..32 {
            assert!((scaled[j] * 16.0 / plain[j] - 1.0).abs() < 1e-6, "{j}");
        }
        let middle = plain[16] * (1.0 - 6.0 / 13.0) + plain[16] / 16.0 * (6.0 / 13.0);
        assert!((scaled[16] / middle - 1.0).abs() < 1e-6);
    }
}
