//! `y = x Wᵀ` for several matrices of one input, as one parallel loop over blocks of output features.

use std::ops::Range;

use perilune_backend::{BackendError, Linear, Write};

use crate::CpuBackend;
use crate::matrix::Matrix;
use crate::prepared::Prepared;
use crate::product::{Outputs, Pick, Product};
use crate::tensor::{CpuTensor, Parted};

/// Values of rows that one task takes at most: they stay in the second-level cache.
const ROW_VALUES: usize = 1 << 17;
/// Rows that one task takes at most, and at least where there are as many.
const ROW_BLOCKS: (usize, usize) = (32, 256);
/// Output features of a block are a multiple of this, which fits every tile.
const FEATURE_STEP: usize = 48;
/// Output features of a block at most, so that its weights stay in the second-level cache over the rows.
const MAX_FEATURES: usize = 96;

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
    let prepared = Prepared::new(cpu, (x, dims.in_features), (Pick::From(0), rows), formats)?;
    let blocks = feature_blocks(parts.iter().map(|p| p.weight.out_features), cpu.num_threads());
    let row_block = row_block(dims.in_features);
    let row_blocks = rows.div_ceil(row_block);
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

/// Cuts the output features of several matrices into blocks, a few for every thread: `(matrix, features)`.
pub(crate) fn feature_blocks(
    out_features: impl Iterator<Item = usize> + Clone,
    threads: usize,
) -> Vec<(usize, Range<usize>)> {
    let total: usize = out_features.clone().sum();
    let size = total.div_ceil(threads * 4).next_multiple_of(FEATURE_STEP).clamp(FEATURE_STEP, MAX_FEATURES);
    let mut blocks = Vec::with_capacity(total / size + 8);
    for (part, features) in out_features.enumerate() {
        for start in (0..features).step_by(size) {
            blocks.push((part, start..(start + size).min(features)));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::feature_blocks;

    #[test]
    fn blocks_cover_every_feature_once() {
        for threads in [1, 2, 64] {
            for sizes in [vec![], vec![1], vec![0, 13, 5000], vec![97, 96, 95]] {
                let mut seen: Vec<Vec<u32>> = sizes.iter().map(|n| vec![0; *n]).collect();
                for (part, range) in feature_blocks(sizes.iter().copied(), threads) {
                    assert!(!range.is_empty());
                    range.for_each(|o| seen[part][o] += 1);
                }
                assert!(seen.iter().flatten().all(|count| *count == 1));
            }
        }
    }
}
