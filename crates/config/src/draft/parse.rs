//! From a draft's `config.json` to a [`DraftConfig`], refusing whatever its pass would get wrong.
//!
//! Keys of the method stand at the top or in `dflash_config` (`dspark_config`); where a key stands in both, the two must
//! agree.

use std::path::Path;

use serde_json::Value;

use super::{
    AnchorRow, ConfidenceInput, DraftConfig, DraftFamily, DraftHeads, DraftMask, DraftTaps, MarkovHead, MarkovKind,
    Rotary, TapNorm, TapStream, Yarn,
};
use crate::file::read_text;
use crate::generation::token_id;
use crate::keys::{Found, Keys, MAX_EXTENT, whole};
use crate::{ConfigError, FfnActivation, model};

/// Most layers of a draft or its target accepted.
const MAX_LAYERS: usize = 1024;
/// Most rows of a block accepted.
const MAX_BLOCK: usize = 64;
/// Most vocabulary entries accepted.
const MAX_VOCAB: usize = 1 << 24;
/// Drafts of a block where the file does not say: all published drafts of that family but one have so many.
const DEFAULT_BLOCK: usize = 7;

impl DraftConfig {
    /// Reads `config.json` of a draft's directory.
    ///
    /// # Errors
    /// `Io`, `Parse`, `Missing`, `Unsupported`.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        parse(&path, &read_text(&path)?)
    }

    /// Reads a configuration file if it is that of a draft; `None` where it says it is something else.
    ///
    /// # Errors
    /// As [`DraftConfig::from_dir`].
    pub fn find(path: &Path) -> Result<Option<Self>, ConfigError> {
        let text = read_text(path)?;
        let value: Value = read_json(path, &text)?;
        let is_draft = family(&Keys::root(path, &value)?).is_ok() || value.get("speculators_model_type").is_some();
        is_draft.then(|| parse(path, &text)).transpose()
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// As [`DraftConfig::from_dir`], without `Io`.
    pub fn from_json_str(text: &str) -> Result<Self, ConfigError> {
        parse(Path::new("config.json"), text)
    }
}

fn read_json(path: &Path, text: &str) -> Result<Value, ConfigError> {
    serde_json::from_str(text).map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: error.to_string() })
}

/// The outermost object and the one with the keys of the method.
struct Source<'a> {
    top: Keys<'a>,
    method: Option<Keys<'a>>,
}

impl<'a> Source<'a> {
    /// The object that holds `key`: the outermost one where neither does.
    fn keys(&self, key: &str) -> Result<Keys<'a>, ConfigError> {
        let Some(method) = self.method else { return Ok(self.top) };
        match (self.top.find(&[key])?, method.find(&[key])?) {
            (Some(outer), Some(inner)) if outer.value != inner.value => {
                Err(inner.refuse(format!("`{}` says {} for the same thing", outer.key, outer.value)))
            }
            (_, Some(_)) => Ok(method),
            _ => Ok(self.top),
        }
    }

    fn find(&self, key: &str) -> Result<Option<Found<'a>>, ConfigError> {
        self.keys(key)?.find(&[key])
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.keys(key)?.flag(&[key])
    }

    /// The place of a string among those accepted; `None` where the key is absent.
    fn choice(&self, key: &str, accepted: &[&str]) -> Result<Option<usize>, ConfigError> {
        let keys = self.keys(key)?;
        keys.one_of(key, accepted)?;
        let found = keys.find(&[key])?;
        Ok(found.and_then(|found| accepted.iter().position(|text| found.value.as_str() == Some(text))))
    }
}

