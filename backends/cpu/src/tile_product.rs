//! Products with bfloat16 and MXFP4 matrices on AMX tiles.
//!
//! The matrix is the first factor, 32 features at a time, read from where it lies; packed rows ([`Split`]) are the second,
//! up to 32 at a time. What is multiplied with what else at the same time does not change the bits of a result.

use std::arch::x86_64::*;
use std::ops::Range;

use perilune_tensor::QuantFormat;

use crate::product::Product;
use crate::simd::SimdLevel;
use crate::simd::amx::{PartTiles, Sums2x1, TILE_BYTES, TILE_ROWS, TileRun, Tiles, add_2x1, add_2x2};
use crate::simd::transpose::transpose;
use crate::split::{COLUMNS, PIECE_TILES, RowTile, Split, TileSpace};
use crate::tile_decode::{Block, Groups, Source};

/// Values of a tile of sums.
const TILE: usize = TILE_BYTES / 4;

/// A product whose rows have been split.
pub(crate) struct TileProduct<'a, 's> {
    pub(crate) product: &'s Product<'a>,
    pub(crate) split: &'s Split<'s>,
    /// Which split row is the first of the product.
    pub(crate) first: usize,
    pub(crate) space: TileSpace<'s>,
    /// What computes the features that tiles do not.
    pub(crate) level: SimdLevel,
}

/// One or two blocks of sixteen features.
#[derive(Clone, Copy)]
struct Pair {
    first: (usize, Block),
    second: Option<(usize, Block)>,
}

impl Pair {
    fn source(&self) -> Source {
        // Without a second block the first is multiplied twice.
        self.first.1.source(&self.second.unwrap_or(self.first).1)
    }

    fn features(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first.0).chain(self.second.map(|(feature, _)| feature))
    }
}

impl TileProduct<'_, '_> {
    /// Computes all features: whole blocks of 16 on tiles, what is left as everywhere else.
    ///
    /// # Safety
    /// The level must be `Amx`, the format one of [`TileProduct::takes`], the first feature a multiple of 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
    pub(crate) unsafe fn run(mut self) {
        let range = self.product.range.clone();
        let end = range.end - range.len() % TILE_ROWS;
        let split = self.split;
        let tiles = split.tiles(self.first..self.first + self.product.rows);
        // SAFETY: the caller's promise.
        let set_up = unsafe { Tiles::set_up(tiles[0].columns) };
        let mut waiting = None;
        for feature in (range.start..end).step_by(TILE_ROWS) {
            let Some(block) = Block::new(&self.product.weight, feature) else {
                self.leave(feature..feature + TILE_ROWS);
                continue;
            };
            waiting = match waiting {
                None => Some((feature, block)),
                Some(first) => {
                    // SAFETY: as above.
                    unsafe { self.pair(&set_up, Pair { first, second: Some((feature, block)) }, tiles) }
                    None
                }
            };
        }
        if let Some(first) = waiting {
            // SAFETY: as above.
            unsafe { self.pair(&set_up, Pair { first, second: None }, tiles) }
        }
        drop(set_up);
        self.leave(end..range.end);
    }

    /// Formats that tiles multiply.
    pub(crate) fn takes(format: QuantFormat) -> bool {
        matches!(format, QuantFormat::Bf16 | QuantFormat::Mxfp4)
    }

    /// Tiles across the columns.
    fn steps(&self) -> usize {
        self.split.width() / COLUMNS
    }

    /// Computes features without tiles. Which ones that are depends on the matrix alone.
    fn leave(&self, features: Range<usize>) {
        if !features.is_empty() {
            self.level.run(self.product.part(features));
        }
    }

    /// All rows by one or two blocks of features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
    unsafe fn pair(&mut self, set_up: &Tiles, pair: Pair, tiles: &[RowTile]) {
        let mut source = pair.source();
        if let Source::Packed(groups) = source
            && tiles.len() > 2
        {
            // SAFETY: there is room for two rows of tiles.
            source = Source::InPlace(unsafe { decode(groups, 0..self.steps(), self.space.decoded) });
        }
        if let (Source::Packed(groups), [tile]) = (source, tiles) {
            // SAFETY: as above.
            unsafe {
                self.stream(set_up, groups, tile);
                self.hand_out(&pair, tiles);
            }
            return;
        }
        for some in tiles.chunks(2) {
            self.space.sums.fill(0.0);
            // SAFETY: the caller's promise.
            unsafe {
                match source {
                    Source::InPlace(run) => {
                        self.add(set_up, run, (some, 0..self.steps()));
                        source = Source::InPlace(run.again());
                    }
                    Source::Packed(groups) => self.add_pieces(set_up, groups, some),
                }
                self.hand_out(&pair, some);
            }
        }
    }

    /// Adds the products of some steps of one or two tiles of rows.
    #[inline]
    unsafe fn add(&mut self, set_up: &Tiles, a: TileRun, (tiles, steps): (&[RowTile], Range<usize>)) {
        let sums = self.space.sums.as_mut_ptr();
        let parts = |tile: &RowTile| self.split.parts(tile).skip(steps.start);
        // SAFETY: matrix and rows hold these steps; `sums` holds four tiles.
        unsafe {
            match tiles {
                [first, second] => add_2x2(set_up, a, ([parts(first), parts(second)], steps.len()), sums),
                [first] => add_2x1(set_up, a, (parts(first), steps.len()), sums),
                _ => {}
            }
        }
    }

