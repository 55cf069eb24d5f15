//! Which kernels a model needs: every variant that a launcher may ask for, from the sizes in its configuration.

use serde_json::Value;

use crate::kda::{KdaGateKind, KdaProblem};
use crate::{Target, Variant};

/// Sizes of a model that kernels depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// Width of a KDA head.
    pub kda_head_dim: usize,
    /// Taps of the short convolution.
    pub kda_taps: usize,
    /// Kind of the KDA gate.
    pub kda_gate: KdaGateKind,
}

impl Shapes {
    /// Kimi K3 and Kimi-Linear.
    pub fn known() -> Vec<Shapes> {
        [KdaGateKind::Bounded, KdaGateKind::Softplus]
            .map(|kda_gate| Shapes { kda_head_dim: 128, kda_taps: 4, kda_gate })
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
        })
    }
}

/// Every variant that these models need on a target, each once.
pub fn variants(models: &[Shapes], target: Target) -> Vec<Variant> {
    let mut all: Vec<Variant> = Vec::new();
    for shapes in models {
        for variant in of_model(shapes, target) {
            if !all.contains(&variant) {
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
    vec![kda.plan(target).decode()]
}
