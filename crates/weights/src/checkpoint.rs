//! One model's tensors found in a source: every name resolved, every shape and element type checked.
//!
//! Accepts names with and without `language_model.`, both spellings of the attention residual's pair, and per matrix
//! plain or MXFP4 experts. Values are not read here; see [`crate::check_finite`].

use std::collections::{HashMap, HashSet};

use perilune_config::{DraftConfig, ModelConfig};
use perilune_tensor::{DType, HostTensor, QuantFormat, Shape, TensorSpec};

use crate::quantize::quantize;
use crate::{Expected, Quantize, WeightSource, WeightsError, expected_draft_tensors, expected_tensors};

/// Prefix of every text tensor in checkpoints that also hold a vision tower.
const PREFIX: &str = "language_model.";
/// Parts of a checkpoint that a text model leaves alone.
const IGNORED: &[&str] = &["vision_tower.", "mm_projector."];
/// Parts that a draft leaves alone: copies of what it shares with its target, tables, and a head that is switched off.
const IGNORED_IN_DRAFTS: &[&str] = &["embed_tokens.", "lm_head.", "rotary_emb.", "confidence_head."];

/// A weight matrix in host memory, in the format it is stored in.
#[derive(Debug, Clone)]
pub struct HostWeight {
    /// How the two tensors are to be read.
    pub format: QuantFormat,
    /// `[out, in]`; MXFP4: `U8 [out, in/2]`.
    pub data: HostTensor,
    /// MXFP4: `U8 [out, in/32]`; else `None`.
    pub scales: Option<HostTensor>,
}

impl HostWeight {
    /// Bytes it occupies.
    pub fn size_bytes(&self) -> u64 {
        let scales = self.scales.as_ref().map_or(0, |scales| scales.spec().size_bytes());
        (self.data.spec().size_bytes() + scales) as u64
    }
}

/// The tensors of one model in a source.
pub struct Checkpoint<'a> {
    source: &'a dyn WeightSource,
    /// Published name to stored place.
    stored: HashMap<String, Stored>,
    ignored: Vec<String>,
    bytes: u64,
    quantize: Option<Quantize>,
}

/// Where a tensor or packed matrix lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    Plain(String),
    Packed { data: String, scales: String },
}

impl<'a> Checkpoint<'a> {
    /// Finds every tensor of the model that `config` describes.
    ///
    /// # Errors
    /// `Missing`, `Mismatch`, `Unexpected`, each naming the tensor.
    pub fn open(source: &'a dyn WeightSource, config: &ModelConfig) -> Result<Self, WeightsError> {
        let prefix = if source.contains(&format!("{PREFIX}model.embed_tokens.weight")) { PREFIX } else { "" };
        Self::find(source, expected_tensors(config), (prefix, IGNORED))
    }

