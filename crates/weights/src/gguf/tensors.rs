//! Which tensors a file has, and how each comes from the checkpoint.

use perilune_config::{FfnKind, HeadKind, LatentNorm, LayerKind, ModelConfig, OutGateRank, OutputGate};
use perilune_tensor::QuantFormat;

use super::block::{GgufFormat, Stored, mxfp4};
use super::container::{GgufTensor, Make};
use super::metadata::Architecture;
use crate::{Checkpoint, WeightsError};

/// What is written.
pub(crate) struct Job<'a> {
    pub(crate) checkpoint: &'a Checkpoint<'a>,
    pub(crate) config: &'a ModelConfig,
    pub(crate) format: GgufFormat,
    pub(crate) arch: Architecture,
}

pub(crate) fn tensors<'a>(job: &'a Job<'a>) -> Vec<GgufTensor<'a>> {
    let config = job.config;
    let mut list = List { job, tensors: Vec::new() };
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    list.matrix("token_embd", "model.embed_tokens", (vocab, hidden));
    list.vector("output_norm.weight", "model.norm.weight", hidden);
    let head = if config.head == HeadKind::Tied { "model.embed_tokens" } else { "lm_head" };
    list.matrix("output", head, (vocab, hidden));
    if config.attn_res_block_size.is_some() {
        list.residual("output_res_score", "model.output_attn_res");
    }
    for layer in 0..config.num_layers() {
        list.layer(layer);
    }
    list.tensors
}

struct List<'a> {
    job: &'a Job<'a>,
    tensors: Vec<GgufTensor<'a>>,
}

impl<'a> List<'a> {
    fn push(&mut self, name: String, (dims, stored): (Vec<usize>, Stored), bytes: Make<'a>) {
        self.tensors.push(GgufTensor { name, dims, stored, bytes });
    }

    /// A matrix in the format asked for.
    fn matrix(&mut self, to: &str, from: &str, (rows, columns): (usize, usize)) {
        let format = match self.job.format {
            // What nothing after it corrects.
            GgufFormat::Q4_0 if to == "output" => GgufFormat::Q8_0,
            format => format,
        };
        self.stored_matrix(to, from, ((rows, columns), Stored::for_rows(format, columns)));
    }

    fn stored_matrix(&mut self, to: &str, from: &str, ((rows, columns), stored): ((usize, usize), Stored)) {
        let (checkpoint, from) = (self.job.checkpoint, format!("{from}.weight"));
        let bytes = move || Ok(stored.encode(&checkpoint.matrix(&from)?.data.to_f32()));
        self.push(format!("{to}.weight"), (vec![columns, rows], stored), Box::new(bytes));
    }

    fn vector(&mut self, to: &str, from: &str, len: usize) {
        self.shaped(to, from, vec![len]);
    }

    /// A small tensor in F32.
    fn shaped(&mut self, to: &str, from: &str, dims: Vec<usize>) {
        let (checkpoint, from) = (self.job.checkpoint, from.to_owned());
        let bytes = move || Ok(Stored::F32.encode(&checkpoint.vector(&from)?));
        self.push(to.to_owned(), (dims, Stored::F32), Box::new(bytes));
    }

    /// The two vectors of an attention residual are only used as their product.
    fn residual(&mut self, to: &str, from: &str) {
        let (checkpoint, from) = (self.job.checkpoint, from.to_owned());
        let bytes = move || {
            let norm = checkpoint.vector(&format!("{from}_norm.weight"))?;
            let projection = checkpoint.vector(&format!("{from}_proj.weight"))?;
            let product: Vec<f32> = norm.iter().zip(&projection).map(|(a, b)| a * b).collect();
            Ok(Stored::F32.encode(&product))
        };
        let dims = vec![self.job.config.hidden_size];
        self.push(format!("{to}.weight"), (dims, Stored::F32), Box::new(bytes));
    }

    fn layer(&mut self, layer: usize) {
        let config = self.job.config;
        let (to, from) = (format!("blk.{layer}"), format!("model.layers.{layer}"));
        let hidden = config.hidden_size;
        self.vector(&format!("{to}.attn_norm.weight"), &format!("{from}.input_layernorm.weight"), hidden);
        self.vector(&format!("{to}.ffn_norm.weight"), &format!("{from}.post_attention_layernorm.weight"), hidden);
        if config.attn_res_block_size.is_some() {
            self.residual(&format!("{to}.attn_res_score"), &format!("{from}.self_attention_res"));
            self.residual(&format!("{to}.ffn_res_score"), &format!("{from}.mlp_res"));
        }
        match config.layers[layer] {
            LayerKind::Kda => self.kda(&to, &format!("{from}.self_attn")),
            LayerKind::Mla => self.mla(&to, &format!("{from}.self_attn")),
        }
        match config.ffn(layer) {
            FfnKind::Moe => self.moe(&to, &format!("{from}.block_sparse_moe")),
            FfnKind::Dense => self.glu((&to, ""), &format!("{from}.mlp"), config.intermediate_size),
        }
    }

