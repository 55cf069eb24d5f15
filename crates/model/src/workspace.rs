//! Activations of a step, allocated once.

use std::ops::Range;

use perilune_backend::{Backend, BackendError, KdaDims};
use perilune_config::{LayerKind, ModelConfig, OutGateRank};
use perilune_tensor::TensorSpec;

use crate::residual::ResidualStream;
use crate::tap::{TapSpec, Taps};

/// The largest step that may be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Token rows.
    pub max_rows: usize,
    /// Runs, one per sequence.
    pub max_runs: usize,
    /// Entries of all block tables together.
    pub max_blocks: usize,
    /// Rows whose logits are computed.
    pub max_logit_rows: usize,
    /// Copies of states taken on the way.
    pub max_snapshots: usize,
    /// Token rows of verifications, whose inputs are kept for the fold; 0 without speculation.
    pub max_verify_rows: usize,
}

/// Activations, each `[max_rows, width]` in `F32` where nothing else is said.
#[derive(Debug)]
pub struct Workspace<B: Backend> {
    pub(crate) stream: ResidualStream<B::Tensor>,
    /// Mixture of the attention residual.
    pub(crate) mixed: B::Tensor,
    /// Input of a sublayer.
    pub(crate) normed: B::Tensor,
    pub(crate) kda: Option<KdaSpace<B::Tensor>>,
    pub(crate) mla: Option<MlaSpace<B::Tensor>>,
    pub(crate) dense: GluSpace<B::Tensor>,
    pub(crate) moe: Option<MoeSpace<B::Tensor>>,
    /// `[max_logit_rows, H]`, before and after the final norm.
    pub(crate) last: [B::Tensor; 2],
    logits: B::Tensor,
    /// Inputs of verified rows per layer, `[max_verify_rows, replay_width]`; `None` for an MLA layer. Empty without
    /// speculation.
    pub(crate) replay: Vec<Option<B::Tensor>>,
    pub(crate) taps: Option<Taps<B::Tensor>>,
    limits: StepLimits,
}

/// Activations of a KDA layer.
#[derive(Debug)]
pub(crate) struct KdaSpace<T> {
    pub(crate) q: T,
    pub(crate) k: T,
    pub(crate) v: T,
    /// Low-rank half of the decay gate, `[N, D]`.
    pub(crate) gate_low: T,
    pub(crate) gate: T,
    pub(crate) beta: T,
    /// Low-rank half of the output gate, `[N, D]`; `None` for a full-rank gate.
    pub(crate) out_gate_low: Option<T>,
    pub(crate) out_gate: T,
    pub(crate) out: T,
}

/// Activations of an MLA layer.
#[derive(Debug)]
pub(crate) struct MlaSpace<T> {
    /// Low-rank query before and after its norm; `None` for a full query projection.
    pub(crate) query_low: Option<[T; 2]>,
    pub(crate) q: T,
    pub(crate) kv_a: T,
    pub(crate) gate: T,
    pub(crate) out: T,
}

/// Activations of a gated feed-forward network.
#[derive(Debug)]
pub(crate) struct GluSpace<T> {
    pub(crate) gate: T,
    pub(crate) up: T,
    pub(crate) act: T,
}

/// Activations of a mixture of experts.
#[derive(Debug)]
pub(crate) struct MoeSpace<T> {
    /// `[N, E]`.
    pub(crate) router: T,
    /// `U32 [N, K]`.
    pub(crate) ids: T,
    /// `[N, K]`.
    pub(crate) weights: T,
    /// Latent input, mixture, and normed mixture, `[N, L]`; `None` where experts work on the hidden width.
    pub(crate) latent: Option<[T; 3]>,
    /// `None` without shared experts.
    pub(crate) shared: Option<GluSpace<T>>,
}

