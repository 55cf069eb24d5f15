//! What is wrong with a caller's sampling parameters.

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {value}: {rule}")]
pub struct SamplingError {
    /// Name of the parameter, as in [`crate::SamplingParams`].
    pub field: &'static str,
    /// The value received.
    pub value: String,
    /// The rule it breaks, as a phrase such as "must be between 0 and 2".
    pub rule: String,
}