    /// The sums of one tile of rows, with the matrix decoded while what was decoded before is multiplied. A tile cannot be
    /// read before its rows have left the processor's queue of stores; so two steps lie between.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
    unsafe fn stream(&mut self, set_up: &Tiles, groups: [Groups; 2], tile: &RowTile) {
        const AHEAD: usize = 2;
        const SLOTS: usize = AHEAD + 1;
        const { assert!(SLOTS <= PIECE_TILES, "slots are pieces of one step") }
        let (steps, parts) = (self.steps(), self.split.parts(tile));
        let ring = self.space.piece[..SLOTS * 2 * TILE].as_mut_ptr().cast::<u8>();
        let slot = |step: usize| ring.wrapping_add(step % SLOTS * 2 * TILE_BYTES);
        // SAFETY: matrix and rows hold all steps, a slot two tiles; `sums` holds two.
        unsafe {
            for step in 0..steps.min(AHEAD) {
                decode_step(groups, step, slot(step));
            }
            let mut sums = Sums2x1::zero(set_up);
            for step in 0..steps {
                let pair = slot(step).cast_const();
                sums.add(TileRun::packed([pair, pair.wrapping_add(TILE_BYTES)]), parts.skip(step));
                if step + AHEAD < steps {
                    decode_step(groups, step + AHEAD, slot(step + AHEAD));
                }
            }
            sums.store(parts.columns, self.space.sums.as_mut_ptr());
        }
    }

    /// The same for all steps, with the matrix decoded a piece at a time.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
    unsafe fn add_pieces(&mut self, set_up: &Tiles, groups: [Groups; 2], tiles: &[RowTile]) {
        for start in (0..self.steps()).step_by(PIECE_TILES) {
            let steps = start..self.steps().min(start + PIECE_TILES);
            // SAFETY: there is room for two pieces; the caller's promise.
            unsafe {
                let a = decode(groups, steps.clone(), self.space.piece);
                self.add(set_up, a, (tiles, steps));
            }
        }
    }

    /// Hands out sums, which lie with the features of a tile as its rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
    unsafe fn hand_out(&self, pair: &Pair, tiles: &[RowTile]) {
        for (j, tile) in tiles.iter().enumerate() {
            for (i, feature) in pair.features().enumerate() {
                let sums = &self.space.sums[(2 * j + i) * TILE..][..TILE];
                let column = feature - self.product.range.start;
                if tile.columns == 1 {
                    self.product.put(tile.first - self.first, column, &sums[..TILE_ROWS]);
                    continue;
                }
                let mut features = [_mm512_setzero_si512(); TILE_ROWS];
                let mask = u16::MAX >> (TILE_ROWS - tile.columns);
                for (f, values) in features.iter_mut().enumerate() {
                    // SAFETY: only the values of the mask are read, which the tile has.
                    *values = unsafe { _mm512_maskz_loadu_epi32(mask, sums.as_ptr().add(f * tile.columns).cast()) };
                }
                for (r, row) in transpose(features).into_iter().enumerate().take(tile.rows) {
                    let mut values = [0.0; TILE_ROWS];
                    // SAFETY: there is room for 16 values.
                    unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), row) }
                    self.product.put(tile.first - self.first + r, column, &values);
                }
            }
        }
    }
}

/// Decodes one step of two blocks into two tiles.
///
/// # Safety
/// The blocks must have the step, and `out` room for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn decode_step(groups: [Groups; 2], step: usize, out: *mut u8) {
    for (groups, at) in groups.iter().zip([0, TILE_BYTES]) {
        // SAFETY: the caller's promise.
        unsafe { groups.decode(step, out.add(at)) }
    }
}

/// Decodes some steps of two blocks.
///
/// # Safety
/// The blocks must have the steps, and `out` room for them, those of the first block first.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn decode(groups: [Groups; 2], steps: Range<usize>, out: &mut [f32]) -> TileRun {
    let first = out.as_mut_ptr().cast::<u8>();
    let second = first.wrapping_add(steps.len() * TILE_BYTES);
    for (i, step) in steps.enumerate() {
        for (groups, out) in groups.iter().zip([first, second]) {
            // SAFETY: the caller's promise.
            unsafe { groups.decode(step, out.add(i * TILE_BYTES)) }
        }
    }
    TileRun::packed([first.cast_const(), second.cast_const()])
}

/// Tile products out of the first-level cache, to measure how fast they can be; returns the number of operations.
///
/// # Safety
/// The level must be `Amx`.
pub(crate) unsafe fn peak(rounds: usize) -> f64 {
    const COUNT: usize = 4;
    let (tiles, mut sums) = (vec![0_u8; 8 * COUNT * TILE_BYTES], vec![0.0_f32; 4 * TILE]);
    let (a, b) = tiles.split_at(2 * COUNT * TILE_BYTES);
    let a = TileRun::packed([a.as_ptr(), a[a.len() / 2..].as_ptr()]);
    let b = [b, &b[b.len() / 2..]].map(|half| PartTiles { first: half.as_ptr(), columns: TILE_ROWS });
    // SAFETY: the caller's promise; all factors lie in `tiles`, `sums` holds four.
    unsafe {
        let set_up = Tiles::set_up(TILE_ROWS);
        for _ in 0..rounds / COUNT {
            add_2x2(&set_up, a, (b, COUNT), sums.as_mut_ptr());
        }
    }
    (2 * 12 * (rounds / COUNT) * COUNT * TILE_ROWS * TILE_ROWS * COLUMNS) as f64
}
