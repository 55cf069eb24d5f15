//! Kernels of everything around the sequence mixers: products, norms, activations, experts.
//!
//! The sizes here are those of one step's calls, so that each plan is asked what a launcher would ask it; only the number
//! of rows varies, and of that a plan sees few values.

use serde_json::Value;

use crate::attn_residual::AttnResidualProblem;
use crate::gated_act::{Act, GatedActProblem};
use crate::gather::GatherProblem;
use crate::linear::LinearProblem;
use crate::moe_experts::{MoeExpertsProblem, MoeStep, Pairs};
use crate::moe_route::MoeRouteProblem;
use crate::norm::RmsNormProblem;
use crate::{Element, Target, Variant, Weights};

/// Sizes of a model's layers apart from its mixers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShapes {
    /// Hidden width.
    pub hidden: usize,
    /// Widths of the rows that are normed.
    pub normed: Vec<usize>,
    /// Products: input features, and the output features of every weight of the call.
    pub products: Vec<(usize, Vec<usize>)>,
    /// Widths of the gated activations.
    pub gated: Vec<usize>,
    /// Activation.
    pub act: Act,
    /// Rows that an attention residual mixes at most; 0 without one.
    pub residual_sources: usize,
    /// Routed experts.
    pub experts: Option<ExpertShapes>,
}

/// Sizes of a layer of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShapes {
    /// Experts.
    pub experts: usize,
    /// Experts per row.
    pub choices: usize,
    /// Groups of experts.
    pub groups: usize,
    /// Width that experts work on.
    pub width: usize,
    /// Inner width.
    pub inner: usize,
}

/// Storage of matrices that is expected of checkpoints, experts apart.
const PLAIN: [Element; 2] = [Element::Bf16, Element::F32];
/// Storage of experts.
const EXPERTS: [Weights; 2] = [Weights::Mxfp4, Weights::Plain(Element::Bf16)];
/// Numbers of rows that plans tell apart: what matters is how many there are of tiles' heights.
const ROWS: [usize; 4] = [1, 2, 4, 8];

impl LayerShapes {
    /// From the text model's part of a `config.json`.
    ///
    /// # Errors
    /// Names the key that is missing.
    pub fn from_config(text: &Value) -> Result<LayerShapes, String> {
        let sizes = Sizes(text);
        let hidden = sizes.need("hidden_size")?;
        let experts = sizes.experts(hidden)?;
        let query_rank = sizes.find(&["q_lora_rank"]);
        let mut normed = vec![hidden];
        normed.extend(query_rank);
        normed.extend(experts.map(|e| e.width).filter(|width| *width != hidden));
        let dense = sizes.need("intermediate_size")?;
        let shared = sizes.find(&["num_shared_experts", "n_shared_experts"]).unwrap_or(0)
            * experts.map_or(0, |experts| experts.inner);
        let layers = sizes.need("num_hidden_layers")?;
        let block = sizes.find(&["attn_res_block_size"]);
        Ok(LayerShapes {
            hidden,
            normed,
            products: sizes.products((hidden, dense, shared), (query_rank, experts))?,
            gated: [dense, shared].into_iter().filter(|width| *width > 0).collect(),
            act: sizes.act(),
            // Sublayers in blocks, and the running prefix.
            residual_sources: block.map_or(0, |block| (2 * layers).div_ceil(block) + 2),
            experts,
        })
    }

    /// Every variant that these layers need on a target; some may occur twice.
    pub fn variants(&self, target: Target) -> Vec<Variant> {
        let mut all: Vec<Variant> = Vec::new();
        for element in PLAIN {
            all.push(GatherProblem { rows: 1, width: self.hidden, element }.plan(target).kernel());
        }
        all.extend(self.normed.iter().map(|width| RmsNormProblem { rows: 1, width: *width }.plan(target).kernel()));
        for width in &self.gated {
            all.push(GatedActProblem { elements: *width, act: self.act }.plan(target).kernel());
        }
        if self.residual_sources > 0 {
            // A plan rounds the number of sources up, so every count up to the most is covered.
            let problem = |sources| AttnResidualProblem { rows: 1, width: self.hidden, sources };
            all.extend((1..=self.residual_sources).map(|sources| problem(sources).plan(target).kernel()));
        }
        all.extend(self.products.iter().flat_map(|product| products(product, target)));
        if let Some(experts) = &self.experts {
            all.extend(experts.variants(self.act, target));
        }
        all
    }
}

/// The kernels of one call, whichever of its weights are stored in which plain format.
fn products((inputs, outs): &(usize, Vec<usize>), target: Target) -> Vec<Variant> {
    let mut all = Vec::new();
    // Weights of one format are one pass: all of them, one alone, or all but one.
    let mut passes: Vec<Vec<usize>> = vec![outs.clone()];
    for i in 0..outs.len() {
        let (alone, mut others) = (vec![outs[i]], outs.clone());
        others.remove(i);
        passes.extend([alone, others]);
    }
    for outs in passes.into_iter().filter(|outs| !outs.is_empty()) {
        for element in PLAIN {
            for rows in ROWS {
                let weights = Weights::Plain(element);
                let problem = LinearProblem { rows, inputs: *inputs, outs: outs.clone(), weights };
                all.push(problem.plan(target).kernel());
            }
        }
    }
    all
}

