//! What rounding the weights does to the answers: logits of the rounded model beside those of the model as it is stored.

use std::fmt;

use perilune_backend::Backend;
use perilune_config::ModelConfig;
use perilune_model::Kimi;
use perilune_tensor::TokenId;
use perilune_weights::SafetensorsDir;
use serde_json::json;

use crate::backend::WithBackend;
use crate::bench_stage::{Room, Stage};
use crate::error::ServerError;
use crate::load::{LoadOptions, open_checkpoint, server_error};

/// Tokens compared, each the likeliest after those before it.
const TOKENS: usize = 96;
/// The first token.
const FIRST: TokenId = TokenId(1);

/// How far the rounded model is from the stored one, over the same tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Loss {
    /// Mean of the Kullback-Leibler divergence of the next token's distribution, in nats.
    pub(crate) mean_kl: f64,
    /// Largest difference of a logit.
    pub(crate) max_difference: f32,
    /// Share of places whose likeliest token is the same.
    pub(crate) same_choice: f64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "against the stored weights, {TOKENS} tokens: mean KL {:.5} nats, largest logit difference {:.3}, \
             same choice {:.0} %",
            self.mean_kl,
            self.max_difference,
            100.0 * self.same_choice
        )
    }
}

impl Loss {
    pub(crate) fn as_json(self) -> serde_json::Value {
        json!({
            "mean_kl": self.mean_kl,
            "max_logit_difference": self.max_difference,
            "same_choice": self.same_choice,
        })
    }
}

/// Runs both models over the tokens that the stored one chooses.
///
/// # Errors
/// What loading or a step fails with.
pub(crate) fn measure_loss(options: &LoadOptions, config: &ModelConfig) -> Result<Loss, ServerError> {
    let stored = LoadOptions { quantize: None, ..options.clone() };
    let exact = options.backend.with(options.device(), Trace { options: &stored, config, tokens: None })?;
    let tokens = Some(exact.tokens.as_slice());
    let rounded = options.backend.with(options.device(), Trace { options, config, tokens })?;
    Ok(compare(&exact.logits, &rounded.logits))
}

fn compare(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> Loss {
    let mut loss = Loss { mean_kl: 0.0, max_difference: 0.0, same_choice: 0.0 };
    for (exact, rounded) in exact.iter().zip(rounded) {
        let (log_p, log_q) = (log_softmax(exact), log_softmax(rounded));
        loss.mean_kl += log_p.iter().zip(&log_q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        let differences = exact.iter().zip(rounded).map(|(a, b)| (a - b).abs());
        loss.max_difference = differences.fold(loss.max_difference, f32::max);
        loss.same_choice += f64::from(u8::from(likeliest(exact) == likeliest(rounded)));
    }
    loss.mean_kl /= exact.len().max(1) as f64;
    loss.same_choice /= exact.len().max(1) as f64;
    loss
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits.iter().map(|l| f64::from(l - max) - sum.ln()).collect()
}

fn likeliest(logits: &[f32]) -> TokenId {
    let best =
        logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, l)| if *l > best.1 { (i, *l) } else { best });
    TokenId(best.0 as u32)
}

/// Tokens, and the logits after each.
struct Traced {
    tokens: Vec<TokenId>,
    logits: Vec<Vec<f32>>,
}

/// Loads a model and runs it over tokens, or over those that it chooses itself.
struct Trace<'a> {
    options: &'a LoadOptions,
    config: &'a ModelConfig,
    tokens: Option<&'a [TokenId]>,
}

impl WithBackend for Trace<'_> {
    type Output = Traced;

    fn run<B: Backend>(self, backend: B) -> Result<Traced, ServerError> {
        let source = SafetensorsDir::open(&self.options.dir)?;
        let checkpoint = open_checkpoint(&source, self.config, (self.options.quantize, backend.info()))?;
        let model = Kimi::load(&backend, self.config, &checkpoint, &mut |_| {}).map_err(server_error)?;
        let room = Room { sequences: 1, tokens: TOKENS + 1, tokens_each: TOKENS + 1 };
        let mut stage = Stage::new(backend, model, room, self.options)?;
        let mut traced = Traced { tokens: Vec::new(), logits: Vec::new() };
        let mut next = FIRST;
        for position in 0..TOKENS {
            let token = self.tokens.map_or(next, |tokens| tokens[position]);
            let logits = stage.logits_after(token, position)?;
            next = likeliest(&logits);
            traced.tokens.push(token);
            traced.logits.push(logits);
        }
        Ok(traced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_lose_nothing_and_other_ones_do() {
        let (a, b) = (vec![vec![1.0, 2.0, 3.0]], vec![vec![1.0, 3.5, 3.0]]);
        assert_eq!(compare(&a, &a), Loss { mean_kl: 0.0, max_difference: 0.0, same_choice: 1.0 });
        let loss = compare(&a, &b);
        assert!(loss.mean_kl > 0.1 && loss.max_difference == 1.5 && loss.same_choice == 0.0);
    }
}
