//! Matrix products in every format that the backend takes.

use perilune_backend::{Backend, Linear, LinearPart, Write};
use perilune_reference::linear::linear;
use perilune_tensor::QuantFormat;

use crate::rig::{Noise, Rig, assert_close, assert_untouched, fitting, for_all, tolerance};

/// Several weights of one input, overwriting and adding, for row counts around every tile.
pub fn check_linear<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for format in rig.formats() {
        for rows in [0, 1, 2, 3, 5, 8, 9, 17, 70] {
            for_all(3, (1_usize..150, 1_usize..40, 1_usize..30), |(inp, out_a, out_b)| {
                one_linear(&rig, format, [rows, inp, out_a, out_b]);
            });
            // Whole tiles of any kernel, and more than a block of features.
            one_linear(&rig, format, [rows, 320, 176, 37]);
        }
    }
}

fn one_linear<B: Backend>(rig: &Rig<'_, B>, format: QuantFormat, [rows, inp, out_a, out_b]: [usize; 4]) {
    let ([out_a, inp], [out_b, _]) = (fitting(format, [out_a, inp]), fitting(format, [out_b, inp]));
    let mut noise = Noise::new((rows + inp * 1000) as u64);
    let x = noise.row(rows * inp, 1.0);
    let ((a, a_values), (b, b_values)) =
        (rig.weight(format, [out_a, inp], &mut noise), rig.weight(format, [out_b, inp], &mut noise));
    let before = noise.row(rows * out_b, 1.0);
    let (mut y_a, mut y_b) = (rig.poison([rows + 1, out_a]), rig.f32([rows, out_b], &before));
    let x_tensor = rig.f32([rows, inp], &x);
    let mut parts = [
        LinearPart { weight: &a, out: &mut y_a, write: Write::Replace },
        LinearPart { weight: &b, out: &mut y_b, write: Write::Add },
    ];
    rig.0.linear(Linear { rows, x: &x_tensor, parts: &mut parts }).unwrap();
    let want_a: Vec<f32> = x.chunks_exact(inp).flat_map(|row| linear(row, &a_values)).collect();
    let products = x.chunks_exact(inp).flat_map(|row| linear(row, &b_values));
    let want_b: Vec<f32> = products.zip(&before).map(|(y, old)| y + old).collect();
    let got = rig.read(&y_a);
    let what = format!("linear {format:?} [{rows}, {inp}] -> {out_a}");
    assert_close(&what, &got[..rows * out_a], &want_a, tolerance(format, 1e-5));
    assert_untouched(&what, &got[rows * out_a..]);
    assert_close(&what, &rig.read(&y_b), &want_b, tolerance(format, 1e-5));
}
