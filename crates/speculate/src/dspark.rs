//! DSpark drafts (`kimi-k3.md` section 6; arXiv 2607.05147): one parallel pass over a block of masked rows that reads what
//! the target's streams left behind, then a light head that makes each draft depend on the one before.
//!
//! Both published families run here. What a draft keeps of a token lies behind the token's latents in the target's
//! blocks ([`Caches::draft_context`]), so that prefix hits, copies and evictions carry it along. Rows of drafts that are
//! refused are overwritten by the next step. A draft that ends early (its logits are not finite) proposes fewer tokens,
//! never a made-up one.

mod block;
mod context;
mod load;
mod matrix;
mod model;
mod refine;
mod space;

use perilune_backend::{Activation, Backend, BackendError, BlockMask, RotaryTable};
use perilune_config::{AnchorRow, DraftConfig, DraftMask, FfnActivation, ModelConfig, TapStream as Stream};
use perilune_model::{Caches, Kimi, MAX_DECODE_ROWS, TapSpec, TapStream};
use perilune_weights::Checkpoint;

use crate::{Draft, DraftRequest, Proposal, SpeculateError, TappedStep};
use block::Pass;
use model::Model;
use refine::{Drafting, Picked};
use space::{BlockRun, Space};

pub use space::DraftLimits;

/// A draft on disk and the model it is to serve.
#[derive(Clone, Copy)]
pub struct DraftSource<'a> {
    /// The draft's configuration.
    pub config: &'a DraftConfig,
    /// Its tensors ([`Checkpoint::open_draft`]).
    pub checkpoint: &'a Checkpoint<'a>,
    /// The target's configuration.
    pub target: &'a ModelConfig,
}

/// A DSpark draft on a device.
#[derive(Debug)]
pub struct DsparkDraft<B: Backend> {
    config: DraftConfig,
    taps: TapSpec,
    model: Model<B::Tensor>,
    space: Space<B::Tensor>,
    limits: DraftLimits,
}

/// Most drafts of one block that can be verified.
fn max_drafts(config: &DraftConfig) -> usize {
    config.num_drafts().min(MAX_DECODE_ROWS - 1)
}

impl<B: Backend> DsparkDraft<B> {
    /// Loads a draft and allocates room for its steps.
    ///
    /// # Errors
    /// `Config` where the draft was made for another target; `Weights`; `Backend` where the device runs no drafts or has
    /// no room.
    pub fn load(backend: &B, source: DraftSource<'_>, limits: DraftLimits) -> Result<Self, SpeculateError> {
        let config = source.config.clone();
        config.check_target(source.target)?;
        let model = load::load(backend, &config, source.checkpoint)?;
        let mut space = Space::new(backend, (&config, &model), limits)?;
        let block = &mut space.block;
        // No rows: whether the device has the operations is known before the first request.
        block.index.fill(backend, &[])?;
        backend.rotary_table(RotaryTable {
            segments: block.index.segments(),
            frequencies: &model.frequencies,
            amplitude: model.amplitude,
            out: &mut block.rotary,
        })?;
        let stream = match config.taps.stream {
            Stream::AttnRes => TapStream::AttnRes,
            Stream::Prefix => TapStream::Prefix,
        };
        let taps = TapSpec { layers: config.taps.layers.clone(), stream };
        Ok(DsparkDraft { config, taps, model, space, limits })
    }