    /// Finds every tensor of the draft that `config` describes.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_draft(source: &'a dyn WeightSource, config: &DraftConfig) -> Result<Self, WeightsError> {
        Self::find(source, expected_draft_tensors(config), ("", IGNORED_IN_DRAFTS))
    }

    fn find(
        source: &'a dyn WeightSource,
        wanted: Vec<Expected>,
        (prefix, ignored): (&str, &[&str]),
    ) -> Result<Self, WeightsError> {
        let mut this = Checkpoint { source, stored: HashMap::new(), ignored: Vec::new(), bytes: 0, quantize: None };
        for expected in wanted {
            let stored = this.resolve(&expected, prefix)?;
            this.stored.insert(expected.name, stored);
        }
        this.sort_out_extras(prefix, ignored)?;
        Ok(this)
    }

    /// Stored names that belong to parts of the checkpoint the text model does not use, sorted.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The same model with its matrices rounded as they are asked for; also how many of them that will be.
    pub fn quantized(mut self, quantize: Quantize) -> (Self, usize) {
        let mut count = 0;
        for (name, stored) in &self.stored {
            let Stored::Plain(place) = stored else { continue };
            let Some(spec) = self.source.spec(place) else { continue };
            let (Ok(format), [out, inp]) = (plain_format(place, &spec), spec.shape.dims()) else { continue };
            if let Some(format) = quantize.format(name, format, [*out, *inp]) {
                self.bytes = self.bytes - spec.size_bytes() as u64 + format.matrix_bytes(*out, *inp) as u64;
                count += 1;
            }
        }
        self.quantize = Some(quantize);
        (self, count)
    }

    /// Bytes of the model's tensors as they are stored, or as they will be once rounded.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of tensors and packed matrices.
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// Whether the model has no tensors: never, for a model that was opened.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Number of matrices stored as MXFP4.
    pub fn num_packed(&self) -> usize {
        self.stored.values().filter(|stored| matches!(stored, Stored::Packed { .. })).count()
    }

    /// A matrix by its published name, rounded where [`Checkpoint::quantized`] asked for it.
    ///
    /// # Errors
    /// `Missing` for a name the model does not have.
    pub fn matrix(&self, name: &str) -> Result<HostWeight, WeightsError> {
        let host = self.stored_matrix(name)?;
        let (Some(rule), [out, inp]) = (self.quantize, host.data.spec().shape.dims()) else { return Ok(host) };
        let format = rule.format(name, host.format, [*out, *inp]);
        Ok(format.and_then(|format| quantize(&host, format)).unwrap_or(host))
    }

    fn stored_matrix(&self, name: &str) -> Result<HostWeight, WeightsError> {
        match self.place(name)? {
            Stored::Plain(stored) => {
                let data = self.source.get(stored)?;
                Ok(HostWeight { format: plain_format(stored, data.spec())?, data, scales: None })
            }
            Stored::Packed { data, scales } => Ok(HostWeight {
                format: QuantFormat::Mxfp4,
                data: self.source.get(data)?,
                scales: Some(self.source.get(scales)?),
            }),
        }
    }

    /// A small tensor by its published name, flat and widened.
    ///
    /// # Errors
    /// As [`Checkpoint::matrix`].
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        match self.place(name)? {
            Stored::Plain(stored) => Ok(self.source.get(stored)?.to_f32()),
            Stored::Packed { data, .. } => Err(WeightsError::Mismatch {
                name: data.clone(),
                found: "MXFP4".into(),
                expected: "F32, BF16 or F16".into(),
            }),
        }
    }

    /// The decay rates `A_log` of a KDA layer, without padding.
    ///
    /// # Errors
    /// `Value` where `exp` of one is not finite (it would poison the state) or the padding is not zero.
    pub fn a_log(&self, name: &str, heads: usize) -> Result<Vec<f32>, WeightsError> {
        let mut values = self.vector(name)?;
        let fault = |element: usize, found: f32, rule| {
            Err(WeightsError::Value { name: name.into(), element, found: found.to_string(), rule })
        };
        let overflow = |value: &&f32| !value.exp().is_finite();
        if let Some(element) = values.iter().take(heads).position(|value| overflow(&value)) {
            return fault(element, values[element], "its exponential must be a finite number");
        }
        if let Some(element) = values.iter().skip(heads).position(|&value| value != 0.0) {
            return fault(heads + element, values[heads + element], "elements after the heads are zero padding");
        }
        values.truncate(heads);
        Ok(values)
    }

    /// The stored tensors, each with the name it has in the source.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.stored.values()
    }

    pub(crate) fn source(&self) -> &'a dyn WeightSource {
        self.source
    }

    fn place(&self, name: &str) -> Result<&Stored, WeightsError> {
        self.stored
            .get(name)
            .ok_or_else(|| WeightsError::Missing { name: name.into(), expected: "a tensor of the model".into() })
    }

    fn resolve(&mut self, expected: &Expected, prefix: &str) -> Result<Stored, WeightsError> {
        let plain = format!("{prefix}{}", expected.name);
        let packed = plain.strip_suffix(".weight").map(|stem| format!("{stem}.weight_packed"));
        if let (Some(shapes), Some(data)) = (expected.layout.packed_shapes(), packed)
            && self.source.contains(&data)
        {
            let scales = data.replace(".weight_packed", ".weight_scale");
            self.take(&data, shapes.0)?;
            self.take(&scales, shapes.1)?;
            return Ok(Stored::Packed { data, scales });
        }
        let name = if self.source.contains(&plain) { plain.clone() } else { older_spelling(&plain) };
        let Some(found) = self.source.describe(&name) else {
            return Err(WeightsError::Missing { name: plain, expected: expected.layout.to_string() });
        };
        match self.source.spec(&name) {
            Some(spec) if plain_format(&name, &spec).is_ok() && expected.layout.accepts(&spec.shape) => {
                self.bytes += spec.size_bytes() as u64;
                Ok(Stored::Plain(name))
            }
            _ => Err(WeightsError::Mismatch { name, found, expected: expected.layout.to_string() }),
        }
    }

    /// Counts in one tensor of a packed pair, which must be `U8` of this shape.
    fn take(&mut self, name: &str, shape: Shape) -> Result<(), WeightsError> {
        let wanted = TensorSpec::new(DType::U8, shape);
        match self.source.describe(name) {
            None => Err(WeightsError::Missing { name: name.into(), expected: wanted.to_string() }),
            Some(_) if self.source.spec(name).as_ref() == Some(&wanted) => {
                self.bytes += wanted.size_bytes() as u64;
                Ok(())
            }
            Some(found) => Err(WeightsError::Mismatch { name: name.into(), found, expected: wanted.to_string() }),
        }
    }

    fn sort_out_extras(&mut self, prefix: &str, ignored: &[&str]) -> Result<(), WeightsError> {
        let mut used: HashSet<&str> = HashSet::new();
        for stored in self.stored.values() {
            match stored {
                Stored::Plain(name) => drop(used.insert(name)),
                Stored::Packed { data, scales } => used.extend([data.as_str(), scales.as_str()]),
            }
        }
        let mut extras: Vec<&str> = self.source.names().filter(|name| !used.contains(name)).collect();
        extras.sort_unstable();
        for name in extras {
            let bare = name.strip_prefix(prefix).unwrap_or(name);
            let bare = bare.strip_prefix("model.").unwrap_or(bare);
            if !ignored.iter().any(|part| bare.starts_with(part)) {
                let found = self.source.describe(name).unwrap_or_default();
                return Err(WeightsError::Unexpected { name: name.into(), found });
            }
            self.ignored.push(name.to_owned());
        }
        Ok(())
    }
}

/// The storage format of a matrix in floating point.
fn plain_format(name: &str, spec: &TensorSpec) -> Result<QuantFormat, WeightsError> {
    match spec.dtype {
        DType::F32 => Ok(QuantFormat::F32),
        DType::Bf16 => Ok(QuantFormat::Bf16),
        DType::F16 => Ok(QuantFormat::F16),
        DType::U32 | DType::U8 => Err(WeightsError::Mismatch {
            name: name.into(),
            found: spec.to_string(),
            expected: "F32, BF16 or F16".into(),
        }),
    }
}

/// The other spelling of the attention residual's pair: `x_res.norm_weight` for `x_res_norm.weight`.
fn older_spelling(name: &str) -> String {
    name.replace("_res_norm.weight", "_res.norm_weight").replace("_res_proj.weight", "_res.proj_weight")
}
