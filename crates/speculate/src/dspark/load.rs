//! From a draft's checkpoint to its weights on a device.

use perilune_backend::{
    Backend, BackendError, DraftAttention, DraftHeads, GroupedHeads, MlaDims, MlaParams, Pairing, Weight,
};
use perilune_config::{DraftConfig, DraftHeads as Heads, MarkovKind, TapNorm};
use perilune_tensor::HostTensor;
use perilune_weights::{Checkpoint, DraftNames, HostWeight};

use super::matrix::{columns, stack, widened};
use super::model::{Confidence, Context, Joint, Kind, Layer, Markov, Model, Query};
use crate::SpeculateError;
use crate::rotary::frequencies;

/// Loads every tensor that the configuration asks for.
pub(super) fn load<B: Backend>(
    backend: &B,
    config: &DraftConfig,
    checkpoint: &Checkpoint<'_>,
) -> Loaded<Model<B::Tensor>> {
    let loader = Loader { backend, config, checkpoint };
    let names = DraftNames::of(config.family);
    let norm = checkpoint.vector(names.final_norm)?;
    let scaled: Vec<f32> = norm.iter().map(|weight| weight * config.logit_scale).collect();
    Ok(Model {
        context: loader.context(names)?,
        layers: (0..config.num_layers).map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
        norm: loader.upload(&norm)?,
        scaled_norm: (config.logit_scale != 1.0).then(|| loader.upload(&scaled)).transpose()?,
        markov: loader.markov()?,
        confidence: loader.confidence()?,
        frequencies: loader.upload(&frequencies(&config.rotary, config.attention.rotary_width()))?,
        amplitude: config.rotary.yarn.map_or(1.0, |yarn| yarn.amplitude as f32),
    })
}

type Loaded<T> = Result<T, SpeculateError>;

struct Loader<'a, B> {
    backend: &'a B,
    config: &'a DraftConfig,
    checkpoint: &'a Checkpoint<'a>,
}

