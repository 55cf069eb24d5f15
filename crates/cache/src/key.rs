//! What a stored prefix belongs to besides its tokens.

use std::sync::Arc;

/// Sequences share prefixes only under equal keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CacheKey {
    /// The caller's own part (`cache_salt`): tenants that must not learn of each other's prompts differ in it.
    pub salt: Option<Arc<str>>,
    /// Version of the weights: a prefix computed with others is never reused.
    pub weight_version: u64,
    /// Adapter on top of the weights.
    pub adapter: Option<Arc<str>>,
}