fn parse(path: &Path, text: &str) -> Result<DraftConfig, ConfigError> {
    let value: Value = read_json(path, text)?;
    let top = Keys::root(path, &value)?;
    let method = top.child("dflash_config")?.map_or_else(|| top.child("dspark_config"), |keys| Ok(Some(keys)))?;
    let source = Source { top, method };
    let family = family(&top)?;
    refuse_unknown_features(&source, family)?;
    let vocab_size = whole(&top.require(&["vocab_size"])?, 1, MAX_VOCAB)?;
    let (block_rows, anchor) = block(&source, family)?;
    let attention = attention(&top, family)?;
    let taps = taps(&source, family)?;
    let markov = markov(&source)?;
    let target_layers_key =
        if family == DraftFamily::SpecForge { "num_target_layers" } else { "target_num_hidden_layers" };
    let logit_scale = if top.find(&["logit_scale"])?.is_some() { top.positive(&["logit_scale"])? } else { 1.0 };
    Ok(DraftConfig {
        family,
        vocab_size,
        hidden_size: top.extent(&["hidden_size"])?,
        intermediate_size: top.extent(&["intermediate_size"])?,
        num_layers: whole(&top.require(&["num_hidden_layers"])?, 1, MAX_LAYERS)?,
        rms_norm_eps: top.positive(&["rms_norm_eps"])?,
        activation: activation(&top)?,
        rotary: rotary(&top, family, attention.rotary_width())?,
        attention,
        mask: if source.flag("causal")?.unwrap_or(false) { DraftMask::Causal } else { DraftMask::Bidirectional },
        block_rows,
        anchor,
        mask_token: token_id(&source.keys("mask_token_id")?.require(&["mask_token_id"])?, vocab_size - 1)?,
        taps,
        confidence: confidence(&source, markov)?,
        markov,
        logit_scale,
        target_layers: top.find(&[target_layers_key])?.map(|f| whole(&f, 1, MAX_LAYERS)).transpose()?,
        target_hidden_size: top.optional_extent(&["target_hidden_size"])?,
        path: path.to_owned(),
    })
}

fn family(top: &Keys<'_>) -> Result<DraftFamily, ConfigError> {
    if let Some(found) = top.find(&["speculators_model_type"])? {
        return Err(found.refuse("drafts in the layout of speculators are not supported"));
    }
    let names = top.find(&["architectures"])?;
    let listed = |name: &str| {
        names.as_ref().and_then(|f| f.value.as_array()).is_some_and(|list| list.iter().any(|entry| entry == name))
    };
    let kind = top.find(&["model_type"])?;
    let says = |name: &str| kind.as_ref().is_some_and(|found| found.value == name);
    if says("k3_dspark") || listed("K3DSparkModel") {
        return Ok(DraftFamily::K3Dspark);
    }
    if listed("DSparkDraftModel") || listed("Qwen3DSparkModel") {
        return Ok(DraftFamily::SpecForge);
    }
    let rule = "a DSpark draft is expected: k3_dspark, or architectures with DSparkDraftModel";
    Err(kind
        .map_or_else(|| top.require(&["model_type"]).err(), |found| Some(found.refuse(rule)))
        .unwrap_or_else(|| ConfigError::Missing { path: top.path().to_owned(), key: "model_type".into() }))
}

/// Keys that would change the pass in a way nothing here implements.
fn refuse_unknown_features(source: &Source<'_>, family: DraftFamily) -> Result<(), ConfigError> {
    let off = [
        "attention_bias",
        "mlp_bias",
        "attention_sink_bias",
        "use_swa",
        "use_sliding_window",
        "mla_use_nope",
        "mla_use_output_gate",
        "mla_use_qk_norm",
        "dspark_backbone_conv_enabled",
        "shift_label",
    ];
    for key in off {
        if source.flag(key)?.unwrap_or(false) {
            return Err(source.keys(key)?.require(&[key])?.refuse("false is expected: this is not implemented"));
        }
    }
    for key in ["quantization_config", "quantization"] {
        if let Some(found) = source.find(key)? {
            return Err(found.refuse("null is expected: drafts are read in floating point"));
        }
    }
    for key in ["dspark_draft_topk", "num_experts", "n_routed_experts"] {
        if let Some(found) = source.find(key)?.filter(|found| found.value.as_u64() != Some(0)) {
            return Err(found.refuse("null or 0 is expected: this is not implemented"));
        }
    }
    if let Some(found) = source.find("layer_types")? {
        let full = found.value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "full_attention"));
        if !full {
            return Err(found.refuse("full_attention is expected of every layer"));
        }
    }
    if let Some(found) = source.find("draft_vocab_size")?
        && source.find("vocab_size")?.is_none_or(|full| full.value != found.value)
    {
        return Err(found.refuse("it must equal vocab_size: a reduced draft vocabulary is not implemented"));
    }
    source.choice("projector_type", &["dspark"])?;
    if family == DraftFamily::SpecForge {
        source.choice("attention_mode", &["gqa", "mha"])?;
    }
    Ok(())
}

