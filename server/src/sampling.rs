//! What a client asked for, completed by the model's defaults, as the engine's sampling parameters.

use perilune_config::GenerationConfig;
use perilune_engine::SamplingParams;
use perilune_protocol::GenerationOptions;
use perilune_sampling::{Limits, SamplingError, derived_seed};
use perilune_tensor::TokenId;

use crate::error::ApiError;

/// The parameters of a request's first choice, but for `max_tokens`, which depends on the prompt. Ranges are the engine's
/// to check.
///
/// # Errors
/// 400 for a number that does not fit the sampler's precision.
pub fn sampling_params(options: &GenerationOptions, defaults: &GenerationConfig) -> Result<SamplingParams, ApiError> {
    let mut model = model_params(defaults);
    if defaults.do_sample == Some(false) {
        model.temperature = 0.0;
    }
    Ok(SamplingParams {
        temperature: pick("temperature", options.temperature)?.unwrap_or(model.temperature),
        top_p: pick("top_p", options.top_p)?.unwrap_or(model.top_p),
        top_k: options.top_k.unwrap_or(model.top_k),
        min_p: pick("min_p", options.min_p)?.unwrap_or(model.min_p),
        repetition_penalty: pick("repetition_penalty", options.repetition_penalty)?.unwrap_or(model.repetition_penalty),
        presence_penalty: pick("presence_penalty", options.presence_penalty)?.unwrap_or(0.0),
        frequency_penalty: pick("frequency_penalty", options.frequency_penalty)?.unwrap_or(0.0),
        logit_bias: options.logit_bias.iter().map(|(id, bias)| (TokenId(*id), *bias)).collect(),
        seed: options.seed,
        max_tokens: None,
        min_tokens: options.min_tokens,
        stop_token_ids: options.stop_token_ids.iter().copied().map(TokenId).collect(),
        ignore_eos: options.ignore_eos,
        logprobs: None,
        prompt_logprobs: options.prompt_logprobs,
        max_drafts: options.max_draft_tokens,
    })
}

/// The parameters of choice `index`: those of the first with a seed of its own, and the prompt scored only once.
pub fn for_choice(params: &SamplingParams, index: usize) -> SamplingParams {
    let mut params = params.clone();
    params.seed = params.seed.map(|seed| derived_seed(seed, index));
    params
}

/// Checks the model's defaults against the ranges that clients keep to.
///
/// # Errors
/// The first one outside its range.
pub fn check_defaults(defaults: &GenerationConfig, vocab_size: usize) -> Result<(), SamplingError> {
    model_params(defaults).validate(&Limits::for_vocab(vocab_size))
}

/// What the model asks for where a client says nothing.
fn model_params(defaults: &GenerationConfig) -> SamplingParams {
    let plain = SamplingParams::default();
    SamplingParams {
        temperature: defaults.temperature.unwrap_or(plain.temperature),
        top_p: defaults.top_p.unwrap_or(plain.top_p),
        top_k: defaults.top_k.map_or(plain.top_k, i64::from),
        min_p: defaults.min_p.unwrap_or(plain.min_p),
        repetition_penalty: defaults.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    }
}

/// A client's number. One too large for f32 is refused rather than made infinite.
fn pick(field: &'static str, asked: Option<f64>) -> Result<Option<f32>, ApiError> {
    let Some(value) = asked else { return Ok(None) };
    let narrow = value as f32;
    if narrow.is_finite() {
        return Ok(Some(narrow));
    }
    Err(ApiError::invalid(format!("`{field}` is {value}; it is too large"), Some(field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> GenerationOptions {
        GenerationOptions { n: 1, skip_special_tokens: true, ..GenerationOptions::default() }
    }

    #[test]
    fn the_client_comes_before_the_model_and_the_model_before_the_plain_default() {
        let defaults = GenerationConfig { temperature: Some(0.6), top_p: Some(0.9), ..GenerationConfig::default() };
        let params = sampling_params(&options(), &defaults).unwrap();
        assert_eq!((params.temperature, params.top_p, params.min_p), (0.6, 0.9, 0.0));
        let asked = GenerationOptions { temperature: Some(0.25), top_k: Some(5), ..options() };
        let params = sampling_params(&asked, &defaults).unwrap();
        assert_eq!((params.temperature, params.top_p, params.top_k), (0.25, 0.9, 5));
        let greedy = GenerationConfig { do_sample: Some(false), ..defaults };
        assert_eq!(sampling_params(&options(), &greedy).unwrap().temperature, 0.0);
    }

    #[test]
    fn the_models_defaults_keep_to_the_ranges() {
        let check = |change: fn(&mut GenerationConfig)| {
            let mut defaults = GenerationConfig::default();
            change(&mut defaults);
            check_defaults(&defaults, 100).err().map(|error| error.field)
        };
        assert_eq!(check(|_| ()), None);
        assert_eq!(check(|d| d.temperature = Some(9.0)), Some("temperature"));
        assert_eq!(check(|d| (d.temperature, d.do_sample) = (Some(-1.0), Some(false))), Some("temperature"));
        assert_eq!(check(|d| d.top_p = Some(0.0)), Some("top_p"));
        assert_eq!(check(|d| d.min_p = Some(1.5)), Some("min_p"));
        assert_eq!(check(|d| d.repetition_penalty = Some(0.0)), Some("repetition_penalty"));
    }

    #[test]
    fn a_number_beyond_f32_is_refused() {
        let asked = GenerationOptions { presence_penalty: Some(1e300), ..options() };
        let error = sampling_params(&asked, &GenerationConfig::default()).unwrap_err().body().error;
        assert_eq!(error.param.as_deref(), Some("presence_penalty"));
    }

    #[test]
    fn choices_have_their_own_seeds_and_the_first_has_the_requests() {
        let params = SamplingParams { seed: Some(9), ..SamplingParams::default() };
        assert_eq!(for_choice(&params, 0).seed, Some(9));
        assert_eq!(for_choice(&params, 2).seed, Some(derived_seed(9, 2)));
        assert_eq!(for_choice(&SamplingParams::default(), 2).seed, None);
    }
}
