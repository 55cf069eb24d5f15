//! Sixteen by sixteen four-byte elements with rows and columns exchanged, in registers.

use std::arch::x86_64::*;

/// Rows, and elements of a row.
const SIDE: usize = 16;

/// The `c`-th row of the result is the `c`-th column of `rows`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Column `c` of each quarter, of four rows.
    let mut fours = pairs;
    for i in 0..4 {
        for half in 0..2 {
            let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut out = fours;
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(fours[c], fours[4 + c]);
        let high = _mm512_shuffle_i32x4::<0xdd>(fours[c], fours[4 + c]);
        let low2 = _mm512_shuffle_i32x4::<0x88>(fours[8 + c], fours[12 + c]);
        let high2 = _mm512_shuffle_i32x4::<0xdd>(fours[8 + c], fours[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low, low2);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(high, high2);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposition() {
        if !is_x86_feature_detected!("avx512f") {
            eprintln!("skipped: this processor has no AVX-512");
            return;
        }
        let mut rows = [[0_u32; 16]; 16];
        rows.iter_mut().enumerate().for_each(|(r, row)| {
            row.iter_mut().enumerate().for_each(|(c, value)| *value = (r * 16 + c) as u32);
        });
        // SAFETY: the processor has AVX-512, and the arrays hold 16 vectors.
        let turned: [[u32; 16]; 16] = unsafe {
            let turned = transpose(std::mem::transmute::<[[u32; 16]; 16], [__m512i; 16]>(rows));
            std::mem::transmute::<[__m512i; 16], [[u32; 16]; 16]>(turned)
        };
        for r in 0..16 {
            for c in 0..16 {
                assert_eq!(turned[c][r], rows[r][c], "row {r}, column {c}");
            }
        }
    }
}