/// Rows of a block and what the first of them is for.
fn block(source: &Source<'_>, family: DraftFamily) -> Result<(usize, AnchorRow), ConfigError> {
    let from_anchor = source.flag("sample_from_anchor")?;
    let bonus = source.flag("dspark_bonus_anchor")?;
    if let (Some(from), Some(bonus)) = (from_anchor, bonus)
        && from == bonus
    {
        let found = source.keys("dspark_bonus_anchor")?.require(&["dspark_bonus_anchor"])?;
        return Err(found.refuse(format!("`sample_from_anchor` is {from}, of which this is the opposite")));
    }
    let from_anchor = from_anchor.or(bonus.map(|bonus| !bonus)).unwrap_or(true);
    let anchor = if from_anchor { AnchorRow::FirstDraft } else { AnchorRow::Nothing };
    let least = if from_anchor { 1 } else { 2 };
    let keys = source.keys("block_size")?;
    match keys.find(&["block_size"])? {
        Some(found) => Ok((whole(&found, least, MAX_BLOCK)?, anchor)),
        None if family == DraftFamily::K3Dspark => Ok((DEFAULT_BLOCK + least - 1, anchor)),
        None => Err(keys
            .require(&["block_size"])
            .err()
            .unwrap_or(ConfigError::Missing { path: source.top.path().to_owned(), key: "block_size".into() })),
    }
}

fn attention(top: &Keys<'_>, family: DraftFamily) -> Result<DraftHeads, ConfigError> {
    let num_heads = top.extent(&["num_attention_heads"])?;
    let heads = top.require(&["num_attention_heads"])?;
    let even = |key: &'static str| {
        let width = top.extent(&[key])?;
        let refuse = |f: Found<'_>| Err(f.refuse("an even number is expected: its elements rotate in pairs"));
        if width.is_multiple_of(2) { Ok(width) } else { refuse(top.require(&[key])?) }
    };
    let (attention, width) = match family {
        DraftFamily::SpecForge => {
            let num_kv_heads = top.optional_extent(&["num_key_value_heads"])?.unwrap_or(num_heads);
            if !num_heads.is_multiple_of(num_kv_heads) {
                let found = top.require(&["num_key_value_heads"])?;
                return Err(found.refuse(format!("a divisor of num_attention_heads, {num_heads}, is expected")));
            }
            let head_dim = even("head_dim")?;
            (DraftHeads::Grouped { num_heads, num_kv_heads, head_dim }, num_heads * head_dim)
        }
        DraftFamily::K3Dspark => {
            let (nope, value) = (top.extent(&["qk_nope_head_dim"])?, top.extent(&["v_head_dim"])?);
            let qk_rope_head_dim = even("qk_rope_head_dim")?;
            let attention = DraftHeads::Latent {
                num_heads,
                q_lora_rank: top.extent(&["q_lora_rank"])?,
                kv_lora_rank: top.extent(&["kv_lora_rank"])?,
                qk_nope_head_dim: nope,
                qk_rope_head_dim,
                v_head_dim: value,
            };
            (attention, num_heads * (nope + qk_rope_head_dim.max(value)))
        }
    };
    if width > MAX_EXTENT {
        return Err(heads.refuse(format!("heads times head width is at most {MAX_EXTENT}")));
    }
    Ok(attention)
}

fn taps(source: &Source<'_>, family: DraftFamily) -> Result<DraftTaps, ConfigError> {
    let found = source.keys("target_layer_ids")?.require(&["target_layer_ids"])?;
    let list = found.value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| found.refuse("a list of layer numbers is expected"))?;
    let number = |entry| whole(&Found { path: found.path, key: found.key.clone(), value: entry }, 0, MAX_LAYERS - 1);
    let layers = list.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    if layers.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(found.refuse("rising layer numbers are expected"));
    }
    if family == DraftFamily::K3Dspark
        && let Some(count) = source.find("num_target_layers")?
        && whole(&count, 1, MAX_LAYERS)? != layers.len()
    {
        return Err(count.refuse(format!("it counts target_layer_ids, which has {} entries", layers.len())));
    }
    let stream = match source.choice("aux_hidden_stream", &["attn_res", "prefix"])? {
        Some(0) => TapStream::AttnRes,
        Some(_) => TapStream::Prefix,
        // What the engines do that these drafts were trained with.
        None if family == DraftFamily::SpecForge => TapStream::AttnRes,
        None => TapStream::Prefix,
    };
    let norm = if source.flag("fc_norm")?.unwrap_or(false) { TapNorm::Rms } else { TapNorm::Off };
    Ok(DraftTaps { layers, stream, norm })
}

