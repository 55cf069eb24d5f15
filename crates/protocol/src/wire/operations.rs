//! What operators send.

use schemars::JsonSchema;

/// Which requests to end.
#[derive(Debug, JsonSchema)]
pub struct AbortBody {
    /// Those of this id: `X-Request-Id`, or `rid` of `/generate`.
    pub rid: Option<String>,
    /// All of them.
    pub abort_all: Option<bool>,
}
