//! What proposes tokens.

use perilune_backend::{Backend, BackendError, SampleRow};
use perilune_model::{Caches, Kimi, TapSpec, TappedRows};
use perilune_tensor::TokenId;

/// Proposes tokens for a target model to verify.
pub trait Draft<B: Backend>: Send {
    /// Most tokens that it proposes at once, at least 1.
    fn max_drafts(&self) -> usize;

    /// Which streams of the target it reads; `None` where it reads none.
    fn taps(&self) -> Option<&TapSpec> {
        None
    }

    /// `F32` elements that it keeps per token, behind the target's latents; 0 for none.
    fn context_len(&self) -> usize {
        0
    }

    /// After a step of the target or several: takes in the streams of all rows, before it proposes anything that comes
    /// after them. Rows of tokens that are not kept in the end are overwritten later, as latents are. Called only where it
    /// reads any.
    ///
    /// # Errors
    /// What the device refuses.
    fn observe(&mut self, _backend: &B, _step: TappedStep<'_, B>) -> Result<(), BackendError> {
        Ok(())
    }

    /// Tokens that are likely to come next, one proposal per request, in their order; each may be shorter than asked for.
    ///
    /// # Errors
    /// What the device refuses.
    fn propose(
        &mut self,
        target: (&B, &Kimi<B>),
        requests: &[DraftRequest<'_>],
        caches: &mut Caches<B>,
    ) -> Result<Vec<Proposal>, BackendError>;
}

/// What the target has computed since.
pub struct TappedStep<'a, B: Backend> {
    /// Its rows.
    pub rows: TappedRows<'a, B::Tensor>,
    /// The streams, each `F32 [max_rows, H]`, in the order of [`TapSpec::layers`].
    pub taps: &'a [B::Tensor],
    /// Takes the context ([`Caches::draft_context`]).
    pub caches: &'a mut Caches<B>,
}

/// A sequence to draft for.
#[derive(Debug, Clone)]
pub struct DraftRequest<'a> {
    /// All its tokens. The last one, the anchor, has not gone through the target yet.
    pub history: &'a [TokenId],
    /// Places of its blocks, in sequence order.
    pub blocks: &'a [u32],
    /// Most tokens to propose.
    pub max_drafts: usize,
    /// How the target will draw: row `j` for the token `j` places after the anchor's successor. At least `max_drafts`.
    pub rows: &'a [SampleRow],
}

/// Tokens that may come next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// The tokens, in order.
    pub tokens: Vec<TokenId>,
    /// What each was drawn from, over the vocabulary; `None` where no chance was involved.
    pub probabilities: Option<Vec<Vec<f32>>>,
    /// For each token, how likely it is kept if all before it are; empty where the draft cannot tell. It may depend on the
    /// tokens before, not on the token itself.
    pub confidence: Vec<f32>,
}
