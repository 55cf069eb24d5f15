//! The two inner loops of all matrix work: dot products of several rows with several stored rows, and sums of stored
//! rows with coefficients of several rows.
//!
//! A stored row is read and decoded once for all rows of a tile. The order of additions behind one result is fixed:
//! in [`dots`] each lane sums its columns in rising order and the lanes are summed by halving; in [`Sums::add`] stored
//! rows are added in their order. So the bits of a result do not depend on the tile it was computed in.
//!
//! Vectors are handled in plain loops, never in closures given to an array: a closure that is not inlined loses the
//! instruction set of its caller, and every vector operation in it becomes a call.

use std::marker::PhantomData;

use crate::matrix::{Format, RowPtr};
use crate::simd::{Kernel, Simd};

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
    s.apart(Dots::<F, R, O> { x, w, width, format: PhantomData })
}

/// A tile of dot products; only `dots` makes one, whose caller vouches for the pointers.
struct Dots<F, const R: usize, const O: usize> {
    x: [*const f32; R],
    w: [RowPtr; O],
    width: usize,
    format: PhantomData<F>,
}

impl<F: Format, const R: usize, const O: usize> Kernel for Dots<F, R, O> {
    type Output = [[f32; O]; R];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [[f32; O]; R] {
        let Dots { x, w, width, .. } = self;
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
        s.apart(Adding::<F, R> { sums: self, format: PhantomData });
    }

    /// `V` vectors of columns from `i`, `n` columns where there is but a part of one.
    #[inline(always)]
    unsafe fn columns<S: Simd, F: Format, const V: usize>(&self, s: S, i: usize, n: Option<usize>) {
        let mut sums = [[s.splat(0.0); V]; R];
        for r in 0..R {
            let decay = s.splat(self.decay[r]);
            for v in 0..V {
                // SAFETY: the caller's promise, here and below.
                let acc = unsafe { self.acc[r].add(i + v * S::LANES) };
                let before = match n {
                    // SAFETY: as above.
                    None => unsafe { s.load_ptr(acc) },
                    // SAFETY: as above.
                    Some(n) => unsafe { s.load_first(acc, n) },
                };
                sums[r][v] = s.mul(before, decay);
            }
        }
        for (j, row) in self.w.iter().enumerate() {
            let mut values = [s.splat(0.0); V];
            for v in 0..V {
                let i = i + v * S::LANES;
                values[v] = match n {
                    // SAFETY: as above.
                    None => unsafe { F::load(s, *row, i) },
                    // SAFETY: as above.
                    Some(n) => unsafe { F::load_tail(s, *row, i, n) },
                };
            }
            for r in 0..R {
                // SAFETY: there is a coefficient for every stored row.
                let coefficient = s.splat(unsafe { *self.coefficients[r].add(j) });
                for v in 0..V {
                    sums[r][v] = s.fma(coefficient, values[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                // SAFETY: as above.
                let acc = unsafe { self.acc[r].add(i + v * S::LANES) };
                match n {
                    // SAFETY: as above.
                    None => unsafe { s.store_ptr(acc, sums[r][v]) },
                    // SAFETY: as above.
                    Some(n) => unsafe { s.store_first(acc, n, sums[r][v]) },
                }
            }
        }
    }
}

/// Sums whose pointers `Sums::add` was promised to be good.
struct Adding<'a, F, const R: usize> {
    sums: Sums<'a, R>,
    format: PhantomData<F>,
}

impl<F: Format, const R: usize> Kernel for Adding<'_, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (sums, lanes) = (self.sums, S::LANES);
        let mut i = 0;
        // Two vectors share a coefficient, where there are registers for that many sums.
        while (S::WIDE || R <= 4) && i + 2 * lanes <= sums.width {
            // SAFETY: the promise to `Sums::add`, here and below.
            unsafe { sums.columns::<S, F, 2>(s, i, None) };
            i += 2 * lanes;
        }
        while i + lanes <= sums.width {
            // SAFETY: as above.
            unsafe { sums.columns::<S, F, 1>(s, i, None) };
            i += lanes;
        }
        if i < sums.width {
            // SAFETY: as above.
            unsafe { sums.columns::<S, F, 1>(s, i, Some(sums.width - i)) };
        }
    }
}
