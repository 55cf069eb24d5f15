//! Trains a DSpark draft (`kimi-k3.md` section 6) on what its target says.
//!
//! The walk: [`read_prompts`] → [`answer_prompts`], the target's own answers from an engine → [`Capture`], its streams and
//! logits over prompt and answer → [`Objective`], loss and gradient of blocks at random anchors → [`Trainer`], steps and
//! saved states → [`export`], a checkpoint in the published format that the server loads. [`replay`] walks over held-out
//! answers as the server would draft them; [`Run`] is all of it.
//!
//! The draft's arithmetic is burn's. Nothing here serves: what runs a draft beside its target is elsewhere, and knows this
//! crate only by the files it writes.

mod acceptance;
mod answers;
mod attention;
mod block;
mod capture;
mod draft;
mod draft_config;
mod error;
#[cfg(test)]
mod fixture;
mod journal;
mod loss;
mod objective;
mod place;
mod plot;
mod progress;
mod prompts;
mod rope;
mod run;
mod schedule;
mod store;
mod target;
mod trainer;

pub use acceptance::Acceptance;
pub use answers::{AnswerOptions, Answered, answer_prompts};
pub use burn::tensor::Device;
pub use capture::Capture;
pub use draft::{Draft, DraftLayer};
pub use draft_config::{DraftConfig, Yarn};
pub use error::TrainError;
pub use journal::Journal;
pub use loss::LossWeights;
pub use objective::{Evaluated, Objective, Spoken};
pub use place::Place;
pub use progress::{Progress, Show};
pub use prompts::{Prompt, PromptReader, read_prompts};
pub use run::{Run, RunOptions, Start, read_config};
pub use schedule::Schedule;
pub use store::{export, import};
pub use target::{Embedding, TargetEnds};
pub use trainer::{StepReport, Trainer, replay};
