//! A draft as named tensors: the published checkpoint format, and back.

use std::path::Path;

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use half::bf16;
use perilune_tensor::{DType, TensorSpec};
use perilune_weights::{SafetensorsDir, Sharding, TensorToWrite, WeightSource, WeightsError, write_tensors};
use serde_json::Value;

use crate::TrainError;
use crate::attention::Attention;
use crate::draft::{Draft, DraftLayer};
use crate::draft_config::DraftConfig;
use crate::objective::device;
use crate::place::Place;

/// Values of a tensor by its name in the checkpoint.
type Read<'a> = &'a dyn Fn(&str) -> Result<Vec<f32>, TrainError>;

impl Draft {
    /// A draft of the tensors that `config` names.
    ///
    /// # Errors
    /// What `read` fails with; `Device` where it returns too few or too many values.
    pub(crate) fn from_tensors(config: &DraftConfig, place: &Place, read: Read<'_>) -> Result<Self, TrainError> {
        let shapes = config.tensors();
        let load = |name: String| {
            let shape = shapes.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape.clone());
            let values = read(&name)?;
            match shape {
                Some(shape) if shape.iter().product::<usize>() == values.len() => Ok(TensorData::new(values, shape)),
                other => Err(TrainError::Device(format!("{name}: {} values for {other:?}", values.len()))),
            }
        };
        let matrix = |name: &str| Ok::<_, TrainError>(parameter::<2>(load(format!("{name}.weight"))?, place));
        let vector = |name: &str| Ok::<_, TrainError>(parameter::<1>(load(format!("{name}.weight"))?, place));
        let layer = |i: usize| {
            let part = |name: &str| format!("layers.{i}.{name}");
            Ok::<_, TrainError>(DraftLayer {
                input_norm: vector(&part("input_layernorm"))?,
                attention: Attention {
                    q: matrix(&part("self_attn.q_proj"))?,
                    k: matrix(&part("self_attn.k_proj"))?,
                    v: matrix(&part("self_attn.v_proj"))?,
                    o: matrix(&part("self_attn.o_proj"))?,
                    q_norm: vector(&part("self_attn.q_norm"))?,
                    k_norm: vector(&part("self_attn.k_norm"))?,
                },
                post_norm: vector(&part("post_attention_layernorm"))?,
                gate: matrix(&part("mlp.gate_proj"))?,
                up: matrix(&part("mlp.up_proj"))?,
                down: matrix(&part("mlp.down_proj"))?,
            })
        };
        Ok(Draft {
            fc: matrix("fc")?,
            hidden_norm: vector("hidden_norm")?,
            layers: (0..config.num_layers).map(layer).collect::<Result<_, _>>()?,
            norm: vector("norm")?,
            markov_w1: matrix("markov_head.markov_w1")?,
            markov_w2: matrix("markov_head.markov_w2")?,
            confidence: matrix("confidence_head.proj")?,
            confidence_bias: parameter::<1>(load("confidence_head.proj.bias".to_owned())?, place),
        })
    }

    /// All values, in the order of [`DraftConfig::tensors`].
    fn values(&self) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut all = vec![flat(&self.fc)?, flat(&self.hidden_norm)?, flat(&self.norm)?];
        for layer in &self.layers {
            let a = &layer.attention;
            all.extend([flat(&layer.input_norm)?, flat(&layer.post_norm)?]);
            all.extend([flat(&a.q)?, flat(&a.k)?, flat(&a.v)?, flat(&a.o)?, flat(&a.q_norm)?, flat(&a.k_norm)?]);
            all.extend([flat(&layer.gate)?, flat(&layer.up)?, flat(&layer.down)?]);
        }
        all.extend([flat(&self.markov_w1)?, flat(&self.markov_w2)?]);
        all.extend([flat(&self.confidence)?, flat(&self.confidence_bias)?]);
        Ok(all)
    }
}

fn parameter<const D: usize>(data: TensorData, place: &Place) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::from_data(data, place))
}