fn markov(source: &Source<'_>) -> Result<Option<MarkovHead>, ConfigError> {
    let Some(rank) = source.keys("markov_rank")?.optional_count(&["markov_rank"])?.filter(|rank| *rank > 0) else {
        return Ok(None);
    };
    let kind = match source.choice("markov_head_type", &["vanilla", "gated", "rnn"])? {
        None | Some(0) => MarkovKind::Vanilla,
        Some(1) => MarkovKind::Gated,
        Some(_) => MarkovKind::Rnn,
    };
    Ok(Some(MarkovHead { rank, kind }))
}

fn confidence(source: &Source<'_>, markov: Option<MarkovHead>) -> Result<Option<ConfidenceInput>, ConfigError> {
    if !source.flag("enable_confidence_head")?.unwrap_or(false) {
        return Ok(None);
    }
    let key = "confidence_head_with_markov";
    match (source.flag(key)?.unwrap_or(markov.is_some()), markov) {
        (true, Some(_)) => Ok(Some(ConfidenceInput::HiddenAndMarkov)),
        (true, None) => Err(source.keys(key)?.require(&[key])?.refuse("there is no Markov head (`markov_rank`)")),
        (false, _) => Ok(Some(ConfidenceInput::Hidden)),
    }
}

fn activation(top: &Keys<'_>) -> Result<FfnActivation, ConfigError> {
    if top.find(&["hidden_act"])?.is_none() { Ok(FfnActivation::Silu) } else { model::activation(top) }
}

fn rotary(top: &Keys<'_>, family: DraftFamily, width: usize) -> Result<Rotary, ConfigError> {
    let scaling = top.child("rope_parameters")?.map_or_else(|| top.child("rope_scaling"), |keys| Ok(Some(keys)))?;
    let inner = scaling.as_ref().map(|keys| keys.find(&["rope_theta"])).transpose()?.flatten();
    let theta = match (inner, &scaling) {
        (Some(_), Some(keys)) => keys.positive(&["rope_theta"])?,
        _ if top.find(&["rope_theta"])?.is_some() => top.positive(&["rope_theta"])?,
        _ if family == DraftFamily::K3Dspark => 50_000.0,
        _ => top.positive(&["rope_theta"])?,
    };
    if theta <= 1.0 {
        let keys = scaling.unwrap_or(*top);
        return Err(keys.require(&["rope_theta"])?.refuse("a number greater than 1 is expected"));
    }
    for keys in [Some(*top), scaling].into_iter().flatten() {
        if let Some((_, found)) = keys.optional_number(&["partial_rotary_factor"])?.filter(|(part, _)| *part != 1.0) {
            return Err(found.refuse("1 is expected: heads are rotated as a whole"));
        }
    }
    let yarn = scaling.map(|keys| yarn(&keys, family, width)).transpose()?.flatten();
    Ok(Rotary { theta: f64::from(theta), yarn })
}

fn yarn(keys: &Keys<'_>, family: DraftFamily, width: usize) -> Result<Option<Yarn>, ConfigError> {
    let Some(kind) = keys.find(&["rope_type", "type"])? else { return Ok(None) };
    match kind.value.as_str() {
        Some("default") => return Ok(None),
        Some("yarn" | "deepseek_yarn") if width > 0 => {}
        _ => return Err(kind.refuse("default, yarn or deepseek_yarn is expected")),
    }
    if keys.flag(&["truncate"])? == Some(false) {
        return Err(keys.require(&["truncate"])?.refuse("true is expected"));
    }
    let number = |key: &'static str, default: f64| -> Result<f64, ConfigError> {
        if keys.find(&[key])?.is_none() { Ok(default) } else { keys.positive(&[key]).map(f64::from) }
    };
    let factor = f64::from(keys.positive(&["factor"])?);
    let original_positions = whole(&keys.require(&["original_max_position_embeddings"])?, 1, 1 << 32)?;
    let (mscale, mscale_all) = (keys.find(&["mscale"])?.is_some(), keys.find(&["mscale_all_dim"])?.is_some());
    let growth = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let ratio = growth(number("mscale", 1.0)?) / growth(number("mscale_all_dim", 0.0)?);
    let latent = family == DraftFamily::K3Dspark;
    let amplitude = if latent || (mscale && mscale_all) { ratio } else { growth(1.0) };
    Ok(Some(Yarn {
        factor,
        original_positions,
        beta_fast: number("beta_fast", 32.0)?,
        beta_slow: number("beta_slow", 1.0)?,
        amplitude: number("attention_factor", amplitude)?,
        score_factor: if latent { growth(number("mscale_all_dim", 0.0)?).powi(2) } else { 1.0 },
    }))
}
