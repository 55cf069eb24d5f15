//! Rows that several products of one operation read, in the other forms that the products want them in.

use perilune_backend::BackendError;
use perilune_tensor::QuantFormat;

use crate::CpuBackend;
use crate::product::{Pick, Product};
use crate::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use crate::{split::Split, tile_product::TileProduct};

/// The picked rows, one after the other.
pub(crate) struct Prepared<'a> {
    level: SimdLevel,
    #[cfg(target_arch = "x86_64")]
    split: Option<Split<'a>>,
    #[cfg(not(target_arch = "x86_64"))]
    none: std::marker::PhantomData<&'a ()>,
}

impl<'a> Prepared<'a> {
    /// What products of the picked rows of `x`, `width` wide, with matrices of these formats need.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        (x, width): (&[f32], usize),
        (pick, rows): (Pick<'_>, usize),
        mut formats: impl Iterator<Item = QuantFormat>,
    ) -> Result<Prepared<'a>, BackendError> {
        let level = cpu.level();
        let splits = level == SimdLevel::Amx && Split::fits(width) && formats.any(TileProduct::takes);
        let split = splits.then(|| Split::new(cpu, x, (pick, rows), width)).transpose()?;
        Ok(Prepared { level, split })
    }

    /// Nothing beyond the rows themselves.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        _: (&[f32], usize),
        _: (Pick<'_>, usize),
        _: impl Iterator<Item = QuantFormat>,
    ) -> Result<Prepared<'a>, BackendError> {
        Ok(Prepared { level: cpu.level(), none: std::marker::PhantomData })
    }

    /// Computes a product whose rows are the prepared ones from `first` on. `thread` is the calling thread's index in
    /// the loop.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn multiply(&self, product: &Product<'_>, first: usize, thread: usize) {
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

    /// As above.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn multiply(&self, product: &Product<'_>, _: usize, _: usize) {
        self.level.run(product.clone());
    }
}
