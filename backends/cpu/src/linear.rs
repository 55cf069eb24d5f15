//! `y = x Wᵀ` for several matrices of one input, as one parallel loop over blocks of output features.

use std::ops::Range;

use perilune_backend::{BackendError, Linear, Write};

use crate::CpuBackend;
use crate::matrix::Matrix;
use crate::prepared::Prepared;
use crate::product::{Outputs, Pick, Product};
use crate::simd::SimdLevel;
use crate::tensor::{CpuTensor, Parted};

/// Values of rows that one task takes at most: they stay in the second-level cache.
const ROW_VALUES: usize = 3 << 16;
/// Rows that one task takes at most, and at least where there are as many.
const ROW_BLOCKS: (usize, usize) = (32, 256);
/// Output features of a block are a multiple of this wherever there are more: what tiles take at a time.
const FEATURE_STEP: usize = 32;
/// Values of a block's weights at most, so that they stay in the second-level cache over the rows.
const WEIGHT_VALUES: usize = 96 << 10;
/// The same on tiles, which read weights once for many rows: within a block memory is asked ahead, from block to block not.
const WEIGHT_VALUES_OF_TILES: usize = 512 << 10;
/// Blocks for every thread, if that leaves them large enough.
const BLOCKS_PER_THREAD: usize = 4;

struct Part<'a> {
    weight: Matrix<'a>,
    out: Parted<'a, f32>,
    write: Write,
}

pub(crate) fn linear(cpu: &CpuBackend, op: Linear<'_, '_, CpuTensor>) -> Result<(), BackendError> {
    let dims = op.dims()?;
    let x = op.x.f32()?;
    let rows = op.rows;
    if rows == 0 {
        return Ok(());
    }
    let mut parts = Vec::with_capacity(op.parts.len());
    for part in op.parts.iter_mut() {
        parts.push(Part { weight: Matrix::of(part.weight), out: part.out.parted()?, write: part.write });
    }
    let formats = parts.iter().map(|part| part.weight.format);
    let prepared = Prepared::new(cpu, (x, dims.in_features), (Pick::From(0), std::iter::once(0..rows)), formats)?;
    let row_block = row_block(dims.in_features);
    let row_blocks = rows.div_ceil(row_block);
    let features = parts.iter().map(|p| p.weight.out_features);
    let cut = Cut { width: dims.in_features, row_blocks };
    let blocks = feature_blocks(cpu, features, cut);
    let work = rows * dims.in_features * dims.total_out;
    cpu.parallel(blocks.len() * row_blocks, work, |thread, task| {
        let (part, range) = &blocks[task / row_blocks];
        let part = &parts[*part];
        let first = task % row_blocks * row_block;
        let pick = Pick::From(first);
        let out =
            Outputs { data: &part.out, width: part.weight.out_features, column: range.start, pick, write: part.write };
        let rows = row_block.min(rows - first);
        let product = Product { rows, x, pick, weight: part.weight, range: range.clone(), out };
        prepared.multiply(&product, first, thread);
    })
}

/// Rows that one task takes.
pub(crate) fn row_block(width: usize) -> usize {
    let (least, most) = ROW_BLOCKS;
    (ROW_VALUES / width.max(1)).clamp(least, most) / least * least
}

/// What decides how output features are cut into blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Columns of a matrix.
    pub(crate) width: usize,
    /// Tasks that every block becomes.
    pub(crate) row_blocks: usize,
}

/// Cuts the output features of several matrices into blocks, a few for every thread: `(matrix, features)`.
pub(crate) fn feature_blocks(
    cpu: &CpuBackend,
    out_features: impl Iterator<Item = usize> + Clone,
    cut: Cut,
) -> Vec<(usize, Range<usize>)> {
    let values = if cpu.level() == SimdLevel::Amx { WEIGHT_VALUES_OF_TILES } else { WEIGHT_VALUES };
    let most = (values / cut.width.max(1)).max(2 * FEATURE_STEP);
    let total: usize = out_features.clone().sum();
    let wanted = (total * cut.row_blocks).div_ceil(cpu.num_threads() * BLOCKS_PER_THREAD);
    let size = wanted.clamp(2 * FEATURE_STEP, most);
    let mut blocks = Vec::with_capacity(total / size + 8);
    for (part, features) in out_features.enumerate() {
        let even = features.div_ceil(features.div_ceil(size).max(1)).next_multiple_of(FEATURE_STEP);
        blocks.extend((0..features).step_by(even.max(1)).map(|start| (part, start..(start + even).min(features))));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuOptions;

    #[test]
    fn blocks_cover_every_feature_once() {
        for threads in [1, 2, 16] {
            let cpu = CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
            for sizes in [vec![], vec![1], vec![0, 13, 5000], vec![97, 96, 95]] {
                for (width, row_blocks) in [(64, 1), (4096, 16)] {
                    let mut seen: Vec<Vec<u32>> = sizes.iter().map(|n| vec![0; *n]).collect();
                    let cut = Cut { width, row_blocks };
                    for (part, range) in feature_blocks(&cpu, sizes.iter().copied(), cut) {
                        assert!(!range.is_empty() && range.start.is_multiple_of(FEATURE_STEP));
                        range.for_each(|o| seen[part][o] += 1);
                    }
                    assert!(seen.iter().flatten().all(|count| *count == 1));
                }
            }
        }
    }
}
