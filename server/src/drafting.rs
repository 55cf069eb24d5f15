//! What drafts tokens ahead, from flags to a draft at work.

use std::path::{Path, PathBuf};

use perilune_backend::Backend;
use perilune_config::{DraftConfig, ModelConfig};
use perilune_engine::{EngineConfig, Speculation};
use perilune_speculate::{
    Draft, DraftLengths, DraftLimits, DraftSource, DsparkDraft, NgramDraft, NgramOptions, SpeculateError,
};
use perilune_weights::{Checkpoint, SafetensorsDir, check_finite};

use crate::cli::{DraftLengthRule, ModelArgs, Speculative};
use crate::error::ServerError;
use crate::load::WeightCheck;

/// Which draft, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftOptions {
    /// What drafts; `None` for nothing.
    pub source: Option<DraftChoice>,
    /// Most drafts per step; `None` for as many as the draft proposes.
    pub num_drafts: Option<usize>,
    /// How lengths are chosen.
    pub lengths: DraftLengths,
}

/// What drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DraftChoice {
    /// Prompt lookup.
    Ngram,
    /// A draft checkpoint in this directory.
    Dspark(PathBuf),
}

impl DraftOptions {
    /// No draft.
    pub fn off() -> Self {
        DraftOptions { source: None, num_drafts: None, lengths: DraftLengths::Adaptive }
    }

    /// What flags ask for.
    ///
    /// # Errors
    /// `Flag` where they contradict each other.
    pub fn from_args(args: &ModelArgs) -> Result<Self, ServerError> {
        let refuse = |value: &str, rule: &str| {
            Err(ServerError::Flag { flag: "--speculative", value: value.to_owned(), rule: rule.to_owned() })
        };
        let source = match (args.speculative, &args.draft_model) {
            (Speculative::Auto | Speculative::Dspark, Some(dir)) => Some(DraftChoice::Dspark(dir.clone())),
            (Speculative::Ngram, None) => Some(DraftChoice::Ngram),
            (Speculative::Auto | Speculative::Off, None) => None,
            (Speculative::Dspark, None) => {
                return refuse("dspark", "needs a draft: name its directory with --draft-model");
            }
            (Speculative::Ngram, Some(_)) => return refuse("ngram", "uses no draft model: leave --draft-model out"),
            (Speculative::Off, Some(_)) => return refuse("off", "uses no draft model: leave --draft-model out"),
        };
        if source.is_none() {
            refuse_without_drafts(args)?;
        }
        let lengths = match args.draft_lengths {
            DraftLengthRule::Adaptive => DraftLengths::Adaptive,
            DraftLengthRule::Fixed => DraftLengths::Fixed,
        };
        Ok(DraftOptions { source, num_drafts: args.num_drafts, lengths })
    }

    /// Reads what is known of the draft before memory is shared out.
    ///
    /// # Errors
    /// What is wrong with its configuration, or that it does not fit the model.
    pub(crate) fn open(&self, target: &ModelConfig) -> Result<OpenedDraft<'_>, ServerError> {
        let kind = match &self.source {
            None => Kind::None,
            Some(DraftChoice::Ngram) => Kind::Ngram,
            Some(DraftChoice::Dspark(dir)) => {
                let config = DraftConfig::from_dir(dir)?;
                config.check_target(target)?;
                Kind::Dspark { dir, config: Box::new(config) }
            }
        };
        Ok(OpenedDraft { options: self, kind })
    }
}

/// A draft whose configuration has been read.
pub(crate) struct OpenedDraft<'a> {
    options: &'a DraftOptions,
    kind: Kind<'a>,
}

enum Kind<'a> {
    None,
    Ngram,
    Dspark { dir: &'a Path, config: Box<DraftConfig> },
}

/// Flags that only say how to draft.
fn refuse_without_drafts(args: &ModelArgs) -> Result<(), ServerError> {
    let (flag, value) = match (args.num_drafts, args.draft_lengths) {
        (Some(num_drafts), _) => ("--num-drafts", num_drafts.to_string()),
        (None, DraftLengthRule::Fixed) => ("--draft-lengths", "fixed".to_owned()),
        (None, DraftLengthRule::Adaptive) => return Ok(()),
    };
    let rule = "nothing drafts: name a draft with --draft-model, or use --speculative ngram".to_owned();
    Err(ServerError::Flag { flag, value, rule })
}

impl OpenedDraft<'_> {
    /// Most drafts per step, at most what can be verified.
    pub(crate) fn max_drafts(&self) -> usize {
        let own = match &self.kind {
            Kind::None => return 0,
            Kind::Ngram => NgramOptions::default().max_drafts,
            Kind::Dspark { config, .. } => config.num_drafts(),
        };
        own.min(perilune_model::MAX_DECODE_ROWS - 1).min(self.options.num_drafts.unwrap_or(usize::MAX))
    }

    /// `F32` elements that it keeps per token.
    pub(crate) fn context_len(&self) -> usize {
        if let Kind::Dspark { config, .. } = &self.kind { config.context_len() } else { 0 }
    }

    /// Loads it.
    ///
    /// # Errors
    /// What is wrong with its tensors; that the device runs no drafts.
    pub(crate) fn load<B: Backend>(
        &self,
        backend: &B,
        (target, engine): (&ModelConfig, &EngineConfig),
        check: WeightCheck,
    ) -> Result<Option<Speculation<B>>, ServerError> {
        let draft: Box<dyn Draft<B>> = match &self.kind {
            Kind::None => return Ok(None),
            Kind::Ngram => Box::new(NgramDraft::new(NgramOptions::default())),
            Kind::Dspark { dir, config } => {
                let source = SafetensorsDir::open(dir)?;
                let checkpoint = Checkpoint::open_draft(&source, config)?;
                if check == WeightCheck::Full {
                    check_finite(&checkpoint, &mut |_| {})?;
                }
                let source = DraftSource { config, checkpoint: &checkpoint, target };
                Box::new(DsparkDraft::load(backend, source, limits(engine)).map_err(server_error)?)
            }
        };
        tracing::info!(max_drafts = engine.max_drafts, lengths = ?self.options.lengths, "drafts");
        Ok(Some(Speculation::new(draft, self.options.lengths)))
    }
}

fn limits(engine: &EngineConfig) -> DraftLimits {
    let blocks_each = engine.effective_context().div_ceil(engine.cache.block_size.max(1));
    DraftLimits {
        max_rows: engine.max_step_rows(),
        max_sequences: engine.max_running_requests,
        max_blocks: engine.max_running_requests.saturating_mul(blocks_each),
    }
}

fn server_error(error: SpeculateError) -> ServerError {
    match error {
        SpeculateError::Config(error) => error.into(),
        SpeculateError::Weights(error) => error.into(),
        SpeculateError::Backend(error) => error.into(),
    }
}
