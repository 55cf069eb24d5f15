//! The two inner loops of all matrix work: dot products of several rows with several stored rows, and sums of stored
//! rows with coefficients of several rows.
//!
//! A stored row is read and decoded once for all rows of a tile. The order of additions behind one result is fixed:
//! in [`dots`] each lane sums its columns in rising order and the lanes are summed by halving; in [`Sums::add`] stored
//! rows are added in their order. So the bits of a result do not depend on the tile it was computed in.
//!
//! Vectors are handled in plain loops, never in closures given to an array: a closure that is not inlined loses the
//! instruction set of its caller, and every vector operation in it becomes a call.

use crate::matrix::{Format, RowPtr};
use crate::simd::Simd;

/// Rows of the largest tile.
pub(crate) const MAX_TILE_ROWS: usize = 8;

/// `Σ_i x[r][i] w[o][i]` over `width` columns.
///
/// # Safety
/// Each `x` must be readable for `width` values and each `w` a row of `width` columns.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, F: Format, const R: usize, const O: usize>(
    s: S,
    x: [*const f32; R],
    w: [RowPtr; O],
    width: usize,
) -> [[f32; O]; R] {
    let mut sums = [[s.splat(0.0); O]; R];
    let whole = width - width % S::LANES;
    let mut i = 0;
    while i < whole {
        let mut weights = [s.splat(0.0); O];
        for o in 0..O {
            // SAFETY: `i + LANES <= width`.
            weights[o] = unsafe { F::load(s, w[o], i) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let value = unsafe { s.load_ptr(x[r].add(i)) };
            for o in 0..O {
                sums[r][o] = s.fma(value, weights[o], sums[r][o]);
            }
        }
        i += S::LANES;
    }
    if whole < width {
        let n = width - whole;
        let mut weights = [s.splat(0.0); O];
        for o in 0..O {
            // SAFETY: columns `whole .. width` exist in every row.
            weights[o] = unsafe { F::load_tail(s, w[o], whole, n) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let value = s.load(unsafe { std::slice::from_raw_parts(x[r].add(whole), n) }, 0);
            for o in 0..O {
                sums[r][o] = s.fma(value, weights[o], sums[r][o]);
            }
        }
    }
    let mut results = [[0.0; O]; R];
    for r in 0..R {
        for o in 0..O {
            results[r][o] = s.sum(sums[r][o]);
        }
    }
    results
}

/// `acc[r][c] = acc[r][c] decay[r] + Σ_j coefficient[r][j] w[j][c]` over `width` columns.
#[derive(Clone, Copy)]
pub(crate) struct Sums<'a, const R: usize> {
    /// Stored rows of `width` columns.
    pub(crate) w: &'a [RowPtr],
    /// One coefficient per stored row, for each row of the tile.
    pub(crate) coefficients: [*const f32; R],
    /// What becomes of the sums so far.
    pub(crate) decay: [f32; R],
    /// The sums. Two rows may be the same place if their coefficients and decays are the same, too.
    pub(crate) acc: [*mut f32; R],
    pub(crate) width: usize,
}

impl<const R: usize> Sums<'_, R> {
    /// Adds.
    ///
    /// # Safety
    /// The pointers must be good for the lengths above.
    #[inline(always)]
    pub(crate) unsafe fn add<S: Simd, F: Format>(self, s: S) {
        let whole = self.width - self.width % S::LANES;
        let mut i = 0;
        while i < whole {
            let mut sums = [s.splat(0.0); R];
            for r in 0..R {
                // SAFETY: `i + LANES <= width`.
                sums[r] = unsafe { s.load_ptr(self.acc[r].add(i)) };
            }
            self.decay_all(s, &mut sums);
            for (j, row) in self.w.iter().enumerate() {
                // SAFETY: as above.
                self.add_row(s, &mut sums, (j, unsafe { F::load(s, *row, i) }));
            }
            for r in 0..R {
                // SAFETY: as above.
                unsafe { s.store_ptr(self.acc[r].add(i), sums[r]) };
            }
            i += S::LANES;
        }
        if whole < self.width {
            // SAFETY: the caller's promise.
            unsafe { self.add_tail::<S, F>(s, whole) }
        }
    }

    /// The columns from `i` on, fewer than a vector.
    #[inline(always)]
    unsafe fn add_tail<S: Simd, F: Format>(self, s: S, i: usize) {
        let n = self.width - i;
        let mut sums = [s.splat(0.0); R];
        for r in 0..R {
            // SAFETY: columns `i .. width` exist in every row.
            sums[r] = s.load(unsafe { std::slice::from_raw_parts(self.acc[r].add(i), n) }, 0);
        }
        self.decay_all(s, &mut sums);
        for (j, row) in self.w.iter().enumerate() {
            // SAFETY: as above.
            self.add_row(s, &mut sums, (j, unsafe { F::load_tail(s, *row, i, n) }));
        }
        for r in 0..R {
            // SAFETY: as above; one row at a time is borrowed.
            s.store(unsafe { std::slice::from_raw_parts_mut(self.acc[r].add(i), n) }, 0, sums[r]);
        }
    }

    #[inline(always)]
    fn decay_all<S: Simd>(&self, s: S, sums: &mut [S::V; R]) {
        for r in 0..R {
            sums[r] = s.mul(sums[r], s.splat(self.decay[r]));
        }
    }

    #[inline(always)]
    fn add_row<S: Simd>(&self, s: S, sums: &mut [S::V; R], (j, row): (usize, S::V)) {
        for r in 0..R {
            // SAFETY: there is a coefficient for every stored row.
            let coefficient = unsafe { *self.coefficients[r].add(j) };
            sums[r] = s.fma(s.splat(coefficient), row, sums[r]);
        }
    }
}
