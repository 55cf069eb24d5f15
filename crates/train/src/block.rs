//! Blocks of one sequence as tensors: an anchor each, and masked tokens after it.

use burn::tensor::{Int, Tensor, TensorData};
use perilune_tensor::TokenId;

use crate::draft_config::DraftConfig;
use crate::place::Place;
use crate::target::Embedding;

/// Added to the score of what a row may not see.
const HIDDEN: f64 = -1e30;

/// One sequence and the blocks to run over it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// Prompt and answer.
    pub(crate) tokens: &'a [TokenId],
    /// The target's streams, `[T, taps * H]`, of at least the tokens before the last anchor.
    pub(crate) taps: &'a [f32],
    /// Positions of the anchors, at least 1 each, in any order.
    pub(crate) anchors: &'a [usize],
}

/// The inputs of a [`crate::Draft`].
#[derive(Debug, Clone)]
pub(crate) struct BlockInput {
    /// `[T, taps * H]`, the tokens before the last anchor.
    pub(crate) taps: Tensor<2>,
    /// Embedded anchors and masks, `[R, H]`.
    pub(crate) embedded: Tensor<2>,
    /// Position of every row.
    pub(crate) positions: Vec<usize>,
    /// 0 or [`HIDDEN`], `[1, 1, R, T]`.
    pub(crate) visible: Tensor<4>,
    /// The true token before the one each row predicts, `[R]`.
    pub(crate) previous: Tensor<1, Int>,
}

impl BlockInput {
    /// Puts the blocks of a sequence on a device. Beyond the end of the sequence the token before is taken to be the mask.
    pub(crate) fn new(config: &DraftConfig, blocks: Blocks<'_>, (embedding, place): (&Embedding, &Place)) -> Self {
        let (h, rows) = (config.hidden, blocks.anchors.len() * config.block_size);
        let context = blocks.anchors.iter().copied().max().unwrap_or(0);
        let each = || blocks.anchors.iter().flat_map(|a| (0..config.block_size).map(move |j| (*a, j)));
        let mut embedded = Vec::with_capacity(rows * h);
        for (anchor, j) in each() {
            let id = if j == 0 { blocks.tokens[anchor].0 } else { config.mask_token };
            embedded.extend_from_slice(embedding.row(id));
        }
        let visible = each().flat_map(|(anchor, _)| (0..context).map(move |t| if t < anchor { 0.0 } else { HIDDEN }));
        let previous = each().map(|(a, j)| blocks.tokens.get(a + j).map_or(config.mask_token, |id| id.0));
        let taps = config.taps.len() * h;
        BlockInput {
            taps: Tensor::from_data(TensorData::new(blocks.taps[..context * taps].to_vec(), [context, taps]), place),
            embedded: Tensor::from_data(TensorData::new(embedded, [rows, h]), place),
            positions: each().map(|(anchor, j)| anchor + j).collect(),
            visible: Tensor::from_data(TensorData::new(visible.collect(), [1, 1, rows, context]), place),
            previous: Tensor::from_data(TensorData::new(previous.map(i64::from).collect(), [rows]), &place.device),
        }
    }

    /// Positions of the context: all from 0 on.
    pub(crate) fn context_positions(&self) -> Vec<usize> {
        (0..self.taps.dims()[0]).collect()
    }

    /// Where its tensors are, and of what they are made.
    pub(crate) fn place(&self) -> Place {
        Place { device: self.taps.device(), dtype: self.taps.dtype() }
    }
}