fn flat<const D: usize>(param: &Param<Tensor<D>>) -> Result<Vec<f32>, TrainError> {
    param.val().inner().try_into_vec_as::<f32>().map_err(device)
}

/// Writes a draft: `config.json` and `model.safetensors` in BF16.
///
/// # Errors
/// `Io`, `Weights`.
pub fn export(draft: &Draft, (config, target): (&DraftConfig, &Value), dir: &Path) -> Result<(), TrainError> {
    std::fs::create_dir_all(dir).map_err(TrainError::io(dir))?;
    let tensors = config.tensors().into_iter().zip(draft.values()?).map(|((name, shape), values)| TensorToWrite {
        name,
        spec: TensorSpec::new(DType::Bf16, shape),
        bytes: Box::new(move || values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
    });
    write_tensors(tensors.collect(), Sharding::Single, dir)?;
    let path = dir.join("config.json");
    let text = format!("{:#}\n", config.to_json(target));
    std::fs::write(&path, text).map_err(TrainError::io(&path))
}

/// Reads what [`export`] wrote.
///
/// # Errors
/// `Weights` for tensors that are missing or of another shape.
pub fn import(config: &DraftConfig, place: &Place, dir: &Path) -> Result<Draft, TrainError> {
    let source = SafetensorsDir::open(dir)?;
    for (name, shape) in config.tensors() {
        let expected = TensorSpec::new(DType::Bf16, shape).shape.to_string();
        let found = source
            .spec(&name)
            .ok_or_else(|| WeightsError::Missing { name: name.clone(), expected: expected.clone() })?;
        if found.shape.to_string() != expected {
            return Err(WeightsError::Mismatch { name, found: found.to_string(), expected }.into());
        }
    }
    Draft::from_tensors(config, place, &|name| Ok(source.get(name)?.to_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn what_is_exported_is_imported_but_for_the_rounding() {
        let objective = fixture::objective(burn::tensor::DType::F32);
        let draft = fixture::draft(&objective);
        let dir = tempfile::tempdir().unwrap();
        export(&draft, (&objective.config, &Value::Null), dir.path()).unwrap();
        let read = import(&objective.config, &objective.place, dir.path()).unwrap();
        let names = objective.config.tensors();
        for ((before, after), (name, _)) in draft.values().unwrap().iter().zip(read.values().unwrap()).zip(&names) {
            let rounded: Vec<f32> = before.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
            assert_eq!(rounded, after, "{name}");
        }
        // Every tensor is another one: none is stored in place of its neighbour.
        let spoken = fixture::spoken(&objective.config);
        let hidden = |draft: &Draft| {
            let output = objective.forward(draft, &spoken, (&fixture::ANCHORS, &objective.place));
            output.confidence.try_into_vec_as::<f32>().unwrap()
        };
        // Drafts with and without autodiff: only the values count.
        let again = tempfile::tempdir().unwrap();
        export(&read, (&objective.config, &Value::Null), again.path()).unwrap();
        let twice = import(&objective.config, &objective.place, again.path()).unwrap();
        assert_eq!(hidden(&read), hidden(&twice));
    }

    #[test]
    fn a_checkpoint_of_another_shape_is_refused_by_name() {
        let objective = fixture::objective(burn::tensor::DType::F32);
        let dir = tempfile::tempdir().unwrap();
        export(&fixture::draft(&objective), (&objective.config, &Value::Null), dir.path()).unwrap();
        let refused = |config: &DraftConfig| import(config, &objective.place, dir.path()).unwrap_err().to_string();
        let wider = DraftConfig { intermediate: 11, ..objective.config.clone() };
        assert_eq!(refused(&wider), "tensor `layers.0.mlp.gate_proj.weight` is BF16 [10, 12], expected [11, 12]");
        let deeper = DraftConfig { num_layers: 3, ..objective.config.clone() };
        assert!(refused(&deeper).starts_with("tensor `layers.2.input_layernorm.weight` is missing"));
    }
}
