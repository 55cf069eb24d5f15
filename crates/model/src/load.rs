//! From a checkpoint to a model on a device: matrices as they are stored, small tensors widened, derived ones prepared.

use perilune_backend::{
    Activation, Backend, BackendError, Expert, KdaGate, KdaParams, MlaDims, MlaParams, Renormalize, Weight,
};
use perilune_config::{
    FfnActivation, FfnKind, HeadKind, KdaDecay, LatentNorm, LayerKind, ModelConfig, MoeDims, OutGateRank, OutputGate,
    RouterNorm,
};
use perilune_tensor::{HostTensor, Shape};
use perilune_weights::{Checkpoint, Progress, Stage};

use crate::feed_forward::{FeedForward, Glu, Latent, Moe, RouteRules};
use crate::kda::{KdaLayer, OutGate};
use crate::kimi::{Attention, Kimi, Layer};
use crate::mla::{MlaLayer, Query};
use crate::residual::{Mix, Norm};
use crate::workspace::kda_dims;
use crate::{ModelError, kimi};

/// Epsilon of the norms of the low-rank query and of the latent; not `rms_norm_eps` (`kimi-k3.md` 3.0).
const LATENT_NORM_EPS: f32 = 1e-6;

impl<B: Backend> Kimi<B> {
    /// Loads every tensor that the configuration asks for; `report` is called as tensors are done.
    ///
    /// # Errors
    /// What the checkpoint or the device refuses.
    pub fn load(
        backend: &B,
        config: &ModelConfig,
        checkpoint: &Checkpoint<'_>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Self, ModelError> {
        let progress = Progress::start(Stage::Loading, checkpoint.len(), checkpoint.size_bytes());
        let mut loader = Loader { backend, config, checkpoint, progress, report };
        let layers = (0..config.num_layers()).map(|l| loader.layer(l)).collect::<Result<_, _>>()?;
        let has_mix = config.attn_res_block_size.is_some();
        Ok(Kimi {
            act: activation(config.activation),
            embedding: loader.matrix("model.embed_tokens.weight")?,
            layers,
            mix: has_mix.then(|| loader.mix("model.output_attn_res")).transpose()?,
            norm: loader.norm("model.norm.weight", config.rms_norm_eps)?,
            head: (config.head == HeadKind::Separate).then(|| loader.matrix("lm_head.weight")).transpose()?,
            config: config.clone(),
        })
    }
}

struct Loader<'a, B> {
    backend: &'a B,
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint<'a>,
    progress: Progress,
    report: &'a mut dyn FnMut(Progress),
}

type Loaded<T> = Result<T, ModelError>;

