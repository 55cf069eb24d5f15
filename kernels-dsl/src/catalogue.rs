//! Which kernels a model needs: every variant that a launcher may ask for, from the sizes in its configuration.

mod layers;

use serde_json::Value;

use crate::kda::{KdaGateKind, KdaProblem};
use crate::mla::{MlaProblem, MlaShape, MlaStage, OutGate, TILE, Tiles};
use crate::{Element, Target, Variant};

pub use layers::{ExpertShapes, LayerShapes};

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
    /// Everything around the mixers.
    pub layers: LayerShapes,
}

impl Shapes {
    /// Kimi K3 and Kimi-Linear.
    ///
    /// # Errors
    /// As [`Shapes::from_config`]: the configurations beside this file lack a key.
    pub fn known() -> Result<Vec<Shapes>, String> {
        let read = |text: &str| Shapes::from_config(&serde_json::from_str(text).map_err(|e| e.to_string())?);
        [include_str!("catalogue/kimi-k3.json"), include_str!("catalogue/kimi-linear-48b.json")]
            .into_iter()
            .map(read)
            .collect()
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
            layers: LayerShapes::from_config(text)?,
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
    all.extend(shapes.layers.variants(target));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_models_are_read_and_every_name_is_unique() {
        let models = Shapes::known().unwrap();
        assert_eq!(models[0].layers.experts.map(|e| e.experts), Some(896));
        for target in [Target::CUDA, Target::HIP] {
            let mut names: Vec<String> = variants(&models, target).iter().map(Variant::name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
