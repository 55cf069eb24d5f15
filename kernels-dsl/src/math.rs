//! Functions that the targets lack or do differently, from `exp` alone.

use cubecl::prelude::*;

/// Logistic function; 0 and 1 at the ends.
#[cube]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Hyperbolic tangent to about two units in the last place: a polynomial near 0, where `exp` would cancel.
#[cube]
pub(crate) fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let square = x * x;
    let mut p = fma(-5.704_988_7e-3f32, square, 2.063_909e-2_f32);
    p = fma(p, square, -5.373_971_5e-2f32);
    p = fma(p, square, 1.333_144_2e-1f32);
    p = fma(p, square, -3.333_328e-1_f32);
    let near = fma(p * square, x, x);
    let e = (-(size + size)).exp();
    let far = (1.0 - e) / (1.0 + e);
    let signed = select(x < 0.0, -far, far);
    select(size < 0.625, near, signed)
}
