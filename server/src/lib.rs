//! HTTP in, token streams out: everything behind the `perilune` binary, usable in-process.
//!
//! [`Server`] listens at once, loads a model meanwhile, serves and drains. A request's walk: `routes` (bytes to a checked,
//! tokenised request, to the engine) → `generation` (token events to pieces of text) → `chat_reply` / `completion_reply`
//! (pieces to JSON) → whole, or through `sse`. No model or device code is here; `load` and `backend` join the crates
//! that have it.

pub mod aborts;
pub mod access;
pub mod app;
pub mod backend;
pub mod bench;
mod bench_loss;
pub mod bench_model;
mod bench_ops;
pub mod bench_serve;
mod bench_stage;
mod body_room;
pub mod chat_cli;
mod chat_reply;
mod chat_request;
pub mod cli;
mod completion_reply;
mod connections;
pub mod convert;
pub mod disk_cache;
pub mod drafting;
pub mod drain;
pub mod error;
mod generation;
mod gpu;
mod held_body;
mod http;
pub mod inspect;
pub mod inspect_cache;
mod inspect_draft;
pub mod journal;
pub mod lifecycle;
pub mod load;
mod logprobs;
mod messages_reply;
pub mod metrics;
pub mod metrics_compat;
pub mod model_dir;
mod native_reply;
mod openapi;
mod output_rule;
mod output_text;
mod places;
pub mod profile;
pub mod progress;
mod ready_chat;
mod request_id;
pub mod request_log;
mod responses_reply;
mod routes;
mod sampling;
pub mod server;
pub mod simulate;
mod sse;
pub mod tls;
mod token_limit;
#[cfg(feature = "train")]
pub mod train_draft;
mod usage;
mod watchdog;

pub use app::{Served, Settings, TextSide};
pub use chat_reply::ReasoningNames;
pub use drain::Shutdown;
pub use error::{Overload, ServerError};
pub use server::Server;
