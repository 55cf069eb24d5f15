//! Activations of a draft, allocated once, and index tensors of its blocks.

use perilune_backend::{Backend, BackendError, BlockTables, DeviceTensor, Segments};
use perilune_config::{DraftConfig, DraftHeads};
use perilune_tensor::TensorSpec;

use super::model::Model;

/// The largest steps of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLimits {
    /// Token rows of a step of the target.
    pub max_rows: usize,
    /// Sequences that are drafted for at once; more are taken in turns.
    pub max_sequences: usize,
    /// Entries of the block tables of sequences that are drafted for at once.
    pub max_blocks: usize,
}

/// Activations, `F32` where nothing else is said. `N` target rows, `S` sequences, `M` block rows, `D` drafts of all
/// sequences.
#[derive(Debug)]
pub(super) struct Space<T> {
    pub(super) context: ContextSpace<T>,
    pub(super) block: BlockSpace<T>,
    pub(super) heads: HeadSpace<T>,
}

/// Of the target's rows.
#[derive(Debug)]
pub(super) struct ContextSpace<T> {
    /// `[N, H]`: a normed stream.
    pub(super) tap: T,
    /// `[N, H]`: sum of the projections, before and after its norm.
    pub(super) sum: [T; 2],
    /// `[N, W]` per layer.
    pub(super) rows: Vec<T>,
    /// `[N, R]`.
    pub(super) rotary: T,
}

/// Of draft blocks.
#[derive(Debug)]
pub(super) struct BlockSpace<T> {
    pub(super) index: BlockIndex<T>,
    /// `[M, H]`: residual stream, and a sublayer's input.
    pub(super) hidden: T,
    pub(super) normed: T,
    /// `[M, q_lora_rank]` before and after its norm; `None` for a full query projection.
    pub(super) low: Option<[T; 2]>,
    pub(super) q: T,
    /// `[M, W]`.
    pub(super) rows: T,
    pub(super) attn: T,
    /// `[M, I]`: gate, up, activation.
    pub(super) ffn: [T; 3],
    /// `[M, R]`.
    pub(super) rotary: T,
}

/// Which rows are whose.
#[derive(Debug)]
pub(super) struct BlockIndex<T> {
    pub(super) count: usize,
    /// `U32 [M]`.
    pub(super) ids: T,
    /// `U32 [S]`: start, length, position.
    columns: [T; 3],
    /// `U32 [S + 1]`.
    offset: T,
    /// `U32 [max_blocks]`.
    blocks: T,
}

/// Of the heads, row by row in the order of drafts: the first draft of all sequences, then the second.
#[derive(Debug)]
pub(super) struct HeadSpace<T> {
    /// `U32 [D]`: rows of the block that predict.
    pub(super) pick: T,
    /// `[D, H]`: picked rows, normed, and normed with the factor on logits.
    pub(super) picked: T,
    pub(super) normed: T,
    pub(super) scaled: Option<T>,
    /// `[D, V]`.
    pub(super) logits: T,
    /// `[D, joint]`: hidden part of the Markov head's projection; `None` without one.
    pub(super) joint: Option<T>,
    /// `[D, 1]`: hidden part of the confidence.
    pub(super) confidence: Option<T>,
    pub(super) step: StepSpace<T>,
}

/// Of one draft of all sequences.
#[derive(Debug)]
pub(super) struct StepSpace<T> {
    /// `U32 [S]`: rows among all drafts, and the tokens before.
    pub(super) pick: T,
    pub(super) before: T,
    /// `[S, V]`.
    pub(super) logits: T,
    pub(super) markov: Option<MarkovSpace<T>>,
    /// `[S, 1]`: embedding part of the confidence.
    pub(super) confidence: T,
}

/// Of the Markov head.
#[derive(Debug)]
pub(super) struct MarkovSpace<T> {
    /// `[S, r]`: embedding of the token before, and what the bias is made of where that differs.
    pub(super) embedding: T,
    pub(super) input: T,
    /// `[S, joint]` and `[S, r]`: projection and recurrent state; `None` where the head has none.
    pub(super) joint: Option<T>,
    pub(super) state: Option<T>,
}

