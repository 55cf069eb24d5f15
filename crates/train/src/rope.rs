//! Rotary positions with YaRN, half-split (`kimi-k3.md` 6.2).

use burn::tensor::{Tensor, TensorData};

use crate::draft_config::Yarn;
use crate::place::Place;

/// Turns at which a pair of columns counts as fast, and as slow: between them, both frequencies are mixed.
const FAST_TURNS: f64 = 32.0;
const SLOW_TURNS: f64 = 1.0;

impl Yarn {
    /// Angle per position of each pair of columns, `head_dim / 2` of them.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let pairs = head_dim / 2;
        let exact = |j: usize| self.theta.powf(-2.0 * j as f64 / head_dim as f64);
        if self.factor == 1.0 {
            return (0..pairs).map(exact).collect();
        }
        // The pair that makes so many turns over the original positions.
        let pair = |turns: f64| {
            let ratio = self.original as f64 / (turns * 2.0 * std::f64::consts::PI);
            head_dim as f64 * ratio.ln() / (2.0 * self.theta.ln())
        };
        let last = (head_dim - 1) as f64;
        let (low, high) = (pair(FAST_TURNS).floor().clamp(0.0, last), pair(SLOW_TURNS).ceil().clamp(0.0, last));
        let ramp = |j: usize| ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        (0..pairs).map(|j| exact(j) * (1.0 - ramp(j)) + exact(j) / self.factor * ramp(j)).collect()
    }

    /// What cosines and sines are multiplied by.
    pub fn magnitude(&self) -> f64 {
        if self.factor > 1.0 { 0.1 * self.factor.ln() + 1.0 } else { 1.0 }
    }
}

/// Cosines and sines of some rows, each `[rows, 1, head_dim / 2]`.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    cos: Tensor<3>,
    sin: Tensor<3>,
}

impl Rotation {
    /// Of rows at these positions.
    pub(crate) fn new(yarn: Yarn, head_dim: usize, positions: &[usize], place: &Place) -> Self {
        let frequencies = yarn.frequencies(head_dim);
        let scale = yarn.magnitude();
        let table = |f: fn(f64) -> f64| {
            let angles = positions.iter().flat_map(|p| frequencies.iter().map(move |w| *p as f64 * w));
            let values: Vec<f64> = angles.map(|angle| scale * f(angle)).collect();
            let data = TensorData::new(values, [positions.len(), 1, frequencies.len()]);
            Tensor::from_data(data, place)
        };
        Rotation { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates `[rows, heads, head_dim]`.
    pub(crate) fn apply(&self, x: Tensor<3>) -> Tensor<3> {
        let half = x.dims()[2] / 2;
        let (a, b) = (x.clone().narrow(2, 0, half), x.narrow(2, half, half));
        let left = a.clone() * self.cos.clone() - b.clone() * self.sin.clone();
        let right = b * self.cos.clone() + a * self.sin.clone();
        Tensor::cat(vec![left, right], 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers() {
        let yarn = Yarn { theta: 10_000.0, factor: 16.0, original: 4096 };
        assert!((yarn.magnitude() - 1.2773).abs() < 1e-4);
        let frequencies = yarn.frequencies(64);
        // low = floor(64 ln(4096 / 201.06) / 18.42) = 10, high = ceil(64 ln(4096 / 6.283) / 18.42) = 23.
        let exact = |j: i32| 10_000f64.powf(-2.0 * f64::from(j) / 64.0);
        assert_eq!(frequencies[10], exact(10));
        assert!((frequencies[23] - exact(23) / 16.0).abs() < 1e-15);
        let ramp = 3.0 / 13.0;
        assert!((frequencies[13] - exact(13) * (1.0 - ramp + ramp / 16.0)).abs() < 1e-12);
    }

    #[test]
    fn a_rotation_turns_halves_by_the_angle_of_their_position() {
        let place = Place { device: burn::tensor::Device::flex(), dtype: burn::tensor::DType::F64 };
        let yarn = Yarn { theta: 100.0, factor: 1.0, original: 64 };
        let rotation = Rotation::new(yarn, 4, &[0, 3], &place);
        let x = TensorData::new(vec![1f64, 2., 3., 4., 1., 2., 3., 4.], [2, 1, 4]);
        let x = Tensor::<3>::from_data(x, &place);
        let out = rotation.apply(x).try_into_vec_as::<f64>().unwrap();
        assert_eq!(out[..4], [1., 2., 3., 4.]);
        let (angle, slow) = (3f64, 0.3f64);
        let expected = [
            angle.cos() - 3. * angle.sin(),
            2. * slow.cos() - 4. * slow.sin(),
            3. * angle.cos() + angle.sin(),
            4. * slow.cos() + 2. * slow.sin(),
        ];
        for (found, expected) in out[4..].iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{out:?}");
        }
    }
}
