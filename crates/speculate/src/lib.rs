//! Speculation: drafts that propose tokens ahead, the rule by which a target's distributions accept or refuse them, and
//! how many of them are worth verifying.
//!
//! Nothing here changes what is generated: greedy output is the same token for token, and sampled output has the same
//! distribution, whatever the draft says (`kimi-k3.md` 6.1).

mod accept;
mod cost;
mod draft;
mod dspark;
mod error;
mod length;
mod ngram;
mod rotary;

pub use accept::{Accepted, Block, accept_block, pick};
pub use draft::{Draft, DraftRequest, Proposal, TappedStep};
pub use dspark::{DraftLimits, DraftSource, DsparkDraft};
pub use error::SpeculateError;
pub use length::{Costs, DraftLengths, LengthPolicy, Load, Outcome, Survival};
pub use ngram::{NgramDraft, NgramOptions};
