//! What a caller may ask of the sampler, validated: parameters, stop rules, seeds, the contract of grammars,
//! and the shape of log-probabilities.
//!
//! Nothing here draws a token; that is `perilune_backend::Backend::sample`. Stop *strings* are not here either: they are
//! cut on text, by whoever turns tokens into text.

mod constraint;
mod error;
mod logprobs;
mod params;
mod seed;
mod stop;
mod validate;

pub use constraint::{ConstraintError, Grammar, SharedGrammar, TokenConstraint, masks_along};
pub use error::SamplingError;
pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use params::{BiasSplit, SamplingParams};
pub use seed::{SeedSource, derived_seed};
pub use stop::{StopRules, Verdict};
pub use validate::{Limits, MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS};
