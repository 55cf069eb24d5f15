//! Runs of rows as the index tensors describe them, checked so that tasks of different runs never touch the same place.

use std::ops::Range;

use perilune_backend::{BackendError, BlockTables, Segments, Snapshots};

use crate::tensor::CpuTensor;

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Rows of the step.
    pub(crate) rows: Range<usize>,
    /// Tokens of the sequence before the run.
    pub(crate) position: usize,
    /// State slot.
    pub(crate) slot: usize,
    /// Copies of its state, in rising order of rows.
    pub(crate) snapshots: Vec<Snapshot>,
}

/// A copy of a run's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Rows of the run before it.
    pub(crate) rows: usize,
    /// Slot that takes it.
    pub(crate) slot: usize,
}

/// A fault of the calling code.
pub(crate) fn fault(op: &'static str, field: &'static str, found: String, expected: String) -> BackendError {
    BackendError::Mismatch { op, field, found, expected }
}

/// The runs of an operation on `rows` rows.
///
/// # Errors
/// `Mismatch` for an empty run, one past the last row, or two that overlap.
pub(crate) fn runs(
    op: &'static str,
    segments: &Segments<'_, CpuTensor>,
    rows: usize,
) -> Result<Vec<Run>, BackendError> {
    let runs = runs_or_empty(op, segments, rows)?;
    match runs.iter().find(|run| run.rows.is_empty()) {
        Some(run) => Err(fault(op, "segments", format!("rows {:?}", run.rows), "at least one row".to_owned())),
        None => Ok(runs),
    }
}

/// The same, where a run may have no rows.
///
/// # Errors
/// `Mismatch` for a run past the last row, or two that overlap.
pub(crate) fn runs_or_empty(
    op: &'static str,
    segments: &Segments<'_, CpuTensor>,
    rows: usize,
) -> Result<Vec<Run>, BackendError> {
    let (start, len) = (segments.start.u32()?, segments.len.u32()?);
    let (position, slot) = (segments.position.u32()?, segments.slot.u32()?);
    let run = |i: usize| Run {
        rows: start[i] as usize..start[i] as usize + len[i] as usize,
        position: position[i] as usize,
        slot: slot[i] as usize,
        snapshots: Vec::new(),
    };
    let runs: Vec<Run> = (0..segments.count).map(run).collect();
    let mut ranges: Vec<&Range<usize>> = runs.iter().map(|run| &run.rows).filter(|rows| !rows.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    for (i, range) in ranges.iter().enumerate() {
        if range.end > rows {
            return Err(fault(op, "segments", format!("rows {range:?}"), format!("within 0..{rows}")));
        }
        if i > 0 && ranges[i - 1].end > range.start {
            return Err(fault(op, "segments", format!("{:?}, {range:?}", ranges[i - 1]), "disjoint rows".to_owned()));
        }
    }
    Ok(runs)
}

/// Hands each run its snapshots.
///
/// # Errors
/// `Mismatch` for one of no run, of no row, past the end of its run, or out of order.
pub(crate) fn take_snapshots(
    op: &'static str,
    snapshots: &Snapshots<'_, CpuTensor>,
    runs: &mut [Run],
) -> Result<(), BackendError> {
    let (run, rows, slot) = (snapshots.run.u32()?, snapshots.rows.u32()?, snapshots.slot.u32()?);
    for i in 0..snapshots.count {
        let (index, snapshot) = (run[i] as usize, Snapshot { rows: rows[i] as usize, slot: slot[i] as usize });
        let num_runs = runs.len();
        let Some(run) = runs.get_mut(index) else {
            return Err(fault(op, "snapshots.run", index.to_string(), format!("below {num_runs}")));
        };
        let least = run.snapshots.last().map_or(0, |last| last.rows) + 1;
        if !(least..=run.rows.len()).contains(&snapshot.rows) {
            let expected = format!("{least} to {}", run.rows.len());
            return Err(fault(op, "snapshots.rows", snapshot.rows.to_string(), expected));
        }
        run.snapshots.push(snapshot);
    }
    Ok(())
}

/// Blocks of an arena and who has them.
pub(crate) struct Paging<'a> {
    /// The operation, for errors.
    pub(crate) op: &'static str,
    pub(crate) tables: BlockTables<'a, CpuTensor>,
    /// Tokens per block.
    pub(crate) block_size: usize,
    /// Blocks that exist.
    pub(crate) num_blocks: usize,
}

