//! What the tests of this folder share: tiny checkpoints made from names, and a model that runs plans.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // only tests use it

mod bench;
mod drafts;
mod engines;
mod gate;
mod golden;
mod hash_runner;
mod json_schema;
mod random_checkpoint;
mod requests;
mod tiny;
mod toy_grammar;
mod widen;

pub use bench::{Bench, data_dir, demo_dir};
pub use drafts::{ByChance, ByHeart};
pub use engines::{DemoDraft, Tiny, all_events, demo_engine, demo_room, demo_runner, finish, stopped, tokens};
pub use gate::{Gate, Gated, gated};
pub use golden::Golden;
pub use hash_runner::{FAULT, HashRunner, PANIC, POISON, VOCAB, hash_config, room};
pub use json_schema::is_valid;
pub use random_checkpoint::write_random_model;
pub use requests::{drawn_request, text};
pub use tiny::tiny_checkpoint;
pub use toy_grammar::ToyGrammar;
pub use widen::{widen_draft, widen_model};
