//! From a tile to runs, rows and slots.

use cubecl::prelude::*;

use super::{MlaVariant, TILE, Tiles};

/// One slot of a tile.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Slot {
    /// Whether it belongs to a row.
    pub(crate) valid: bool,
    /// Index in the scratch buffers.
    pub(crate) index: usize,
    /// Row of the step.
    pub(crate) row: usize,
}

/// Which rows are computed at once.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Window {
    /// Number of runs.
    pub(crate) runs: usize,
    /// Rows of a run in the scratch buffers.
    pub(crate) rows: usize,
    /// First row of each run.
    pub(crate) first: usize,
}

/// Slot `j` of tile `tile`.
#[cube]
pub(crate) fn slot(
    start: &[u32],
    len: &[u32],
    window: &Window,
    tile: usize,
    j: usize,
    #[comptime] v: MlaVariant,
) -> Slot {
    let run =
        if comptime!(v.tiles == Tiles::Across) { (tile / window.rows) * TILE + j } else { tile / (window.rows / TILE) };
    let within =
        if comptime!(v.tiles == Tiles::Across) { tile % window.rows } else { (tile % (window.rows / TILE)) * TILE + j };
    let mut valid = false;
    let mut row = 0usize;
    if run < window.runs {
        valid = window.first + within < len[run] as usize;
        row = start[run] as usize + window.first + within;
    }
    Slot { valid, index: run * window.rows + within, row }
}