    /// Requests in the order they are drafted in, those that want more first, cut into parts that fit.
    fn parts<'a>(&self, requests: &'a [DraftRequest<'a>]) -> Vec<Vec<Drafting<'a>>> {
        let wanted = |r: &DraftRequest<'_>| r.max_drafts.min(max_drafts(&self.config)).min(r.rows.len());
        let mut all: Vec<Drafting<'a>> = requests
            .iter()
            .enumerate()
            .filter(|(_, request)| wanted(request) > 0 && !request.history.is_empty())
            .map(|(index, request)| Drafting::new((index, request), wanted(request)))
            .collect();
        all.sort_by_key(|sequence| std::cmp::Reverse(sequence.wanted));
        let mut parts: Vec<Vec<Drafting<'a>>> = Vec::new();
        let mut blocks = 0;
        for sequence in all {
            let more = sequence.request().blocks.len();
            match parts.last_mut() {
                Some(part) if part.len() < self.limits.max_sequences && blocks + more <= self.limits.max_blocks => {
                    blocks += more;
                    part.push(sequence);
                }
                _ => {
                    blocks = more;
                    parts.push(vec![sequence]);
                }
            }
        }
        parts
    }

    /// Drafts for sequences that fit together.
    fn part(
        &mut self,
        (backend, target): (&B, &Kimi<B>),
        sequences: &mut [Drafting<'_>],
        caches: &mut Caches<B>,
    ) -> Result<(), BackendError> {
        let most = sequences.first().map_or(0, |sequence| sequence.wanted);
        let skipped = usize::from(self.config.anchor == AnchorRow::Nothing);
        // Rows behind the last one wanted change nothing before them under a causal mask; else they are part of what the
        // draft was trained on.
        let causal = self.config.mask == DraftMask::Causal;
        let block_rows = if causal { most + skipped } else { self.config.block_rows };
        let ids: Vec<Vec<u32>> = sequences.iter().map(|s| self.block_ids(s.request(), block_rows)).collect();
        let runs: Vec<BlockRun<'_>> = sequences
            .iter()
            .zip(&ids)
            .map(|(sequence, ids)| BlockRun {
                ids,
                position: sequence.request().history.len() - 1,
                blocks: sequence.request().blocks,
            })
            .collect();
        let rows = self.space.block.index.fill(backend, &runs)?;
        let block_size = caches.shape().block_size;
        let (arena, context) = caches.draft_context();
        let eps = self.config.rms_norm_eps;
        let mask = if causal { BlockMask::Causal } else { BlockMask::Bidirectional };
        let act = activation(self.config.activation);
        let pass = Pass { backend, rows, eps, act, mask, arena, context, block_size };
        self.model.pass(&pass, target.embedding(), &mut self.space.block)?;
        let places: Vec<u32> = (0..most)
            .flat_map(|draft| {
                let active = sequences.iter().take_while(move |s| s.wanted > draft).count();
                (0..active).map(move |i| u32::try_from(i * block_rows + draft + skipped).unwrap_or(u32::MAX))
            })
            .collect();
        let picked = Picked { places: &places, hidden: &self.space.block.hidden, head: target.head(), eps };
        self.model.heads(backend, &picked, &mut self.space.heads)?;
        self.model.refine(backend, sequences, &mut self.space.heads)
    }

    /// The anchor, then masks.
    fn block_ids(&self, request: &DraftRequest<'_>, rows: usize) -> Vec<u32> {
        let mut ids = vec![self.config.mask_token.0; rows];
        if let (Some(first), Some(anchor)) = (ids.first_mut(), request.history.last()) {
            *first = anchor.0;
        }
        ids
    }
}

impl<B: Backend> Draft<B> for DsparkDraft<B> {
    fn max_drafts(&self) -> usize {
        max_drafts(&self.config)
    }

    fn taps(&self) -> Option<&TapSpec> {
        Some(&self.taps)
    }

    fn context_len(&self) -> usize {
        self.config.context_len()
    }

    fn observe(&mut self, backend: &B, step: TappedStep<'_, B>) -> Result<(), BackendError> {
        self.model.observe((backend, self.config.rms_norm_eps), &mut self.space.context, step)
    }

    fn propose(
        &mut self,
        target: (&B, &Kimi<B>),
        requests: &[DraftRequest<'_>],
        caches: &mut Caches<B>,
    ) -> Result<Vec<Proposal>, BackendError> {
        let mut proposals = vec![Proposal::default(); requests.len()];
        for mut part in self.parts(requests) {
            self.part(target, &mut part, caches)?;
            for sequence in part {
                let index = sequence.index;
                proposals[index] = sequence.into_proposal();
            }
        }
        Ok(proposals)
    }
}

fn activation(act: FfnActivation) -> Activation {
    match act {
        FfnActivation::Silu => Activation::Silu,
        FfnActivation::Situ { beta, linear_beta } => Activation::Situ { beta, linear_beta },
    }
}