impl<B: Backend> Loader<'_, B> {
    fn matrix(&mut self, name: &str) -> Loaded<Weight<B::Tensor>> {
        let host = self.checkpoint.matrix(name)?;
        self.count(host.size_bytes());
        let data = self.backend.upload(&host.data)?;
        let scales = host.scales.as_ref().map(|scales| self.backend.upload(scales)).transpose()?;
        Ok(Weight { format: host.format, data, scales })
    }

    /// The `.weight` of a projection.
    fn projection(&mut self, stem: &str, part: &str) -> Loaded<Weight<B::Tensor>> {
        self.matrix(&format!("{stem}.{part}.weight"))
    }

    fn values(&mut self, name: &str) -> Loaded<Vec<f32>> {
        let values = self.checkpoint.vector(name)?;
        self.count(4 * values.len() as u64);
        Ok(values)
    }

    fn count(&mut self, bytes: u64) {
        self.progress.tensors_done += 1;
        self.progress.bytes_done = (self.progress.bytes_done + bytes).min(self.progress.bytes_total);
        (self.report)(self.progress);
    }

    fn upload(&self, shape: impl Into<Shape>, values: &[f32]) -> Loaded<B::Tensor> {
        let shape = shape.into();
        let host = HostTensor::from_f32(shape.clone(), values).ok_or_else(|| BackendError::Mismatch {
            op: "upload",
            field: "values",
            found: values.len().to_string(),
            expected: shape.to_string(),
        })?;
        Ok(self.backend.upload(&host)?)
    }

    fn vector(&mut self, name: &str) -> Loaded<B::Tensor> {
        let values = self.values(name)?;
        self.upload([values.len()], &values)
    }

    fn norm(&mut self, name: &str, eps: f32) -> Loaded<Norm<B::Tensor>> {
        Ok(Norm { weight: self.vector(name)?, eps })
    }

    /// Norm weight and projection only ever meet as their product.
    fn mix(&mut self, stem: &str) -> Loaded<Mix<B::Tensor>> {
        let norm = self.values(&format!("{stem}_norm.weight"))?;
        let projection = self.values(&format!("{stem}_proj.weight"))?;
        let score: Vec<f32> = norm.iter().zip(&projection).map(|(n, p)| n * p).collect();
        Ok(Mix { score: self.upload([score.len()], &score)?, eps: self.config.rms_norm_eps })
    }

    fn layer(&mut self, layer: usize) -> Loaded<kimi::Layer<B::Tensor>> {
        let stem = format!("model.layers.{layer}");
        let eps = self.config.rms_norm_eps;
        let has_mix = self.config.attn_res_block_size.is_some();
        let attn = match self.config.layers[layer] {
            LayerKind::Kda => Attention::Kda(Box::new(self.kda(&format!("{stem}.self_attn"))?)),
            LayerKind::Mla => Attention::Mla(Box::new(self.mla(&format!("{stem}.self_attn"))?)),
        };
        let ffn = match (self.config.ffn(layer), self.config.moe) {
            (FfnKind::Moe, Some(moe)) => {
                FeedForward::Moe(Box::new(self.moe(&format!("{stem}.block_sparse_moe"), moe)?))
            }
            _ => FeedForward::Dense(self.glu(&format!("{stem}.mlp"))?),
        };
        Ok(Layer {
            attn_mix: has_mix.then(|| self.mix(&format!("{stem}.self_attention_res"))).transpose()?,
            attn_norm: self.norm(&format!("{stem}.input_layernorm.weight"), eps)?,
            attn,
            ffn_mix: has_mix.then(|| self.mix(&format!("{stem}.mlp_res"))).transpose()?,
            ffn_norm: self.norm(&format!("{stem}.post_attention_layernorm.weight"), eps)?,
            ffn,
        })
    }

    fn kda(&mut self, stem: &str) -> Loaded<KdaLayer<B::Tensor>> {
        let d = self.config.kda;
        let out_gate = match d.out_gate {
            OutGateRank::Full => OutGate::Full(self.projection(stem, "g_proj")?),
            OutGateRank::Low => {
                OutGate::Low { low: self.projection(stem, "g_a_proj")?, high: self.projection(stem, "g_b_proj")? }
            }
        };
        Ok(KdaLayer {
            q: self.projection(stem, "q_proj")?,
            k: self.projection(stem, "k_proj")?,
            v: self.projection(stem, "v_proj")?,
            gate_low: self.projection(stem, "f_a_proj")?,
            gate: self.projection(stem, "f_b_proj")?,
            beta: self.projection(stem, "b_proj")?,
            out_gate,
            params: self.kda_params(stem)?,
            out: self.projection(stem, "o_proj")?,
        })
    }

    fn kda_params(&mut self, stem: &str) -> Loaded<KdaParams<B::Tensor>> {
        let d = self.config.kda;
        let mut taps = |part: &str| {
            let values = self.values(&format!("{stem}.{part}_conv1d.weight"))?;
            self.upload([d.width(), d.conv_kernel], &values)
        };
        let conv = [taps("q")?, taps("k")?, taps("v")?];
        let a_log = self.checkpoint.a_log(&format!("{stem}.A_log"), d.num_heads)?;
        self.count(4 * a_log.len() as u64);
        Ok(KdaParams {
            dims: kda_dims(self.config),
            gate: match d.decay {
                KdaDecay::Bounded { lower_bound } => KdaGate::Bounded { lower_bound },
                KdaDecay::Softplus => KdaGate::Softplus,
            },
            conv,
            a_log: self.upload([d.num_heads], &a_log)?,
            dt_bias: self.vector(&format!("{stem}.dt_bias"))?,
            out_norm: self.vector(&format!("{stem}.o_norm.weight"))?,
            eps: self.config.rms_norm_eps,
        })
    }

    fn mla(&mut self, stem: &str) -> Loaded<MlaLayer<B::Tensor>> {
        let d = self.config.mla;
        let query = match d.q_lora_rank {
            None => Query::Full(self.projection(stem, "q_proj")?),
            Some(_) => Query::Low {
                low: self.projection(stem, "q_a_proj")?,
                norm: self.norm(&format!("{stem}.q_a_layernorm.weight"), LATENT_NORM_EPS)?,
                high: self.projection(stem, "q_b_proj")?,
            },
        };
        let gated = d.output_gate == OutputGate::Sigmoid;
        Ok(MlaLayer {
            query,
            kv_a: self.projection(stem, "kv_a_proj_with_mqa")?,
            gate: gated.then(|| self.projection(stem, "g_proj")).transpose()?,
            params: MlaParams {
                dims: MlaDims {
                    num_heads: d.num_heads,
                    qk_nope_head_dim: d.qk_nope_head_dim,
                    qk_rope_head_dim: d.qk_rope_head_dim,
                    v_head_dim: d.v_head_dim,
                    kv_lora_rank: d.kv_lora_rank,
                },
                kv_norm: self.vector(&format!("{stem}.kv_a_layernorm.weight"))?,
                kv_eps: LATENT_NORM_EPS,
                kv_b: self.projection(stem, "kv_b_proj")?,
            },
            out: self.projection(stem, "o_proj")?,
        })
    }

    fn glu(&mut self, stem: &str) -> Loaded<Glu<B::Tensor>> {
        Ok(Glu {
            gate: self.projection(stem, "gate_proj")?,
            up: self.projection(stem, "up_proj")?,
            down: self.projection(stem, "down_proj")?,
        })
    }

    fn moe(&mut self, stem: &str, moe: MoeDims) -> Loaded<Moe<B::Tensor>> {
        let mut experts = Vec::with_capacity(moe.num_experts);
        for e in 0..moe.num_experts {
            experts.push(Expert {
                gate: self.projection(stem, &format!("experts.{e}.w1"))?,
                up: self.projection(stem, &format!("experts.{e}.w3"))?,
                down: self.projection(stem, &format!("experts.{e}.w2"))?,
            });
        }
        let latent = match moe.latent {
            None => None,
            Some(latent) => Some(Latent {
                down: self.projection(stem, "routed_expert_down_proj")?,
                norm: (latent.norm == LatentNorm::Rms)
                    .then(|| self.norm(&format!("{stem}.routed_expert_norm.weight"), self.config.rms_norm_eps))
                    .transpose()?,
                up: self.projection(stem, "routed_expert_up_proj")?,
            }),
        };
        let has_shared = moe.num_shared_experts > 0;
        Ok(Moe {
            router: self.projection(stem, "gate")?,
            bias: self.vector(&format!("{stem}.gate.e_score_correction_bias"))?,
            rules: RouteRules {
                num_groups: moe.num_groups,
                topk_groups: moe.topk_groups,
                renormalize: match moe.renormalize {
                    RouterNorm::Sum => Renormalize::Sum,
                    RouterNorm::Off => Renormalize::Off,
                },
                scale: moe.routed_scaling_factor,
            },
            experts,
            latent,
            shared: has_shared.then(|| self.glu(&format!("{stem}.shared_experts"))).transpose()?,
        })
    }
}

fn activation(act: FfnActivation) -> Activation {
    match act {
        FfnActivation::Silu => Activation::Silu,
        FfnActivation::Situ { beta, linear_beta } => Activation::Situ { beta, linear_beta },
    }
}
