//! What sequences leave behind between steps: one arena with latent blocks at its start and state slots at its end.
//!
//! A unit holds the parts of all layers one after the other, so that a unit that is given back leaves one usable hole.
//! Which units are in use is not known here: `perilune-cache` accounts for them.

use std::ops::Range;

use perilune_backend::{Backend, BackendError, Download, UnitLayout};
use perilune_config::{LayerKind, ModelConfig};
use perilune_tensor::TensorSpec;

/// Units begin at multiples of this many elements, a cache line.
const ALIGN: usize = 16;

/// Sizes of the arena and its units, in `F32` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Elements of the arena.
    pub arena_len: usize,
    /// Elements of a block: latents of `block_size` tokens over all MLA layers.
    pub block_len: usize,
    /// Elements of a slot: recurrent states and convolution tails over all KDA layers.
    pub slot_len: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Elements per token that a draft keeps, behind the latents of a block; 0 without one.
    pub draft_len: usize,
}

impl CacheShape {
    /// Units of a model in an arena of `arena_bytes`.
    pub fn new(config: &ModelConfig, block_size: usize, arena_bytes: usize) -> Self {
        Self::with_draft(config, (block_size, 0), arena_bytes)
    }

    /// Units that also hold `draft_len` elements per token for a draft. What a draft knows of a token lives and dies with
    /// the token's latents.
    pub fn with_draft(config: &ModelConfig, (block_size, draft_len): (usize, usize), arena_bytes: usize) -> Self {
        let d = config.kda;
        let slot = config.count(LayerKind::Kda) * (d.width() * d.head_dim + 3 * (d.conv_kernel - 1) * d.width());
        let block = latents_len(config, block_size) + block_size * draft_len;
        let aligned = |len: usize| len.max(1).next_multiple_of(ALIGN);
        let (block_len, slot_len) = (aligned(block), aligned(slot));
        CacheShape { arena_len: arena_bytes / 4, block_len, slot_len, block_size, draft_len }
    }

    /// The smallest arena with room for so many blocks and slots at once.
    pub fn with_room(config: &ModelConfig, block_size: usize, (blocks, slots): (usize, usize)) -> Self {
        let units = Self::new(config, block_size, 0);
        CacheShape { arena_len: blocks * units.block_len + slots * units.slot_len, ..units }
    }

    /// Bytes of a state slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_len * 4
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_len * 4
    }

    /// Where blocks lie: from the start of the arena on.
    pub fn blocks(&self) -> UnitLayout {
        UnitLayout { offset: 0, stride: self.block_len, count: self.arena_len / self.block_len }
    }

    /// Where slots lie: the last one ends where the arena ends.
    pub fn slots(&self) -> UnitLayout {
        let count = self.arena_len / self.slot_len;
        UnitLayout { offset: self.arena_len - count * self.slot_len, stride: self.slot_len, count }
    }
}

/// Elements of a block's latents, all layers together.
fn latents_len(config: &ModelConfig, block_size: usize) -> usize {
    config.count(LayerKind::Mla) * block_size * config.mla.latent_width()
}

/// Where a layer's caches lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerCache {
    /// Per slot `state [heads, D, D]` and `conv [3, taps - 1, P]`.
    Kda { state: UnitLayout, conv: UnitLayout },
    /// Per block `[block_size, C + r]`.
    Mla { latent: UnitLayout },
}

/// Caches of all layers.
#[derive(Debug)]
pub struct Caches<B: Backend> {
    pub(crate) arena: B::Tensor,
    pub(crate) layers: Vec<LayerCache>,
    /// Where a block's draft context begins, counted from the block's start.
    draft_at: usize,
    lengths: Lengths,
    shape: CacheShape,
}

/// Elements of one layer's parts.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    state: usize,
    conv: usize,
    latent: usize,
}