impl ExpertShapes {
    fn variants(&self, act: Act, target: Target) -> Vec<Variant> {
        let ExpertShapes { experts, choices, groups, width, inner } = *self;
        let mut all = vec![MoeRouteProblem { rows: 1, experts, groups }.plan(target).kernel()];
        for weights in EXPERTS {
            for height in ROWS {
                // As many rows as give an expert this many pairs on average.
                let rows = if height == 1 { 1 } else { (height * experts).div_ceil(choices) };
                let problem = MoeExpertsProblem { rows, choices, experts, width, inner, weights, act };
                let plan = problem.plan(target);
                all.extend([plan.gate_up.kernel(), plan.down.kernel(), plan.step(MoeStep::Combine)]);
                if plan.pairs == Pairs::Grouped {
                    all.extend([plan.step(MoeStep::Count), plan.step(MoeStep::Place)]);
                }
            }
        }
        all
    }
}

/// Access to the text model's keys.
struct Sizes<'a>(&'a Value);

impl Sizes<'_> {
    fn find(&self, spellings: &[&str]) -> Option<usize> {
        spellings.iter().find_map(|key| self.0[*key].as_u64()).map(|n| n as usize)
    }

    fn need(&self, key: &str) -> Result<usize, String> {
        self.find(&[key]).ok_or_else(|| format!("the configuration has no {key}"))
    }

    fn act(&self) -> Act {
        match (self.0["hidden_act"].as_str(), self.0["activation_situ_linear_beta"].as_f64()) {
            (Some("situ"), Some(cap)) if cap > 0.0 => Act::SituCapped,
            (Some("situ"), _) => Act::Situ,
            _ => Act::Silu,
        }
    }

    fn experts(&self, hidden: usize) -> Result<Option<ExpertShapes>, String> {
        let Some(experts) = self.find(&["num_experts", "num_local_experts"]) else { return Ok(None) };
        let choices = self.find(&["num_experts_per_token", "num_experts_per_tok"]);
        let grouped = self.0["use_grouped_topk"].as_bool().unwrap_or(true);
        Ok(Some(ExpertShapes {
            experts,
            choices: choices.ok_or("the configuration has no num_experts_per_token")?,
            groups: if grouped { self.find(&["num_expert_group", "n_group"]).unwrap_or(1) } else { 1 },
            width: self.find(&["routed_expert_hidden_size"]).unwrap_or(hidden),
            inner: self.need("moe_intermediate_size")?,
        }))
    }

    /// Every call of `linear` in a step.
    fn products(
        &self,
        (hidden, dense, shared): (usize, usize, usize),
        (query_rank, experts): (Option<usize>, Option<ExpertShapes>),
    ) -> Result<Vec<(usize, Vec<usize>)>, String> {
        let linear = Sizes(&self.0["linear_attn_config"]);
        let (kda_heads, kda_dim) = (linear.need("num_heads")?, linear.need("head_dim")?);
        let kda = kda_heads * kda_dim;
        let full_rank = linear.0["use_full_rank_gate"] == true;
        let out_gate = if full_rank { kda } else { kda_dim };
        let heads = self.need("num_attention_heads")?;
        let query = heads * (self.need("qk_nope_head_dim")? + self.need("qk_rope_head_dim")?);
        let value = heads * self.need("v_head_dim")?;
        let latent = self.need("kv_lora_rank")? + self.need("qk_rope_head_dim")?;
        let mut mla = vec![query_rank.unwrap_or(query), latent];
        if self.0["mla_use_output_gate"] == true {
            mla.push(value);
        }
        let mut calls = vec![
            (hidden, vec![kda, kda, kda, kda_dim, kda_heads, out_gate]),
            (kda_dim, vec![kda]),
            (kda, vec![hidden]),
            (hidden, mla),
            (value, vec![hidden]),
            (hidden, vec![dense, dense]),
            (dense, vec![hidden]),
            (hidden, vec![self.need("vocab_size")?]),
        ];
        calls.extend(query_rank.map(|rank| (rank, vec![query])));
        if let Some(experts) = experts {
            let mut parts = vec![experts.experts];
            if experts.width != hidden {
                parts.push(experts.width);
                calls.push((experts.width, vec![hidden]));
            }
            if shared > 0 {
                parts.extend([shared, shared]);
                calls.push((shared, vec![hidden]));
            }
            calls.push((hidden, parts));
        }
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({
            "hidden_size": 7168, "intermediate_size": 33792, "num_hidden_layers": 93, "vocab_size": 163840,
            "attn_res_block_size": 12, "hidden_act": "situ", "activation_situ_linear_beta": 25.0,
            "num_experts": 896, "num_experts_per_token": 16, "num_expert_group": 1, "moe_intermediate_size": 3072,
            "num_shared_experts": 2, "routed_expert_hidden_size": 3584, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "num_attention_heads": 96, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "mla_use_output_gate": true,
            "linear_attn_config": { "num_heads": 96, "head_dim": 128, "use_full_rank_gate": true },
        })
    }

    #[test]
    fn calls_of_k3() {
        let shapes = LayerShapes::from_config(&config()).unwrap();
        assert_eq!(shapes.normed, [7168, 1536, 3584]);
        assert_eq!(shapes.act, Act::SituCapped);
        assert!(shapes.products.contains(&(7168, vec![896, 3584, 6144, 6144])));
        assert!(shapes.products.contains(&(7168, vec![12288, 12288, 12288, 128, 96, 12288])));
        assert!(shapes.products.contains(&(1536, vec![18432])));
    }

    #[test]
    fn few_kernels_serve_all_calls() {
        for target in [Target::CUDA, Target::HIP] {
            let mut all = LayerShapes::from_config(&config()).unwrap().variants(target);
            all.sort_by_key(Variant::name);
            all.dedup();
            assert!((40..100).contains(&all.len()), "{}", all.len());
        }
    }

    #[test]
    fn a_missing_key_is_named() {
        let mut config = config();
        config["hidden_size"] = Value::Null;
        assert!(LayerShapes::from_config(&config).unwrap_err().contains("hidden_size"));
    }
}
