//! What the tests of this folder share: tiny checkpoints made from names, and a model that runs plans.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // only tests use it

mod bench;
mod tiny;

pub use bench::{Bench, data_dir, demo_dir};
pub use tiny::tiny_checkpoint;
