//! Elementary functions on vectors, and the dot product of two rows.
//!
//! Accurate to a few units in the last place, finite or exactly 0 or infinite where the true value rounds there; NaN
//! stays NaN.

use super::Simd;

/// `ln 2` in two parts; the first has few bits, so that a whole multiple of it is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // Past these bounds the result is 0 or infinity in any case. The order of arguments lets NaN through.
    let x = s.min(s.splat(89.5), s.max(s.splat(-105.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    // Taylor on |r| <= ln(2) / 2: the first term left out is below 6e-9.
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    s.scale2(p, n)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `ln(1 + e^x)`, as the larger of `x` and 0 plus `ln(1 + e^-|x|)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), s.abs(x)));
    // ln(1 + e) = 2 artanh(e / (2 + e)), and e / (2 + e) is at most 1/3.
    let w = s.div(e, s.add(s.splat(2.0), e));
    let z = s.mul(w, w);
    let mut p = s.splat(2.0 / 15.0);
    for c in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 0.4, 2.0 / 3.0, 2.0] {
        p = s.fma(p, z, s.splat(c));
    }
    s.fma(w, p, s.max(s.splat(0.0), x))
}

/// `tanh x`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let magnitude = s.abs(x);
    let z = s.mul(x, x);
    let mut p = s.splat(-1382.0 / 155_925.0);
    for c in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        p = s.fma(p, z, s.splat(c));
    }
    let small = s.fma(s.mul(x, z), p, x);
    let e = exp(s, s.mul(magnitude, s.splat(-2.0)));
    let large = s.div(s.sub(s.splat(1.0), e), s.add(s.splat(1.0), e));
    let large = s.select_lt(x, s.splat(0.0), s.sub(s.splat(0.0), large), large);
    s.select_lt(magnitude, s.splat(0.25), small, large)
}

/// `beta tanh(g / beta) σ(g) · linear_beta tanh(u / linear_beta)`; without `linear_beta` the second factor is `u`.
#[inline(always)]
pub(crate) fn situ<S: Simd>(s: S, g: S::V, u: S::V, betas: (f32, Option<f32>)) -> S::V {
    let left = s.mul(soft_cap(s, g, betas.0), sigmoid(s, g));
    match betas.1 {
        Some(cap) => s.mul(left, soft_cap(s, u, cap)),
        None => s.mul(left, u),
    }
}

/// `cap tanh(x / cap)`.
#[inline(always)]
fn soft_cap<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    s.mul(s.splat(cap), tanh(s, s.div(x, s.splat(cap))))
}

/// `Σ_i a_i b_i` over the shorter length.
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for i in (0..a.len().min(b.len())).step_by(S::LANES) {
        sum = s.fma(s.load(a, i), s.load(b, i), sum);
    }
    s.sum(sum)
}

#[cfg(test)]
mod tests {
    use crate::SimdLevel;
    use crate::simd::{Kernel, Simd};

    /// Applies one of the functions to a row.
    struct Map<'a> {
        name: &'a str,
        x: &'a [f32],
    }

    impl Kernel for Map<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; self.x.len()];
            for i in (0..self.x.len()).step_by(S::LANES) {
                let x = s.load(self.x, i);
                let y = match self.name {
                    "exp" => super::exp(s, x),
                    "tanh" => super::tanh(s, x),
                    "softplus" => super::softplus(s, x),
                    _ => super::sigmoid(s, x),
                };
                s.store(&mut out, i, y);
            }
            out
        }
    }

    /// Largest error of a function over `x`, relative to the true value.
    fn worst(name: &str, x: &[f32], truth: impl Fn(f64) -> f64) -> f64 {
        let mut worst: f64 = 0.0;
        for level in SimdLevel::available() {
            for (x, y) in x.iter().zip(level.run(Map { name, x })) {
                let t = truth(f64::from(*x));
                let error = ((f64::from(y) - t) / t).abs();
                assert!(error.is_finite(), "{level:?} {name}({x}) = {y}");
                worst = worst.max(error);
            }
        }
        worst
    }

    #[test]
    fn close_to_the_true_functions() {
        let wide: Vec<f32> = (-8700..8800).map(|i| i as f32 * 0.01 + 0.003).collect();
        let narrow: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.0005 + 0.0001).collect();
        assert!(worst("exp", &wide, f64::exp) < 2.5e-7);
        assert!(worst("sigmoid", &wide, |x| 1.0 / (1.0 + (-x).exp())) < 4e-7);
        assert!(worst("softplus", &wide, |x| x.exp().ln_1p()) < 5e-7);
        assert!(worst("tanh", &narrow, f64::tanh) < 4e-7);
        assert!(worst("tanh", &wide, f64::tanh) < 4e-7);
    }

    #[test]
    fn extremes_are_exact_and_nan_stays() {
        let x = [-200.0, f32::NEG_INFINITY, 200.0, f32::INFINITY, 0.0, f32::NAN, -103.0];
        for level in SimdLevel::available() {
            let e = level.run(Map { name: "exp", x: &x });
            assert_eq!((e[0], e[1], e[2], e[3], e[4]), (0.0, 0.0, f32::INFINITY, f32::INFINITY, 1.0), "{level:?}");
            assert!(e[5].is_nan() && e[6] > 0.0, "{level:?}: {e:?}");
            let t = level.run(Map { name: "tanh", x: &x });
            assert_eq!((t[0], t[2], t[3], t[4]), (-1.0, 1.0, 1.0, 0.0), "{level:?}");
            assert!(t[5].is_nan(), "{level:?}");
        }
    }
}
