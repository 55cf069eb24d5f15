//! Elementwise functions: logistic, softplus, SiLU, SiTU (`kimi-k3.md` 3.5).

/// Logistic function.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, linear above 20.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `x σ(x)`.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `g σ(g) u`.
pub fn silu_glu(gate: f32, up: f32) -> f32 {
    silu(gate) * up
}

/// `beta tanh(g / beta) σ(g) · linear_beta tanh(u / linear_beta)`; without `linear_beta` the second factor is `u`.
pub fn situ_glu(gate: f32, up: f32, beta: f32, linear_beta: Option<f32>) -> f32 {
    let capped = linear_beta.map_or(up, |cap| cap * (up / cap).tanh());
    beta * (gate / beta).tanh() * sigmoid(gate) * capped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert!((softplus(0.0) - 2.0_f32.ln()).abs() < 1e-7);
        assert_eq!(softplus(100.0), 100.0);
        assert_eq!(softplus(-200.0), 0.0);
        assert_eq!(silu_glu(0.0, 5.0), 0.0);
    }

    #[test]
    fn situ_is_capped_by_the_product_of_its_caps() {
        for (gate, up) in [(1e6, 1e6), (1e6, -1e6), (-1e6, 1e6), (3.0, 40.0)] {
            assert!(situ_glu(gate, up, 4.0, Some(25.0)).abs() <= 100.0);
        }
        assert!((situ_glu(1e6, 1e6, 4.0, Some(25.0)) - 100.0).abs() < 1e-4);
        // Near zero it is SiLU.
        assert!((situ_glu(1e-3, 1e-3, 4.0, Some(25.0)) - silu_glu(1e-3, 1e-3)).abs() < 1e-12);
        assert_eq!(situ_glu(2.0, 3.0, 4.0, None), situ_glu(2.0, 1.0, 4.0, None) * 3.0);
    }
}