impl<B: Backend> Loader<'_, B> {
    fn upload(&self, values: &[f32]) -> Loaded<B::Tensor> {
        let host = HostTensor::from_f32([values.len()], values).ok_or_else(|| BackendError::Mismatch {
            op: "upload",
            field: "values",
            found: values.len().to_string(),
            expected: "as many as there are".into(),
        })?;
        Ok(self.backend.upload(&host)?)
    }

    fn vector(&self, name: &str) -> Loaded<B::Tensor> {
        self.upload(&self.checkpoint.vector(name)?)
    }

    fn weight(&self, host: &HostWeight) -> Loaded<Weight<B::Tensor>> {
        let scales = host.scales.as_ref().map(|scales| self.backend.upload(scales)).transpose()?;
        Ok(Weight { format: host.format, data: self.backend.upload(&host.data)?, scales })
    }

    fn matrix(&self, name: &str) -> Loaded<Weight<B::Tensor>> {
        self.weight(&self.checkpoint.matrix(name)?)
    }

    /// The `.weight` of a projection.
    fn projection(&self, stem: &str, part: &str) -> Loaded<Weight<B::Tensor>> {
        self.matrix(&format!("{stem}.{part}.weight"))
    }

    fn context(&self, names: DraftNames) -> Loaded<Context<B::Tensor>> {
        let (taps, hidden) = (self.config.taps.layers.len(), self.config.hidden_size);
        let whole = self.checkpoint.matrix(names.context_proj)?;
        let part = |tap: usize| self.weight(&columns(&whole, tap * hidden..(tap + 1) * hidden)?);
        let normed = if self.config.taps.norm == TapNorm::Rms { taps } else { 0 };
        Ok(Context {
            tap_norms: (0..normed)
                .map(|tap| self.vector(&format!("fc_norm.{tap}.weight")))
                .collect::<Result<_, _>>()?,
            projections: (0..taps).map(part).collect::<Result<_, _>>()?,
            norm: self.vector(names.context_norm)?,
        })
    }

    fn layer(&self, layer: usize) -> Loaded<Layer<B::Tensor>> {
        let stem = format!("layers.{layer}");
        let (attn, mlp) = (format!("{stem}.self_attn"), format!("{stem}.mlp"));
        let (query, rows, params) = match self.config.attention {
            Heads::Grouped { .. } => self.grouped(&attn)?,
            Heads::Latent { .. } => self.latent(&attn)?,
        };
        Ok(Layer {
            attn_norm: self.vector(&format!("{stem}.input_layernorm.weight"))?,
            query,
            rows,
            attn: params,
            out: self.projection(&attn, "o_proj")?,
            ffn_norm: self.vector(&format!("{stem}.post_attention_layernorm.weight"))?,
            gate: self.projection(&mlp, "gate_proj")?,
            up: self.projection(&mlp, "up_proj")?,
            down: self.projection(&mlp, "down_proj")?,
        })
    }

    fn grouped(&self, stem: &str) -> Loaded<Attention<B::Tensor>> {
        let Heads::Grouped { num_heads, num_kv_heads, head_dim } = self.config.attention else {
            return Err(foreign("grouped heads"));
        };
        let matrix = |part: &str| self.checkpoint.matrix(&format!("{stem}.{part}.weight"));
        let rows = self.weight(&stack(&matrix("k_proj")?, &matrix("v_proj")?)?)?;
        let heads = GroupedHeads {
            num_heads,
            num_kv_heads,
            head_dim,
            q_norm: self.vector(&format!("{stem}.q_norm.weight"))?,
            k_norm: self.vector(&format!("{stem}.k_norm.weight"))?,
            eps: self.config.rms_norm_eps,
        };
        let scale = self.scale(head_dim);
        let params = DraftAttention { heads: DraftHeads::Grouped(heads), pairing: Pairing::Halves, scale };
        Ok((Query::Full(self.projection(stem, "q_proj")?), rows, params))
    }

    fn latent(&self, stem: &str) -> Loaded<Attention<B::Tensor>> {
        let Heads::Latent { num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } =
            self.config.attention
        else {
            return Err(foreign("latent heads"));
        };
        let dims = MlaDims { num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank };
        let mla = MlaParams {
            dims,
            kv_norm: self.vector(&format!("{stem}.kv_a_layernorm.weight"))?,
            kv_eps: self.config.rms_norm_eps,
            kv_b: self.projection(stem, "kv_b_proj")?,
        };
        let query = Query::Low {
            low: self.projection(stem, "q_a_proj")?,
            norm: self.vector(&format!("{stem}.q_a_layernorm.weight"))?,
            high: self.projection(stem, "q_b_proj")?,
        };
        let scale = self.scale(dims.qk_head_dim());
        let params = DraftAttention { heads: DraftHeads::Latent(mla), pairing: Pairing::Interleaved, scale };
        Ok((query, self.projection(stem, "kv_a_proj_with_mqa")?, params))
    }

    /// Factor on scores of heads so wide.
    fn scale(&self, width: usize) -> f32 {
        let factor = self.config.rotary.yarn.map_or(1.0, |yarn| yarn.score_factor);
        (factor * (width as f64).powf(-0.5)) as f32
    }

    fn markov(&self) -> Loaded<Option<Markov<B::Tensor>>> {
        let Some(head) = self.config.markov else { return Ok(None) };
        let (rank, hidden) = (head.rank, self.config.hidden_size);
        let kind = match head.kind {
            MarkovKind::Vanilla => Kind::Vanilla,
            MarkovKind::Gated => Kind::Gated(self.joint("markov_head.gate_proj", [0..hidden, hidden..hidden + rank])?),
            MarkovKind::Rnn => {
                let stem = "markov_head.joint_proj";
                let whole = self.checkpoint.matrix(&format!("{stem}.weight"))?;
                Kind::Rnn {
                    joint: self.joint(stem, [2 * rank..2 * rank + hidden, rank..2 * rank])?,
                    state: self.weight(&columns(&whole, 0..rank)?)?,
                }
            }
        };
        let (w1, w2) = (self.matrix("markov_head.markov_w1.weight")?, self.matrix("markov_head.markov_w2.weight")?);
        Ok(Some(Markov { rank, w1, w2, kind }))
    }

    /// Columns for the hidden row and for the embedding.
    fn joint(&self, stem: &str, [hidden, embedding]: [std::ops::Range<usize>; 2]) -> Loaded<Joint<B::Tensor>> {
        let whole = self.checkpoint.matrix(&format!("{stem}.weight"))?;
        Ok(Joint {
            hidden: self.weight(&columns(&whole, hidden)?)?,
            embedding: self.weight(&columns(&whole, embedding)?)?,
            bias: self.checkpoint.vector(&format!("{stem}.bias"))?,
        })
    }

    fn confidence(&self) -> Loaded<Option<Confidence<B::Tensor>>> {
        if self.config.confidence.is_none() {
            return Ok(None);
        }
        let whole = widened(&self.checkpoint.matrix("confidence_head.proj.weight")?)?;
        let (hidden, width) = (self.config.hidden_size, whole.data.spec().shape.width());
        let embedding = if width > hidden { Some(self.weight(&columns(&whole, hidden..width)?)?) } else { None };
        let bias = self.checkpoint.vector("confidence_head.proj.bias")?;
        Ok(Some(Confidence {
            hidden: self.weight(&columns(&whole, 0..hidden)?)?,
            embedding,
            bias: bias.first().copied().unwrap_or(0.0),
        }))
    }
}

type Attention<T> = (Query<T>, Weight<T>, DraftAttention<T>);

fn foreign(expected: &str) -> SpeculateError {
    SpeculateError::Backend(BackendError::Mismatch {
        op: "load",
        field: "attention",
        found: "heads of the other kind".into(),
        expected: expected.into(),
    })
}
