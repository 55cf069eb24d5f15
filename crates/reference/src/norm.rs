//! RMS and L2 normalisation of a row.

/// `x (mean(x²) + eps)^(-1/2) w`, in place of nothing: returns the row.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean_square = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

/// `x (Σ x² + eps)^(-1/2)`: eps is added to the sum, not to the mean.
pub fn l2_norm(x: &[f32], eps: f32) -> Vec<f32> {
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f32>() + eps).sqrt();
    x.iter().map(|v| v * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms() {
        let row = rms_norm(&[3.0, -3.0, 3.0, 3.0], &[1.0, 1.0, 2.0, 0.5], 0.0);
        assert_eq!(row, [1.0, -1.0, 2.0, 0.5]);
        assert_eq!(rms_norm(&[0.0; 4], &[1.0; 4], 1e-5), [0.0; 4]);
        assert_eq!(l2_norm(&[3.0, 4.0], 0.0), [0.6, 0.8]);
        // The sum of squares is 1e-6, as large as eps: the norm is 1/√2, whatever the width.
        let small = l2_norm(&[5e-4; 4], 1e-6);
        assert!((small.iter().map(|v| v * v).sum::<f32>() - 0.5).abs() < 1e-6);
    }
}
