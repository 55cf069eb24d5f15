//! Activations as bytes, a scale for each group of 32 columns: what products with whole-number matrices read.

use perilune_backend::BackendError;
use perilune_tensor::{INT_FEATURES, INT_GROUP};

use crate::CpuBackend;
use crate::product::Pick;
use crate::scratch::{Loan, ThreadScratch};
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::tensor::Parted;

/// Rows `[numbers | scale of each group | sum of each group's numbers]`.
pub(crate) struct ByteRows<'a> {
    rows: Loan<'a>,
    width: usize,
    /// Room for sixteen features of bytes.
    work: ThreadScratch<'a>,
}

/// One row.
#[derive(Clone, Copy)]
pub(crate) struct ByteRow<'a> {
    /// Four numbers each, from -127 to 127.
    pub(crate) numbers: &'a [i32],
    /// Value of the number 1 in each group; not a number where the group held anything that is not finite.
    pub(crate) scales: &'a [f32],
    /// Sum of the numbers of each group.
    pub(crate) sums: &'a [i32],
}

impl<'a> ByteRows<'a> {
    /// Rounds the picked rows of `x`, whose width is a multiple of the group.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        (x, width): (&[f32], usize),
        (pick, rows): (Pick<'_>, usize),
    ) -> Result<ByteRows<'a>, BackendError> {
        // Kernels read whole tiles of rows, from any row on.
        let mut bytes = cpu.scratch().take((rows + MAX_LANES) * Self::len(width))?;
        let out = Parted::new(&mut bytes);
        cpu.parallel(rows, rows * width * 2, |_, i| {
            let row = pick.get(i);
            // SAFETY: each task has a row of its own.
            let out = unsafe { out.row(i, Self::len(width)) };
            cpu.level().run(Round { x: &x[row * width..(row + 1) * width], out: bytemuck::cast_slice_mut(out) });
        })?;
        let work = ThreadScratch::new(cpu.scratch(), cpu.num_threads(), width * INT_FEATURES / 4)?;
        Ok(ByteRows { rows: bytes, width, work })
    }

    /// Four-byte words of a row.
    fn len(width: usize) -> usize {
        width / 4 + 2 * (width / INT_GROUP)
    }

    /// Bytes from a row to the next.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn stride_bytes(&self) -> usize {
        4 * Self::len(self.width)
    }

    /// Scales and, as many words later as there are groups, sums: those of sixteen rows from row `i` on, one
    /// [`ByteRows::stride_bytes`] after the other. Taken once for many reads.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn scales_from(&self, i: usize) -> &[f32] {
        &self.rows[i * Self::len(self.width) + self.width / 4..]
            [..15 * Self::len(self.width) + 2 * self.width / INT_GROUP]
    }

    /// Room of a thread.
    ///
    /// # Safety
    /// No two may be alive at once for the same thread.
    #[cfg(target_arch = "x86_64")]
    #[allow(clippy::mut_from_ref)] // as for `ThreadScratch::of`
    pub(crate) unsafe fn space(&self, thread: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        bytemuck::cast_slice_mut(unsafe { self.work.of(thread) })
    }

    /// Row `i`.
    pub(crate) fn row(&self, i: usize) -> ByteRow<'_> {
        let (len, groups) = (Self::len(self.width), self.width / INT_GROUP);
        let row = &self.rows[i * len..(i + 1) * len];
        let (numbers, rest) = row.split_at(self.width / 4);
        let (scales, sums) = rest.split_at(groups);
        ByteRow { numbers: bytemuck::cast_slice(numbers), scales, sums: bytemuck::cast_slice(sums) }
    }
}

/// One row; compiled for each level, though the loops are plain: the results are the same everywhere.
struct Round<'a> {
    x: &'a [f32],
    out: &'a mut [i32],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let groups = self.x.len() / INT_GROUP;
        let (numbers, rest) = self.out.split_at_mut(self.x.len() / 4);
        let (scales, sums) = rest.split_at_mut(groups);
        for (g, x) in self.x.chunks_exact(INT_GROUP).enumerate() {
            let mut largest = 0.0_f32;
            let mut odd = 0.0_f32;
            for value in x {
                largest = if value.abs() > largest { value.abs() } else { largest };
                // Stays 0 unless a value is infinite or not a number.
                odd += value * 0.0;
            }
            let scale = largest / 127.0 + odd;
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let mut bytes = [0_i8; INT_GROUP];
            let mut sum = 0;
            for (byte, value) in bytes.iter_mut().zip(x) {
                *byte = (value * inverse).round_ties_even() as i8;
                sum += i32::from(*byte);
            }
            scales[g] = scale.to_bits() as i32;
            sums[g] = sum;
            numbers[g * 8..g * 8 + 8].copy_from_slice(&bytemuck::cast::<[i8; INT_GROUP], [i32; 8]>(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuOptions;

    #[test]
    fn numbers_scales_and_sums() {
        let cpu = CpuBackend::new(CpuOptions::default()).unwrap();
        let mut x = vec![0.0_f32; 96];
        (x[0], x[1], x[5]) = (-2.54, 1.27, 0.02);
        x[70] = f32::NAN;
        let rows = ByteRows::new(&cpu, (&x, 96), (Pick::From(0), 1)).unwrap();
        let row = rows.row(0);
        let bytes: &[i8] = bytemuck::cast_slice(row.numbers);
        assert_eq!((bytes[0], bytes[1], bytes[5]), (-127, 64, 1));
        assert_eq!((row.sums[0], row.scales[0]), (-62, 2.54 / 127.0));
        assert_eq!((row.sums[1], row.scales[1]), (0, 0.0));
        assert!(row.scales[2].is_nan());
    }
}