    fn glu(&mut self, (to, suffix): (&str, &str), from: &str, inner: usize) {
        let hidden = self.job.config.hidden_size;
        for (part, rows, columns) in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)] {
            self.matrix(&format!("{to}.ffn_{part}{suffix}"), &format!("{from}.{part}_proj"), (rows, columns));
        }
    }

    fn kda(&mut self, to: &str, from: &str) {
        let (d, hidden) = (&self.job.config.kda, self.job.config.hidden_size);
        let width = d.width();
        for part in ["q", "k", "v"] {
            self.matrix(&format!("{to}.attn_{part}"), &format!("{from}.{part}_proj"), (width, hidden));
            let taps = vec![d.conv_kernel, 1, width, 1];
            let name = format!("{to}.ssm_conv1d_{part}.weight");
            self.shaped(&name, &format!("{from}.{part}_conv1d.weight"), taps);
        }
        self.decay(&format!("{to}.ssm_a"), &format!("{from}.A_log"));
        self.vector(&format!("{to}.ssm_dt.bias"), &format!("{from}.dt_bias"), width);
        self.matrix(&format!("{to}.ssm_f_a"), &format!("{from}.f_a_proj"), (d.head_dim, hidden));
        self.matrix(&format!("{to}.ssm_f_b"), &format!("{from}.f_b_proj"), (width, d.head_dim));
        self.matrix(&format!("{to}.ssm_beta"), &format!("{from}.b_proj"), (d.num_heads, hidden));
        match d.out_gate {
            OutGateRank::Full => self.matrix(&format!("{to}.ssm_g"), &format!("{from}.g_proj"), (width, hidden)),
            OutGateRank::Low => {
                self.matrix(&format!("{to}.ssm_g_a"), &format!("{from}.g_a_proj"), (d.head_dim, hidden));
                self.matrix(&format!("{to}.ssm_g_b"), &format!("{from}.g_b_proj"), (width, d.head_dim));
            }
        }
        self.vector(&format!("{to}.ssm_norm.weight"), &format!("{from}.o_norm.weight"), d.head_dim);
        self.matrix(&format!("{to}.attn_output"), &format!("{from}.o_proj"), (hidden, width));
    }

    /// `-exp(A_log)`.
    fn decay(&mut self, to: &str, from: &str) {
        let heads = self.job.config.kda.num_heads;
        let (checkpoint, from) = (self.job.checkpoint, from.to_owned());
        let bytes = move || {
            let rates: Vec<f32> = checkpoint.a_log(&from, heads)?.iter().map(|a| -a.exp()).collect();
            Ok(Stored::F32.encode(&rates))
        };
        let dims = match self.job.arch {
            Architecture::KimiLinear => vec![1, heads],
            Architecture::KimiK3 => vec![heads],
        };
        self.push(to.to_owned(), (dims, Stored::F32), Box::new(bytes));
    }

    fn mla(&mut self, to: &str, from: &str) {
        let (d, hidden) = (self.job.config.mla, self.job.config.hidden_size);
        match d.q_lora_rank {
            Some(rank) => {
                self.matrix(&format!("{to}.attn_q_a"), &format!("{from}.q_a_proj"), (rank, hidden));
                let name = format!("{to}.attn_q_a_norm.weight");
                self.vector(&name, &format!("{from}.q_a_layernorm.weight"), rank);
                self.matrix(&format!("{to}.attn_q_b"), &format!("{from}.q_b_proj"), (d.query_width(), rank));
            }
            None => self.matrix(&format!("{to}.attn_q"), &format!("{from}.q_proj"), (d.query_width(), hidden)),
        }
        let latent = (d.latent_width(), hidden);
        self.matrix(&format!("{to}.attn_kv_a_mqa"), &format!("{from}.kv_a_proj_with_mqa"), latent);
        let name = format!("{to}.attn_kv_a_norm.weight");
        self.vector(&name, &format!("{from}.kv_a_layernorm.weight"), d.kv_lora_rank);
        self.absorbed(to, &format!("{from}.kv_b_proj.weight"));
        if d.output_gate == OutputGate::Sigmoid {
            self.matrix(&format!("{to}.attn_gate"), &format!("{from}.g_proj"), (d.value_width(), hidden));
        }
        self.matrix(&format!("{to}.attn_output"), &format!("{from}.o_proj"), (hidden, d.value_width()));
    }

    /// The matrix that expands latents, `[heads, n + v, C]`, as keys `[heads, C, n]` and values `[heads, v, C]`. In bfloat16
    /// whatever was asked for: `--quantize` leaves it as it is here, and llama.cpp's AMX code would take other forms but
    /// cannot multiply their heads.
    fn absorbed(&mut self, to: &str, from: &str) {
        let d = self.job.config.mla;
        let (checkpoint, nope, rank) = (self.job.checkpoint, d.qk_nope_head_dim, d.kv_lora_rank);
        let per_head = (nope + d.v_head_dim) * rank;
        let form = Stored::As(GgufFormat::Bf16);
        let name = from.to_owned();
        let keys = move || {
            let all = checkpoint.matrix(&name)?.data.to_f32();
            let head = |head: &[f32]| {
                let transposed = (0..rank).flat_map(|c| (0..nope).map(move |n| n * rank + c));
                transposed.map(|at| head[at]).collect::<Vec<f32>>()
            };
            Ok(form.encode(&all.chunks_exact(per_head).flat_map(head).collect::<Vec<f32>>()))
        };
        self.push(format!("{to}.attn_k_b.weight"), (vec![nope, rank, d.num_heads], form), Box::new(keys));
        let name = from.to_owned();
        let values = move || {
            let all = checkpoint.matrix(&name)?.data.to_f32();
            let values = all.chunks_exact(per_head).flat_map(|head| &head[nope * rank..]);
            Ok(form.encode(&values.copied().collect::<Vec<f32>>()))
        };
        let dims = vec![rank, d.v_head_dim, d.num_heads];
        self.push(format!("{to}.attn_v_b.weight"), (dims, form), Box::new(values));
    }

    fn moe(&mut self, to: &str, from: &str) {
        let config = self.job.config;
        let (hidden, width) = (config.hidden_size, config.expert_width());
        let Some(moe) = &config.moe else { return };
        let router = ((moe.num_experts, hidden), Stored::F32);
        self.stored_matrix(&format!("{to}.ffn_gate_inp"), &format!("{from}.gate"), router);
        let name = format!("{to}.exp_probs_b.bias");
        self.vector(&name, &format!("{from}.gate.e_score_correction_bias"), moe.num_experts);
        if let Some(latent) = moe.latent {
            self.matrix(&format!("{to}.ffn_routed_down"), &format!("{from}.routed_expert_down_proj"), (width, hidden));
            self.matrix(&format!("{to}.ffn_routed_up"), &format!("{from}.routed_expert_up_proj"), (hidden, width));
            if latent.norm == LatentNorm::Rms {
                let name = format!("{to}.ffn_routed_norm.weight");
                self.vector(&name, &format!("{from}.routed_expert_norm.weight"), width);
            }
        }
        if moe.num_shared_experts > 0 {
            self.glu((to, "_shexp"), &format!("{from}.shared_experts"), moe.shared_width());
        }
        let inner = moe.intermediate_size;
        for (part, matrix, shape) in
            [("gate", "w1", (inner, width)), ("up", "w3", (inner, width)), ("down", "w2", (width, inner))]
        {
            self.experts(&format!("{to}.ffn_{part}_exps.weight"), (from, matrix), shape);
        }
    }

    /// The same matrix of all experts, one after the other.
    fn experts(&mut self, to: &str, (from, matrix): (&str, &'static str), (rows, columns): (usize, usize)) {
        let count = self.job.config.moe.as_ref().map_or(0, |moe| moe.num_experts);
        let (checkpoint, from) = (self.job.checkpoint, from.to_owned());
        let name = move |expert: usize| format!("{from}.experts.{expert}.{matrix}.weight");
        let packed = checkpoint.matrix(&name(0)).is_ok_and(|first| first.format == QuantFormat::Mxfp4);
        let stored = if packed { Stored::Mxfp4 } else { Stored::for_rows(self.job.format, columns) };
        let bytes = move || {
            let mut all = Vec::with_capacity(stored.size_bytes(count * rows * columns));
            for expert in 0..count {
                let one = checkpoint.matrix(&name(expert))?;
                match (&one.scales, one.format) {
                    (Some(scales), QuantFormat::Mxfp4) if packed => {
                        all.extend(mxfp4(one.data.bytes(), scales.bytes()));
                    }
                    (None, _) if !packed => all.extend(stored.encode(&one.data.to_f32())),
                    _ => return Err(WeightsError::Gguf { what: "experts of one matrix are stored alike there" }),
                }
            }
            Ok(all)
        };
        self.push(to.to_owned(), (vec![columns, rows, count], stored), Box::new(bytes));
    }
}