impl<'a> Paging<'a> {
    /// The blocks of each run that hold its first `covered` tokens.
    ///
    /// # Errors
    /// `Mismatch` where there are too few or one does not exist.
    pub(crate) fn blocks(&self, runs: &[Run], covered: impl Fn(&Run) -> usize) -> Result<Vec<&'a [u32]>, BackendError> {
        let (offset, blocks) = (self.tables.offset.u32()?, self.tables.blocks.u32()?);
        let mut tables = Vec::with_capacity(runs.len());
        for (i, run) in runs.iter().enumerate() {
            let range = offset[i] as usize..offset[i + 1] as usize;
            let needed = covered(run).div_ceil(self.block_size);
            let Some(table) = blocks.get(range.clone()).filter(|table| table.len() >= needed) else {
                let expected = format!("{needed} blocks among {}", blocks.len());
                return Err(fault(self.op, "tables.offset", format!("{range:?}"), expected));
            };
            let table = &table[..needed];
            if let Some(bad) = table.iter().find(|block| **block as usize >= self.num_blocks) {
                return Err(fault(self.op, "tables.blocks", bad.to_string(), format!("below {}", self.num_blocks)));
            }
            tables.push(table);
        }
        Ok(tables)
    }

    /// The blocks of each run up to its last token, where no block is written by two places of the tables.
    ///
    /// # Errors
    /// As [`Paging::blocks`]; `Mismatch` where two places would be written.
    pub(crate) fn written(&self, runs: &[Run]) -> Result<Vec<&'a [u32]>, BackendError> {
        let tables = self.blocks(runs, |run| run.position + run.rows.len())?;
        let written = |(run, table): (&Run, &&'a [u32])| {
            table[run.position / self.block_size..].iter().map(|block| *block as usize).collect::<Vec<_>>()
        };
        let written = runs.iter().zip(&tables).flat_map(written).collect();
        check_distinct((self.op, "tables.blocks"), written, self.num_blocks)?;
        Ok(tables)
    }
}

/// Checks that values below `limit` are pairwise different.
///
/// # Errors
/// `Mismatch`.
pub(crate) fn check_distinct(
    (op, field): (&'static str, &'static str),
    mut values: Vec<usize>,
    limit: usize,
) -> Result<(), BackendError> {
    values.sort_unstable();
    if let Some(bad) = values.iter().find(|v| **v >= limit) {
        return Err(fault(op, field, bad.to_string(), format!("below {limit}")));
    }
    match values.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(fault(op, field, format!("{} twice", pair[0]), "distinct".to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_tensor::HostTensor;

    fn made(start: &[u32], len: &[u32]) -> Result<Vec<Run>, BackendError> {
        let tensor = |v: &[u32]| CpuTensor::share(&HostTensor::from_u32([v.len()], v).unwrap()).unwrap();
        let (start, len, other) = (tensor(start), tensor(len), tensor(&vec![3; start.len()]));
        let segments = Segments { count: len.u32()?.len(), start: &start, len: &len, position: &other, slot: &other };
        runs("test", &segments, 10)
    }

    #[test]
    fn refuses_runs_that_would_collide() {
        assert_eq!(made(&[4, 0], &[6, 4]).unwrap()[1].rows, 0..4);
        for (start, len) in [(&[0][..], &[0][..]), (&[9], &[2]), (&[0, 3], &[4, 1]), (&[u32::MAX], &[u32::MAX])] {
            assert!(matches!(made(start, len), Err(BackendError::Mismatch { .. })), "{start:?} {len:?}");
        }
        assert!(check_distinct(("t", "f"), vec![2, 0, 1], 3).is_ok());
        assert!(check_distinct(("t", "f"), vec![2, 0, 2], 3).is_err());
        assert!(check_distinct(("t", "f"), vec![3], 3).is_err());
    }
}
