//! `y = x Wᵀ`.

/// One row of `x` (`[in]`) times a matrix `[out, in]`.
pub fn linear(x: &[f32], weight: &[f32]) -> Vec<f32> {
    if x.is_empty() {
        return Vec::new();
    }
    weight.chunks_exact(x.len()).map(|row| dot(x, row)).collect()
}

/// Inner product.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn closed_form() {
        assert_eq!(super::linear(&[1.0, 2.0], &[1.0, 0.0, 0.0, 1.0, 3.0, -1.0]), [1.0, 2.0, 1.0]);
    }
}
