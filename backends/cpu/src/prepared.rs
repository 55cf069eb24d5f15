//! Rows that several products of one operation read, in the other forms that the products want them in.

use std::ops::Range;

use perilune_backend::BackendError;
use perilune_tensor::QuantFormat;

use crate::CpuBackend;
use crate::byte_rows::ByteRows;
use crate::int_product::IntProduct;
use crate::product::{Pick, Product};
use crate::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use crate::{int_tiles::IntTiles, split::Split, tile_product::TileProduct};

/// The picked rows, one after the other.
pub(crate) struct Prepared<'a> {
    level: SimdLevel,
    bytes: Option<ByteRows<'a>>,
    #[cfg(target_arch = "x86_64")]
    split: Option<Split<'a>>,
}

impl<'a> Prepared<'a> {
    /// What products of the picked rows of `x`, `width` wide, with matrices of these formats need. Products take groups
    /// of rows, or parts of a group that begin on a multiple of sixteen rows of it.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        (x, width): (&[f32], usize),
        (pick, groups): (Pick<'_>, impl Iterator<Item = Range<usize>> + Clone),
        mut formats: impl Iterator<Item = QuantFormat> + Clone,
    ) -> Result<Prepared<'a>, BackendError> {
        let has_ints = formats.clone().any(QuantFormat::is_int);
        let rows = (pick, groups.clone().map(|group| group.end).max().unwrap_or(0));
        Ok(Prepared {
            level: cpu.level(),
            bytes: has_ints.then(|| ByteRows::new(cpu, (x, width), rows)).transpose()?,
            #[cfg(target_arch = "x86_64")]
            split: (cpu.level() == SimdLevel::Amx && Split::fits(width) && formats.any(TileProduct::takes))
                .then(|| Split::new(cpu, (x, width), (pick, groups)))
                .transpose()?,
        })
    }

    /// Computes a product whose rows are the prepared ones from `first` on. `thread` is the calling thread's index in
    /// the loop.
    pub(crate) fn multiply(&self, product: &Product<'_>, first: usize, thread: usize) {
        match &self.bytes {
            Some(rows) if product.weight.format.is_int() => self.multiply_ints(product, (rows, first), thread),
            _ => self.multiply_floats(product, first, thread),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn multiply_ints(&self, product: &Product<'_>, (rows, first): (&ByteRows<'_>, usize), thread: usize) {
        if self.level != SimdLevel::Amx || product.rows < IntTiles::LEAST_ROWS {
            return IntProduct { product, rows, first }.run(self.level);
        }
        // SAFETY: a thread runs one task at a time.
        let space = unsafe { rows.space(thread) };
        // SAFETY: the level is `Amx`; blocks of features begin on multiples of 16.
        unsafe { IntTiles { product, rows, first, space }.run() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn multiply_ints(&self, product: &Product<'_>, (rows, first): (&ByteRows<'_>, usize), _: usize) {
        IntProduct { product, rows, first }.run(self.level);
    }

    #[cfg(target_arch = "x86_64")]
    fn multiply_floats(&self, product: &Product<'_>, first: usize, thread: usize) {
        match &self.split {
            Some(split) if TileProduct::takes(product.weight.format) => {
                // SAFETY: a thread runs one task at a time.
                let space = unsafe { split.space(thread) };
                let tiles = TileProduct { product, split, first, space, level: self.level };
                // SAFETY: rows are split at this level only; blocks of features begin on multiples of 16.
                unsafe { tiles.run() }
            }
            _ => self.level.run(product.clone()),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn multiply_floats(&self, product: &Product<'_>, _: usize, _: usize) {
        self.level.run(product.clone());
    }
}
