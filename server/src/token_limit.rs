//! How many tokens a request may generate, and who says so.

use perilune_config::GenerationConfig;
use perilune_protocol::GenerationOptions;

use crate::error::ApiError;

/// The limit of generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenLimit {
    /// The request says it.
    Asked(usize),
    /// The route says it where the request does not.
    Route(usize),
    /// `generation_config.json` says it where nobody else does. It gives way to the end of the context.
    Model(usize),
    /// Nobody: the end of the context.
    Context,
}

impl TokenLimit {
    /// The limit of a request on a route with this default.
    pub fn of(options: &GenerationOptions, route: Option<usize>, model: &GenerationConfig) -> Self {
        let model = model.max_new_tokens.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let asked = options.max_tokens.map(TokenLimit::Asked);
        let default = || model.map_or(TokenLimit::Context, |limit| TokenLimit::Model(limit.max(options.min_tokens)));
        asked.or(route.map(TokenLimit::Route)).unwrap_or_else(default)
    }

    /// `max_tokens` of a prompt in a context. A limit that nobody asked for refuses no prompt that leaves room for one
    /// token.
    pub fn max_tokens(self, prompt: usize, context: usize) -> Option<usize> {
        match self {
            TokenLimit::Asked(limit) | TokenLimit::Route(limit) => Some(limit),
            TokenLimit::Model(limit) => Some(limit.min(context.saturating_sub(prompt)).max(1)),
            TokenLimit::Context => None,
        }
    }

    /// The refusal of a prompt that leaves too little of the context; `field` is the prompt's.
    pub fn too_long(self, prompt: usize, context: usize, field: &str) -> ApiError {
        let wish = match self {
            TokenLimit::Asked(limit) => format!(" and `max_tokens` is {limit}: together they"),
            TokenLimit::Route(limit) => format!(" and `max_tokens` is {limit}, the default: together they"),
            TokenLimit::Model(_) | TokenLimit::Context => ": with at least one of the answer they".to_owned(),
        };
        let message = format!("the prompt has {prompt} tokens{wish} exceed the context of {context} tokens");
        ApiError::invalid(message, Some(field)).with_code("context_length_exceeded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(asked: Option<usize>, route: Option<usize>, model: Option<u64>) -> TokenLimit {
        let options = GenerationOptions { max_tokens: asked, min_tokens: 3, ..GenerationOptions::default() };
        TokenLimit::of(&options, route, &GenerationConfig { max_new_tokens: model, ..GenerationConfig::default() })
    }

    #[test]
    fn the_request_comes_first_then_the_route_then_the_model() {
        assert_eq!(limit(Some(5), Some(16), Some(1024)), TokenLimit::Asked(5));
        assert_eq!(limit(None, Some(16), Some(1024)), TokenLimit::Route(16));
        assert_eq!(limit(None, None, Some(1024)), TokenLimit::Model(1024));
        assert_eq!(limit(None, None, Some(2)), TokenLimit::Model(3), "not below what the request wants at least");
        assert_eq!(limit(None, None, None), TokenLimit::Context);
    }

    #[test]
    fn only_what_was_said_by_the_client_or_the_route_may_refuse_a_prompt() {
        assert_eq!(TokenLimit::Asked(50).max_tokens(90, 100), Some(50));
        assert_eq!(TokenLimit::Route(16).max_tokens(90, 100), Some(16));
        assert_eq!(TokenLimit::Model(50).max_tokens(90, 100), Some(10));
        assert_eq!(TokenLimit::Model(50).max_tokens(100, 100), Some(1));
        assert_eq!(TokenLimit::Context.max_tokens(90, 100), None);
    }

    #[test]
    fn refusals_name_the_numbers_and_the_default() {
        let message = |limit: TokenLimit| limit.too_long(123, 67, "prompt").body().error.message;
        assert!(["123", "45", "67"].iter().all(|number| message(TokenLimit::Asked(45)).contains(number)));
        assert!(message(TokenLimit::Route(16)).contains("16, the default"));
        assert!(!message(TokenLimit::Context).contains("max_tokens"));
    }
}