impl<B: Backend> Caches<B> {
    /// A zeroed arena.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, config: &ModelConfig, shape: CacheShape) -> Result<Self, BackendError> {
        let d = config.kda;
        let lengths = Lengths {
            state: d.width() * d.head_dim,
            conv: 3 * (d.conv_kernel - 1) * d.width(),
            latent: shape.block_size * config.mla.latent_width(),
        };
        let (mut in_slot, mut in_block) = (0, 0);
        let take = |units: UnitLayout, at: &mut usize, len: usize| {
            let offset = units.offset + *at;
            *at += len;
            UnitLayout { offset, ..units }
        };
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Kda => LayerCache::Kda {
                state: take(shape.slots(), &mut in_slot, lengths.state),
                conv: take(shape.slots(), &mut in_slot, lengths.conv),
            },
            LayerKind::Mla => LayerCache::Mla { latent: take(shape.blocks(), &mut in_block, lengths.latent) },
        };
        let layers = config.layers.iter().map(layer).collect();
        let arena = backend.alloc(&TensorSpec::f32([shape.arena_len]))?;
        Ok(Caches { arena, layers, draft_at: latents_len(config, shape.block_size), lengths, shape })
    }

    /// The arena, and where each block keeps what a draft knows of its tokens: `block_size * draft_len` elements, in an
    /// order that is the draft's own.
    pub fn draft_context(&mut self) -> (&mut B::Tensor, UnitLayout) {
        let blocks = self.shape.blocks();
        (&mut self.arena, UnitLayout { offset: blocks.offset + self.draft_at, ..blocks })
    }

    /// Sizes of arena and units.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Clears a slot: a sequence starts from zeros, whoever had the slot before.
    ///
    /// # Errors
    /// `Mismatch` where there is no such slot.
    pub fn zero_slot(&mut self, backend: &B, slot: usize) -> Result<(), BackendError> {
        let slot = self.slot(slot);
        backend.zero(&mut self.arena, slot)
    }

    /// Copies elements of the arena to another place that does not overlap with theirs.
    ///
    /// # Errors
    /// `Mismatch` where the two overlap or leave the arena.
    pub fn copy(&mut self, backend: &B, from: Range<usize>, to: usize) -> Result<(), BackendError> {
        backend.copy_within(&mut self.arena, from, to)
    }

    /// Copies elements of the arena to the host.
    ///
    /// # Errors
    /// `Mismatch` where they leave the arena.
    pub fn read(&self, backend: &B, elements: Range<usize>) -> Result<Download<Vec<u8>>, BackendError> {
        backend.read_range(&self.arena, elements)
    }

    /// Overwrites elements of the arena from `at` on.
    ///
    /// # Errors
    /// `Mismatch` where they leave the arena.
    pub fn write(&mut self, backend: &B, at: usize, bytes: &[u8]) -> Result<(), BackendError> {
        backend.write_range(&mut self.arena, at, bytes)
    }

    /// Elements of a slot.
    pub fn slot(&self, slot: usize) -> Range<usize> {
        let start = self.shape.slots().start(slot);
        start..start + self.shape.slot_len
    }

    /// Elements of a block.
    pub fn block(&self, block: usize) -> Range<usize> {
        let start = self.shape.blocks().start(block);
        start..start + self.shape.block_len
    }

    /// Elements of a KDA layer's recurrent state in a slot, `[heads, D, D]`; `None` for an MLA layer.
    pub fn kda_state(&self, layer: usize, slot: usize) -> Option<Range<usize>> {
        match self.layers.get(layer)? {
            LayerCache::Kda { state, .. } => Some(part(state, slot, self.lengths.state)),
            LayerCache::Mla { .. } => None,
        }
    }

    /// Elements of a KDA layer's convolution tail in a slot, `[3, taps - 1, P]`; `None` for an MLA layer.
    pub fn kda_conv(&self, layer: usize, slot: usize) -> Option<Range<usize>> {
        match self.layers.get(layer)? {
            LayerCache::Kda { conv, .. } => Some(part(conv, slot, self.lengths.conv)),
            LayerCache::Mla { .. } => None,
        }
    }

    /// Elements of an MLA layer's latents in a block, `[block_size, C + r]`; `None` for a KDA layer.
    pub fn mla_latent(&self, layer: usize, block: usize) -> Option<Range<usize>> {
        match self.layers.get(layer)? {
            LayerCache::Mla { latent } => Some(part(latent, block, self.lengths.latent)),
            LayerCache::Kda { .. } => None,
        }
    }
}

fn part(units: &UnitLayout, unit: usize, len: usize) -> Range<usize> {
    units.start(unit)..units.start(unit) + len
}