impl<B: Backend> Workspace<B> {
    /// Room for steps within `limits`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, config: &ModelConfig, limits: StepLimits) -> Result<Self, BackendError> {
        let rows = limits.max_rows;
        let f32 = |width: usize| backend.alloc(&TensorSpec::f32([rows, width]));
        let last = || backend.alloc(&TensorSpec::f32([limits.max_logit_rows, config.hidden_size]));
        let glu =
            |width: usize| Ok::<_, BackendError>(GluSpace { gate: f32(width)?, up: f32(width)?, act: f32(width)? });
        let hidden = config.hidden_size;
        let has = |kind| config.count(kind) > 0;
        let streams = (0..=config.num_residual_banks()).map(|_| f32(hidden)).collect::<Result<_, _>>()?;
        Ok(Workspace {
            stream: ResidualStream::new(streams),
            mixed: f32(hidden)?,
            normed: f32(hidden)?,
            kda: has(LayerKind::Kda).then(|| KdaSpace::new(config, &f32)).transpose()?,
            mla: has(LayerKind::Mla).then(|| MlaSpace::new(config, &f32)).transpose()?,
            dense: glu(config.intermediate_size)?,
            moe: config
                .moe
                .map(|moe| {
                    let width = config.expert_width();
                    Ok::<_, BackendError>(MoeSpace {
                        router: f32(moe.num_experts)?,
                        ids: backend.alloc(&TensorSpec::u32([rows, moe.top_k]))?,
                        weights: f32(moe.top_k)?,
                        latent: moe.latent.map(|_| Ok([f32(width)?, f32(width)?, f32(width)?])).transpose()?,
                        shared: (moe.num_shared_experts > 0).then(|| glu(moe.shared_width())).transpose()?,
                    })
                })
                .transpose()?,
            last: [last()?, last()?],
            logits: backend.alloc(&TensorSpec::f32([limits.max_logit_rows, config.vocab_size]))?,
            replay: replay(backend, config, limits.max_verify_rows)?,
            taps: None,
            limits,
        })
    }

    /// From now on, keeps the streams that a draft reads.
    ///
    /// # Errors
    /// `OutOfMemory`; `Mismatch` where a layer is not there, or layers do not rise.
    pub fn capture(&mut self, (backend, config): (&B, &ModelConfig), spec: TapSpec) -> Result<(), BackendError> {
        if let Some(layer) = spec.layers.iter().find(|layer| **layer >= config.num_layers()) {
            return Err(BackendError::Mismatch {
                op: "capture",
                field: "layers",
                found: layer.to_string(),
                expected: format!("below {}, the number of layers", config.num_layers()),
            });
        }
        if spec.layers.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(BackendError::Mismatch {
                op: "capture",
                field: "layers",
                found: format!("{:?}", spec.layers),
                expected: "in rising order".into(),
            });
        }
        self.taps = Some(Taps::new(backend, spec, (self.limits.max_rows, config.hidden_size))?);
        Ok(())
    }

    /// The streams of the last step, each `F32 [max_rows, H]`, in the order of [`TapSpec::layers`]; rows in the order of
    /// the step. Empty where none are kept.
    pub fn taps(&self) -> &[B::Tensor] {
        self.taps.as_ref().map_or(&[], Taps::streams)
    }

    /// Copies rows of the kept streams.
    pub(crate) fn copy_taps(&mut self, backend: &B, rows: Range<usize>, to: usize) -> Result<(), BackendError> {
        self.taps.as_mut().map_or(Ok(()), |taps| taps.copy(backend, rows, to))
    }

    /// Logits of the last step, `F32 [max_logit_rows, V]`; rows as [`crate::ForwardBatch::logit_rows`] says.
    pub fn logits(&self) -> &B::Tensor {
        &self.logits
    }

    /// Experts and their weights as the last layer with experts chose them in the last step, `U32` and
    /// `F32 [max_rows, K]`; rows in the order of the step. `None` for a model without experts.
    pub fn routing(&self) -> Option<(&B::Tensor, &B::Tensor)> {
        self.moe.as_ref().map(|space| (&space.ids, &space.weights))
    }

    /// The largest step.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    pub(crate) fn logits_mut(&mut self) -> (&[B::Tensor; 2], &mut B::Tensor) {
        (&self.last, &mut self.logits)
    }
}

type Replay<B> = Vec<Option<<B as Backend>::Tensor>>;

/// Room for the inputs of verified rows.
fn replay<B: Backend>(backend: &B, config: &ModelConfig, rows: usize) -> Result<Replay<B>, BackendError> {
    if rows == 0 {
        return Ok(Vec::new());
    }
    let width = kda_dims(config).replay_width();
    let layer = |kind: &LayerKind| (*kind == LayerKind::Kda).then(|| backend.alloc(&TensorSpec::f32([rows, width])));
    config.layers.iter().map(|kind| layer(kind).transpose()).collect()
}

/// Sizes of the KDA layers in the words of the operations.
pub(crate) fn kda_dims(config: &ModelConfig) -> KdaDims {
    let d = config.kda;
    KdaDims { num_heads: d.num_heads, head_dim: d.head_dim, conv_kernel: d.conv_kernel }
}

type Alloc<'a, T> = &'a dyn Fn(usize) -> Result<T, BackendError>;

impl<T> KdaSpace<T> {
    fn new(config: &ModelConfig, f32: Alloc<'_, T>) -> Result<Self, BackendError> {
        let d = config.kda;
        let wide = || f32(d.width());
        Ok(KdaSpace {
            q: wide()?,
            k: wide()?,
            v: wide()?,
            gate_low: f32(d.head_dim)?,
            gate: wide()?,
            beta: f32(d.num_heads)?,
            out_gate_low: (d.out_gate == OutGateRank::Low).then(|| f32(d.head_dim)).transpose()?,
            out_gate: wide()?,
            out: wide()?,
        })
    }
}

impl<T> MlaSpace<T> {
    fn new(config: &ModelConfig, f32: Alloc<'_, T>) -> Result<Self, BackendError> {
        let d = config.mla;
        Ok(MlaSpace {
            query_low: d.q_lora_rank.map(|rank| Ok([f32(rank)?, f32(rank)?])).transpose()?,
            q: f32(d.query_width())?,
            kv_a: f32(d.latent_width())?,
            gate: f32(d.value_width())?,
            out: f32(d.value_width())?,
        })
    }
}
