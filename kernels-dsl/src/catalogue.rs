//! Which kernels a model needs: every variant that a launcher may ask for, from the sizes in its configuration.

use serde_json::Value;

use crate::kda::{KdaGateKind, KdaProblem};
use crate::mla::{MlaProblem, MlaShape, MlaStage, OutGate, TILE, Tiles};
use crate::{Element, Target, Variant};

/// Sizes of a model that kernels depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// Width of a KDA head.
    pub kda_head_dim: usize,
    /// Taps of the short convolution.
    pub kda_taps: usize,
    /// Kind of the KDA gate.
    pub kda_gate: KdaGateKind,
    /// Of an MLA head.
    pub mla: MlaShape,
}

impl Shapes {
    /// Kimi K3 and Kimi-Linear.
    pub fn known() -> Vec<Shapes> {
        let mla = |gate| MlaShape { nope: 128, rope: 64, value: 128, latent: 512, element: Element::Bf16, gate };
        [(KdaGateKind::Bounded, OutGate::Sigmoid), (KdaGateKind::Softplus, OutGate::Absent)]
            .map(|(kda_gate, gate)| Shapes { kda_head_dim: 128, kda_taps: 4, kda_gate, mla: mla(gate) })
            .to_vec()
    }

    /// From a `config.json`.
    ///
    /// # Errors
    /// Names the key that is missing.
    pub fn from_config(config: &Value) -> Result<Shapes, String> {
        let text = if config["text_config"].is_object() { &config["text_config"] } else { config };
        let linear = &text["linear_attn_config"];
        let number = |value: &Value, key: &str| {
            value[key].as_u64().map(|n| n as usize).ok_or_else(|| format!("the configuration has no {key}"))
        };
        let bounded = linear["gate_lower_bound"].is_number();
        Ok(Shapes {
            kda_head_dim: number(linear, "head_dim")?,
            kda_taps: number(linear, "short_conv_kernel_size")?,
            kda_gate: if bounded { KdaGateKind::Bounded } else { KdaGateKind::Softplus },
            mla: MlaShape {
                nope: number(text, "qk_nope_head_dim")?,
                rope: number(text, "qk_rope_head_dim")?,
                value: number(text, "v_head_dim")?,
                latent: number(text, "kv_lora_rank")?,
                element: Element::Bf16,
                gate: if text["mla_use_output_gate"] == true { OutGate::Sigmoid } else { OutGate::Absent },
            },
        })
    }
}

/// Every variant that these models need on a target, each once.
pub fn variants(models: &[Shapes], target: Target) -> Vec<Variant> {
    let mut all: Vec<Variant> = Vec::new();
    for shapes in models {
        for variant in of_model(shapes, target) {
            if !all.iter().any(|known| known.name() == variant.name()) {
                all.push(variant);
            }
        }
    }
    all
}

fn of_model(shapes: &Shapes, target: Target) -> Vec<Variant> {
    let kda = KdaProblem {
        sequences: 1,
        heads: 1,
        head_dim: shapes.kda_head_dim,
        taps: shapes.kda_taps,
        gate: shapes.kda_gate,
        alignment: 4,
    };
    let kda = kda.plan(target);
    let mut all = vec![kda.decode(), kda.prefill(), kda.verify(), kda.fold()];
    for tiles in [Tiles::Across, Tiles::Along] {
        let problem = MlaProblem { shape: shapes.mla, heads: 1, runs: 1, rows: TILE, tokens: 1, tiles, alignment: 4 };
        let plan = problem.plan(target);
        all.extend([MlaStage::Append, MlaStage::Absorb, MlaStage::Attend, MlaStage::Value].map(|s| plan.kernel(s)));
    }
    all
}