impl<T: DeviceTensor> Space<T> {
    pub(super) fn new<B: Backend<Tensor = T>>(
        backend: &B,
        (config, model): (&DraftConfig, &Model<T>),
        limits: DraftLimits,
    ) -> Result<Self, BackendError> {
        let f32 = |rows: usize, width: usize| backend.alloc(&TensorSpec::f32([rows, width]));
        let (n, m) = (limits.max_rows, limits.max_sequences * config.block_rows);
        let (hidden, inner, width) = (config.hidden_size, config.intermediate_size, config.attention.row_width());
        let (q, out) = model.layers.first().map_or((0, 0), |l| (l.attn.query_width(), l.attn.out_width()));
        let rotary = config.attention.rotary_width();
        let low = match config.attention {
            DraftHeads::Latent { q_lora_rank, .. } => Some([f32(m, q_lora_rank)?, f32(m, q_lora_rank)?]),
            DraftHeads::Grouped { .. } => None,
        };
        Ok(Space {
            context: ContextSpace {
                tap: f32(n, hidden)?,
                sum: [f32(n, hidden)?, f32(n, hidden)?],
                rows: (0..config.num_layers).map(|_| f32(n, width)).collect::<Result<_, _>>()?,
                rotary: f32(n, rotary)?,
            },
            block: BlockSpace {
                index: BlockIndex::new(backend, m, limits)?,
                hidden: f32(m, hidden)?,
                normed: f32(m, hidden)?,
                low,
                q: f32(m, q)?,
                rows: f32(m, width)?,
                attn: f32(m, out)?,
                ffn: [f32(m, inner)?, f32(m, inner)?, f32(m, inner)?],
                rotary: f32(m, rotary)?,
            },
            heads: HeadSpace::new(backend, (config, model), limits.max_sequences)?,
        })
    }
}

impl<T> HeadSpace<T> {
    fn new<B: Backend<Tensor = T>>(
        backend: &B,
        (config, model): (&DraftConfig, &Model<T>),
        sequences: usize,
    ) -> Result<Self, BackendError> {
        let f32 = |rows: usize, width: usize| backend.alloc(&TensorSpec::f32([rows, width]));
        let u32 = |len: usize| backend.alloc(&TensorSpec::u32([len]));
        let drafts = sequences * super::max_drafts(config);
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let joint = model.markov.as_ref().map(|markov| markov.joint_width()).filter(|width| *width > 0);
        let markov = |rank: usize| {
            Ok::<_, BackendError>(MarkovSpace {
                embedding: f32(sequences, rank)?,
                input: f32(sequences, rank)?,
                joint: joint.map(|width| f32(sequences, width)).transpose()?,
                state: joint.map(|_| f32(sequences, rank)).transpose()?,
            })
        };
        Ok(HeadSpace {
            pick: u32(drafts)?,
            picked: f32(drafts, hidden)?,
            normed: f32(drafts, hidden)?,
            scaled: model.scaled_norm.as_ref().map(|_| f32(drafts, hidden)).transpose()?,
            logits: f32(drafts, vocab)?,
            joint: joint.map(|width| f32(drafts, width)).transpose()?,
            confidence: model.confidence.as_ref().map(|_| f32(drafts, 1)).transpose()?,
            step: StepSpace {
                pick: u32(sequences)?,
                before: u32(sequences)?,
                logits: f32(sequences, vocab)?,
                markov: model.markov.as_ref().map(|head| markov(head.rank)).transpose()?,
                confidence: f32(sequences, 1)?,
            },
        })
    }
}

/// A sequence's block.
pub(super) struct BlockRun<'a> {
    /// Tokens of its rows.
    pub(super) ids: &'a [u32],
    /// Position of the first row.
    pub(super) position: usize,
    /// Blocks of the sequence.
    pub(super) blocks: &'a [u32],
}

impl<T> BlockIndex<T> {
    fn new<B: Backend<Tensor = T>>(backend: &B, rows: usize, limits: DraftLimits) -> Result<Self, BackendError> {
        let u32 = |len: usize| backend.alloc(&TensorSpec::u32([len]));
        let runs = limits.max_sequences;
        Ok(BlockIndex {
            count: 0,
            ids: u32(rows)?,
            columns: [u32(runs)?, u32(runs)?, u32(runs)?],
            offset: u32(runs + 1)?,
            blocks: u32(limits.max_blocks)?,
        })
    }

    /// Replaces the runs; returns the number of rows.
    pub(super) fn fill<B: Backend<Tensor = T>>(
        &mut self,
        backend: &B,
        runs: &[BlockRun<'_>],
    ) -> Result<usize, BackendError> {
        let value = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (mut ids, mut blocks, mut offset) = (Vec::new(), Vec::new(), vec![0]);
        let mut columns: [Vec<u32>; 3] = Default::default();
        for run in runs {
            let cells = [value(ids.len()), value(run.ids.len()), value(run.position)];
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
            ids.extend_from_slice(run.ids);
            blocks.extend_from_slice(run.blocks);
            offset.push(value(blocks.len()));
        }
        for (tensor, column) in self.columns.iter_mut().zip(&columns) {
            backend.write_u32(tensor, column)?;
        }
        for (tensor, values) in [(&mut self.ids, &ids), (&mut self.offset, &offset), (&mut self.blocks, &blocks)] {
            backend.write_u32(tensor, values)?;
        }
        self.count = runs.len();
        Ok(ids.len())
    }

    pub(super) fn segments(&self) -> Segments<'_, T> {
        let [start, len, position] = &self.columns;
        // Drafts have no state slots; the operations do not read them.
        Segments { count: self.count, start, len, position, slot: start }
    }

    pub(super) fn tables(&self) -> BlockTables<'_, T> {
        BlockTables { offset: &self.offset, blocks: &self.blocks }
    }
}
